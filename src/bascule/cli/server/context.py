"""`bascule context …`: named clusters."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from bascule.cli.target import completion
from bascule.cli.target import saved_clusters as contexts
from bascule.cli.target.saved_clusters import Context
from bascule.cli.target.target import Json, Target
from bascule.cli.terminal import values
from bascule.cli.terminal.output import say, show_facts, show_json, show_rows
from bascule.errors import StateError

app = typer.Typer(help="Name clusters, and choose the current one.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="The context.", show_default=False, autocompletion=completion.contexts, metavar="NAME")
]
_FILES: Final = ("tls_ca", "tls_cert", "tls_key", "token_file")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A name of your choice.", show_default=False, metavar="NAME")],
    server: Annotated[
        str, typer.Option("--server", "-s", metavar="HOST:PORT", help="A broker, or several separated by commas.")
    ] = contexts.SERVER_DEFAULT,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Use TLS and verify the server with the system's certificate authorities."),
    ] = False,
    tls_ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Use TLS and trust this certificate authority (PEM).", show_default=False),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Use TLS with this client certificate (PEM).", show_default=False),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Key of the client certificate (PEM).", show_default=False)
    ] = None,
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File that holds the access token.", show_default=False)
    ] = None,
    token_plaintext: Annotated[
        bool, typer.Option("--token-plaintext", help="Send the token without TLS, to a broker on this machine only.")
    ] = False,
    nats: Annotated[
        str | None, typer.Option(metavar="URL", help="The cluster's NATS server, for `doctor`.", show_default=False)
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Timeout of a request.", show_default=False)
    ] = None,
    use: Annotated[
        bool, typer.Option("--use", help="Make it the current context. The first context always becomes current.")
    ] = False,
    replaces: Annotated[bool, typer.Option("--replace", help="Replace the context of this name.")] = False,
) -> None:
    """Add a context. It does not connect; `bascule doctor` checks the connection."""
    from bascule.cli.target.target import choose

    contexts.check_name(name)
    choose(server=server, timeout=timeout)  # raises if a value is invalid
    files = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key, "token_file": token_file}
    context = Context(
        server=server,
        tls=tls,
        token_plaintext=token_plaintext,
        nats=nats,
        timeout=timeout,
        **{kind: _file(kind, one) for kind, one in files.items()},
    )
    known = contexts.load()
    if name in known.contexts and not replaces:
        raise StateError(f"context `{name}` exists already", hint="give `--replace`, or choose another name")
    known.contexts[name] = context
    if use or known.current is None:
        known.current = name
    contexts.save(known)
    suffix = " It is the current context." if known.current == name else f" `bascule context use {name}` selects it."
    say(f"Added context `{name}`: {context.server}.{suffix}")


def _file(option: str, text: str | None) -> str | None:
    """The absolute path of a file, because a context is used in any directory."""
    if text is None:
        return None
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise values.wrong("--" + option.replace("_", "-"), text, "a file that exists")
    return str(path)


@app.command("list")
def list_contexts(as_json: Json = False) -> None:
    """List the contexts; `*` marks the current one."""
    known = contexts.load()
    current = _current(known)
    if as_json:
        show_json([_document(name, one, name == current) for name, one in sorted(known.contexts.items())])
        return
    if not known.contexts and sys.stdout.isatty():
        say("There are no contexts yet; `bascule context add NAME --server HOST:PORT` adds one.")
        return
    rows = [
        ("*" if name == current else "", name, one.server, "yes" if Target(name, one).speaks_tls else "no")
        for name, one in sorted(known.contexts.items())
    ]
    show_rows(("", "Name", "Server", "TLS"), rows)


@app.command()
def use(name: Name) -> None:
    """Make this context the current one. `--context`, `--server` and `BASCULE_CONTEXT` override it."""
    known = contexts.load()
    context = known.get(name)
    known.current = name
    contexts.save(known)
    say(f"The current context is `{name}`: {context.server}.")


@app.command()
def remove(name: Name) -> None:
    """Remove a context. The cluster itself is not changed."""
    known = contexts.load()
    known.get(name)
    del known.contexts[name]
    if known.current == name:
        known.current = None
    contexts.save(known)
    say(f"Removed context `{name}`.")


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The context. Default: the current one.", show_default=False, autocompletion=completion.contexts
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the settings of a context, and the file that holds it."""
    known = contexts.load()
    wanted = name or _current(known)
    if wanted is None:
        raise StateError(
            "there is no current context",
            hint="`bascule context use NAME` selects one, `bascule context add NAME` adds one",
        )
    document = _document(wanted, known.get(wanted), wanted == _current(known))
    if as_json:
        show_json(document)
    else:
        show_facts([*document.items(), ("file", contexts.file_path())])


def _current(known: contexts.Contexts) -> str | None:
    import os

    return os.environ.get(contexts.VARIABLE) or known.current


def _document(name: str, context: Context, is_current: bool) -> dict[str, object]:
    full = replace(context, timeout=context.timeout or "5s")
    return {"name": name, "current": is_current, **full.document()}
