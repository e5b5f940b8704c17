"""`bascule acl …`: explains the decisions of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bascule.cli.target.target import Json
from bascule.cli.terminal.output import say, show_json
from bascule.errors import StateError
from bascule.exits import EXIT_CODES

app = typer.Typer(help="Explain what a policy allows.", no_args_is_help=True)


@app.command()
def explain(
    user: Annotated[str, typer.Argument(help="The user.", show_default=False, metavar="USER")],
    action: Annotated[str, typer.Argument(help="The call, such as `Publish`.", show_default=False, metavar="ACTION")],
    resource: Annotated[
        str,
        typer.Argument(
            help="As in the policy: `stream:orders`, `subject:orders.eu`, `cluster:*`.",
            show_default=False,
            metavar="RESOURCE",
        ),
    ],
    policy: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The policy, `tls.client.authz.policy` of the server.", show_default=False),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The casbin model. Default: the built-in one.", show_default=False),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="A role of the user's token; may be repeated.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether a user may do something, and which line of the policy allows it. Exits with code 3 if none does."""
    from bascule.security import authorization

    found = authorization.explain(model, policy, user, tuple(role or ()), action, resource)
    if as_json:
        show_json({"allowed": found.is_allowed, "line": found.line, "names": list(found.names)})
    elif found.is_allowed:
        say(f"Allowed: {action} on {resource}, by the line `{found.line}`.")
    else:
        names = ", ".join(f"`{name}`" for name in found.names)
        say(f"Denied: no line of {policy} allows {action} on {resource} to {names}.")
    if not found.is_allowed:
        raise typer.Exit(EXIT_CODES[StateError])
