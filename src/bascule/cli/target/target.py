"""Chooses the cluster of a command. `@connected` gives a command the connection options, and a `Target` to connect with.

    @app.command("list")
    @connected
    def list_streams(target: Target, …) -> None:
        target.run(_list, …)              # async def _list(client, …)

It also replaces the hints of client errors, which name Python calls, by hints that name commands.
"""

from __future__ import annotations

import functools
import inspect
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

import typer

from bascule import errors
from bascule.cli.target import saved_clusters as contexts
from bascule.cli.target.facts import SHORTAGE_HINT
from bascule.cli.target.saved_clusters import Context
from bascule.cli.terminal import values

if TYPE_CHECKING:
    import asyncio

    from bascule.client.client import Client

P = ParamSpec("P")
T = TypeVar("T")

PANEL: Final = "Connection"
TIMEOUT_DEFAULT: Final = 5.0

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        metavar="HOST:PORT",
        help="Address of a broker, or several separated by commas. Default: that of the context, else 127.0.0.1:9292.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Use this context of `bascule context list`. Also set by `BASCULE_CONTEXT`.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="Timeout of a request, such as `2s`. Default: 5s.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Tls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls",
        help="Use TLS and verify the server with the system's certificate authorities.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Use TLS and trust this certificate authority (PEM).",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Use TLS with this client certificate (PEM).",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="Key of the client certificate (PEM).",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File that holds the access token.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TokenPlaintext = Annotated[
    bool | None,
    typer.Option(
        "--token-plaintext/--no-token-plaintext",
        help="Send the token without TLS, to a broker on this machine only.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

CONNECTION_OPTIONS: Final[dict[str, Any]] = {
    "server": Server,
    "context": ContextName,
    "timeout": Timeout,
    "tls": Tls,
    "tls_ca": TlsCa,
    "tls_cert": TlsCert,
    "tls_key": TlsKey,
    "token_file": TokenFile,
    "token_plaintext": TokenPlaintext,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The chosen cluster, not yet connected."""

    name: str | None
    context: Context

    @property
    def server(self) -> str:
        return self.context.server

    @property
    def timeout(self) -> float:
        return values.seconds("--timeout", self.context.timeout) or TIMEOUT_DEFAULT

    @property
    def speaks_tls(self) -> bool:
        return self.context.tls or any((self.context.tls_ca, self.context.tls_cert, self.context.tls_key))

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments for `bascule.connect`."""
        from bascule.client.connection.options import TlsOptions
        from bascule.client.connection.tokens import LoopbackToken

        context = self.context
        tls = TlsOptions(ca=context.tls_ca, cert=context.tls_cert, key=context.tls_key) if self.speaks_tls else None
        token = contexts.read_token(context.token_file)
        if token is not None and context.token_plaintext:
            token = LoopbackToken(token)
        return {"tls": tls, "timeout": self.timeout, "token": token}

    def run(
        self, command: Callable[Concatenate[Client, P], Awaitable[T]], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Connect, run the command, disconnect. Hints of errors name commands."""
        import asyncio

        endings: list[int] = []

        async def connected() -> T:
            import bascule

            _end_in_order(asyncio.get_running_loop(), asyncio.current_task(), endings)
            async with bascule.connect(self.server, **self.client_options()) as client:
                return await command(client, *arguments, **options)

        try:
            with asyncio.Runner() as runner:
                return runner.run(connected())
        except errors.BasculeError as error:
            explain(error, self)
            raise
        except asyncio.CancelledError:
            if not endings:
                raise
            sys.exit(128 + endings[0])


def _end_in_order(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None, endings: list[int]) -> None:
    """A closed terminal or SIGTERM cancels the command, as Ctrl-C does: it removes what it made, such as the streams of `bench`."""

    def end(number: int) -> None:
        endings.append(number)
        if task is not None:
            task.cancel()

    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has SIGHUP ignored
            loop.add_signal_handler(number, end, number)


_HINTS: Final[dict[type[errors.BasculeError], str]] = {
    errors.StreamDeleted: "`bascule stream list` shows the existing streams",
    errors.StreamNotFound: "`bascule stream list` shows the existing streams, `bascule stream create NAME` creates one",
    errors.StreamExists: "choose another name; `bascule stream describe NAME` shows the existing stream",
    errors.PartitionPaused: "`bascule stream resume NAME` resumes it, and so does `--resume` of `bascule subscribe`",
    errors.PartitionReadonly: "`bascule stream readonly NAME --off` makes it writable again",
    errors.IncorrectOffset: "`bascule stream describe NAME` shows the newest offset; expect the one after it",
    errors.RecordTooLarge: "split the message, or raise `clustering.replication.max.bytes` of the brokers",
    errors.Unauthenticated: "give a valid token with `--token-file`, or a client certificate with `--tls-cert` and `--tls-key`",
    errors.PermissionDenied: "ask the operator of the brokers, or use another certificate (`--tls-cert`, `--tls-key`)",
    errors.DiskFull: "`bascule doctor` shows how full each server is; `bascule stream set NAME --max-bytes 1GB` removes old messages",
    errors.NotEnoughReplicas: SHORTAGE_HINT,
    errors.DeadlineExceeded: "retry, or raise the timeout with `--timeout 30s`",
}


def explain(error: errors.BasculeError, target: Target) -> None:
    """Replace a hint that names a Python call by one that names a command."""
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), None)
    if isinstance(error, errors.StreamNotFound) and "no partition" in error.message:
        hint = "`bascule stream describe NAME` shows its partitions"
    elif hint is None and isinstance(error, errors.Unavailable):
        where = f"context `{target.name}`" if target.name else "`--server`"
        hint = (
            "check that a broker runs there: `bascule doctor` looks for the cause; start one with `bascule server`, or correct "
            + where
        )
        if "NATS server" in error.message:
            hint = "start nats-server there, or correct `--nats`"
    if hint is not None:
        named = re.search(r"stream `([^`]+)`", error.message)
        error.hint = hint if named is None else hint.replace("NAME", named[1])


def choose(
    server: str | None = None,
    context: str | None = None,
    timeout: str | None = None,
    tls: bool | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    token_file: str | None = None,
    token_plaintext: bool | None = None,
) -> Target:
    """The target that the options select; they override the settings of the context."""
    name, found = contexts.chosen(context, server)
    given: dict[str, Any] = {
        "server": server,
        "timeout": timeout,
        "tls": tls,
        "tls_ca": tls_ca,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "token_file": token_file,
        "token_plaintext": token_plaintext,
    }
    target = Target(name, replace(found, **{option: value for option, value in given.items() if value is not None}))
    values.seconds("--timeout", target.context.timeout)
    _check_server(target.server)
    return target


def _check_server(text: str) -> None:
    from bascule.client.connection.options import addresses

    try:
        addresses(text)
    except errors.InvalidOption:
        raise values.wrong(
            "--server", text, "an address such as `127.0.0.1:9292`, `broker.example` or `[::1]:9292`"
        ) from None


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `target` of a command by the connection options."""

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        target = choose(**{name: given.pop(name) for name in CONNECTION_OPTIONS})
        command(target=target, **given)

    own = [one for name, one in inspect.signature(command, eval_str=True).parameters.items() if name != "target"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in CONNECTION_OPTIONS.items()
    ]
    # typer reads the signature to learn the options, and the annotations to learn their types.
    wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *added]
    )
    wrapper.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    del wrapper.__wrapped__
    return wrapper
