"""`bascule token …`: static tokens in the file of a server."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bascule.cli.target.target import Json
from bascule.cli.terminal import values
from bascule.cli.terminal.output import note, say, show_json, show_rows
from bascule.errors import OperatorError

if TYPE_CHECKING:
    from bascule.security.token_file import StaticToken

app = typer.Typer(help="Create, list and revoke the static tokens of users.", no_args_is_help=True)

File = Annotated[
    Path,
    typer.Option(
        "--file", "-f", metavar="FILE", help="The token file, `security.tokens.file` of the server.", show_default=False
    ),
]
RELOAD_HINT = "Send SIGHUP to the server, or start it, so that it reads the file."


@app.command()
def create(
    user: Annotated[str, typer.Argument(help="The user that the token names.", show_default=False, metavar="USER")],
    file: File,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="A role of the user; may be repeated.", show_default=False),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="How long it is valid, such as `90d`.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the token to a new file instead of the terminal.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Create a token and add its hash to the file. The token is shown once; the file cannot give it back."""
    from bascule.security.identity import Identity
    from bascule.security.token_file import add_token, create_token, read_tokens

    seconds = values.seconds("--expires", expires)
    expires_at = None if seconds is None else float(int(time.time() + seconds))
    text, token = create_token(Identity(user, tuple(dict.fromkeys(role or ())), expires_at))
    if file.exists():
        read_tokens(file)  # raises before a file with the token is written
    if output is not None:
        _write_secret(output, text)
    add_token(file, token)
    if output is None:
        say(text)
    note(f"Added token {token.id} of user `{user}` to {file}. {RELOAD_HINT}")


@app.command("list")
def list_tokens(file: File, as_json: Json = False) -> None:
    """List the tokens of the file: ids, users, roles and expiry."""
    from bascule.security.token_file import read_tokens

    tokens = list(read_tokens(file).values())
    if as_json:
        show_json([_document(token) for token in tokens])
        return
    rows = [
        (token.id, token.identity.name, ", ".join(token.identity.roles) or "–", _expiry(token) or "never")
        for token in tokens
    ]
    show_rows(("Id", "User", "Roles", "Expires"), rows)


@app.command()
def revoke(
    number: Annotated[str, typer.Argument(help="The token's id.", show_default=False, metavar="ID")], file: File
) -> None:
    """Remove a token from the file."""
    from bascule.security.token_file import remove_token

    token = remove_token(file, number)
    say(f"Removed token {token.id} of user `{token.identity.name}`. {RELOAD_HINT}")


def _write_secret(path: Path, text: str) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise OperatorError(f"`--output` {path} cannot be written: {error.strerror}") from None
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{text}\n")


def _expiry(token: StaticToken) -> str | None:
    at = token.identity.expires_at
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _document(token: StaticToken) -> dict[str, object]:
    identity = token.identity
    return {"id": token.id, "user": identity.name, "roles": list(identity.roles), "expires": _expiry(token)}
