"""Which cluster a command speaks to. `@connected` gives a command the options for it, and a `Target` to connect with.

    @app.command("list")
    @connected
    def list_streams(target: Target, …) -> None:
        target.run(_list, …)              # async def _list(client, …)

Also here: errors of the client, whose hints speak Python, get hints that speak shell.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

import typer

from bascule import errors
from bascule.cli.target import saved_clusters as contexts
from bascule.cli.target.saved_clusters import Context
from bascule.cli.terminal import values

if TYPE_CHECKING:
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
        help="A broker, or several with commas. Without it, the context says, else 127.0.0.1:9292.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A context of `bascule context list`. `BASCULE_CONTEXT` does the same.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long an answer may take, such as `2s`. Without it 5s.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Tls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls",
        help="Speak TLS, checked with the system's authorities.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Trust this authority (PEM). Speaks TLS.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Our certificate (PEM). Speaks TLS.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(
        "--tls-key", metavar="FILE", help="The key of our certificate (PEM).", rich_help_panel=PANEL, show_default=False
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file", metavar="FILE", help="A file with the token to show.", rich_help_panel=PANEL, show_default=False
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
}


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that was chosen. Nothing is connected yet."""

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
        """For `bascule.connect`."""
        from bascule.client.connection.options import TlsOptions

        context = self.context
        tls = TlsOptions(ca=context.tls_ca, cert=context.tls_cert, key=context.tls_key) if self.speaks_tls else None
        return {"tls": tls, "timeout": self.timeout, "token": contexts.read_token(context.token_file)}

    def run(
        self, command: Callable[Concatenate[Client, P], Awaitable[T]], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Connect, do it, leave. Errors say what to type next."""
        import asyncio

        async def connected() -> T:
            import bascule

            async with bascule.connect(self.server, **self.client_options()) as client:
                return await command(client, *arguments, **options)

        try:
            with asyncio.Runner() as runner:
                return runner.run(connected())
        except errors.BasculeError as error:
            explain(error, self)
            raise


_HINTS: Final[dict[type[errors.BasculeError], str]] = {
    errors.StreamDeleted: "`bascule stream list` shows the streams there are",
    errors.StreamNotFound: "`bascule stream list` shows the streams there are, `bascule stream create NAME` makes one",
    errors.StreamExists: "choose another name, or look at it with `bascule stream describe NAME`",
    errors.PartitionPaused: "`bascule stream resume NAME` wakes it, and so does `--resume` of `bascule subscribe`",
    errors.PartitionReadonly: "`bascule stream readonly NAME --off` has it take messages again",
    errors.IncorrectOffset: "`bascule stream describe NAME` shows the newest offset; the next one is to be expected",
    errors.RecordTooLarge: "split the message, or raise `clustering.replication.max.bytes` of the brokers",
    errors.PermissionDenied: "ask whoever keeps the broker's policy, or show another certificate (`--tls-cert`, `--tls-key`)",
    errors.DeadlineExceeded: "try again, or give it more time with `--timeout 30s`",
}


def explain(error: errors.BasculeError, target: Target) -> None:
    """Replace a hint that speaks of Python by one that can be typed."""
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), None)
    if isinstance(error, errors.StreamNotFound) and "no partition" in error.message:
        hint = "`bascule stream describe NAME` shows its partitions"
    elif hint is None and isinstance(error, errors.Unavailable):
        where = f"context `{target.name}`" if target.name else "`--server`"
        hint = (
            "is a broker there? `bascule doctor` looks for the reason; start one with `bascule server`, or correct "
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
) -> Target:
    """What the options ask for, on top of the context's settings."""
    name, found = contexts.chosen(context, server)
    given: dict[str, Any] = {
        "server": server,
        "timeout": timeout,
        "tls": tls,
        "tls_ca": tls_ca,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "token_file": token_file,
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
    """Give a command the options of a connection in place of its parameter `target`."""

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
