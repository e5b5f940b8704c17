"""`bascule acl …`: the policy of a cluster, and why it allows or denies something."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal.output import note, say, show_json
from bascule.config.values.shown import plural
from bascule.errors import CallerError, InvalidConfig, OperatorError, StateError
from bascule.exits import EXIT_CODES

if TYPE_CHECKING:
    from bascule.client.admin.cluster import ClusterPolicy
    from bascule.client.client import Client
    from bascule.security.authorization import Policy

app = typer.Typer(help="Show and change what users may do.", no_args_is_help=True)

LINES_PER_CALL: Final = 64
"""Lines that a server accepts in one call."""

User = Annotated[
    str | None,
    typer.Argument(help="The user, or a role as `role:NAME`.", show_default=False, metavar="[USER]"),
]
Actions = Annotated[
    str | None,
    typer.Argument(
        help="The calls, separated by commas, such as `Publish,Subscribe`; `*` for all.",
        show_default=False,
        metavar="[ACTIONS]",
    ),
]
Resource = Annotated[
    str | None,
    typer.Argument(
        help="`stream:NAME`, `subject:PATTERN`, `cursor:STREAM`, `group:ID`, `cluster:*`, or `*`.",
        show_default=False,
        metavar="[RESOURCE]",
    ),
]
Role = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="ROLE", help="A role of the user; may be repeated.", show_default=False),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="Take the lines of a policy file instead.", show_default=False),
]


# ── list ─────────────────────────────────────────────────────────────────────────────────────────


@app.command("list")
@connected
def list_policies(target: Target, as_json: Json = False) -> None:
    """Show the policy that the cluster stores. The output is a policy file."""
    found = target.run(_policy)
    if as_json:
        show_json({"policies": [_document(line) for line in found.lines], "admins": list(found.admins)})
        return
    for line in found.lines:
        say(line)
    note(f"Administrators by the configuration of the server: {', '.join(found.admins)}.")


def _document(text: str) -> dict[str, str]:
    from bascule.security.policy.lines import split_line

    kind, values = split_line(text)
    names = ("user", "role") if kind == "g" else ("user", "resource", "action")
    return {"line": text, **dict(zip(names, values, strict=False))}


async def _policy(client: Client) -> ClusterPolicy:
    from bascule.client.admin.cluster import ClusterAdmin

    return await ClusterAdmin(client).policies()


# ── grant and revoke ─────────────────────────────────────────────────────────────────────────────


@app.command()
@connected
def grant(
    target: Target,
    user: User = None,
    actions: Actions = None,
    resource: Resource = None,
    role: Role = None,
    file: PolicyFile = None,
    as_json: Json = False,
) -> None:
    """Allow a user or a role actions on a resource, or put a user into roles. A repeated grant changes nothing."""
    lines = _lines("grant", user, actions, resource, role, file)
    unchanged = target.run(_grant, lines)
    _report("Granted", "was granted before", lines, unchanged, as_json=as_json)


async def _grant(client: Client, lines: Sequence[str]) -> list[str]:
    from bascule.client.admin.cluster import ClusterAdmin

    return await _in_calls(ClusterAdmin(client).grant, lines)


@app.command()
@connected
def revoke(
    target: Target,
    user: User = None,
    actions: Actions = None,
    resource: Resource = None,
    role: Role = None,
    file: PolicyFile = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Revoke everything that was granted to the user, and its roles.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take back what was granted: the same line, not a part of it. Running calls that no line allows any more end."""
    if everything:
        if user is None or actions is not None or resource is not None or role or file is not None:
            raise CallerError("`--all` revokes everything of one user", hint="give USER and `--all` alone")
        lines, unchanged = target.run(_revoke_all, user)
    else:
        lines = _lines("revoke", user, actions, resource, role, file)
        unchanged = target.run(_revoke, lines)
    _report("Revoked", "was not granted", lines, unchanged, as_json=as_json)


async def _revoke(client: Client, lines: Sequence[str]) -> list[str]:
    from bascule.client.admin.cluster import ClusterAdmin

    return await _in_calls(ClusterAdmin(client).revoke, lines)


async def _revoke_all(client: Client, user: str) -> tuple[list[str], list[str]]:
    from bascule.security.policy.lines import split_line

    found = await _policy(client)
    lines = [line for line in found.lines if split_line(line).values[:1] == (user,)]
    return lines, await _revoke(client, lines)


async def _in_calls(change: Callable[[Sequence[str]], Awaitable[tuple[str, ...]]], lines: Sequence[str]) -> list[str]:
    """Change the lines in as many calls as necessary. Each of them can be repeated after a failure."""
    unchanged: list[str] = []
    for start in range(0, len(lines), LINES_PER_CALL):
        unchanged += await change(lines[start : start + LINES_PER_CALL])
    return unchanged


def _lines(
    command: str,
    user: str | None,
    actions: str | None,
    resource: str | None,
    roles: Sequence[str] | None,
    file: Path | None,
) -> list[str]:
    """Return the lines that the arguments name, in canonical form."""
    from bascule.security.policy.lines import PolicyLine
    from bascule.security.policy.resources import ROLE_PREFIX

    if file is not None:
        if user is not None or roles:
            raise CallerError("`--file` has the lines of all users", hint="give `--file` alone")
        return _lines_of(file)
    if user is None or (actions is None and not roles) or (actions is not None and resource is None):
        raise CallerError(
            f"it is not clear what to {command}",
            hint=f"`bascule acl {command} USER ACTIONS RESOURCE`, `… USER --role ROLE`, or `… --file FILE`",
        )
    named = [one.strip() for one in (actions or "").split(",")]
    lines = [PolicyLine("p", (user, resource, action)) for action in named if resource is not None]
    lines += [PolicyLine("g", (user, ROLE_PREFIX + one.removeprefix(ROLE_PREFIX))) for one in roles or ()]
    return list(dict.fromkeys(_checked(line.text) for line in lines))


def _checked(text: str) -> str:
    from bascule.security.policy.lines import MalformedLine, parse_line

    try:
        return parse_line(text).text
    except MalformedLine as error:
        raise CallerError(error.problem, hint=error.hint) from None


def _lines_of(file: Path) -> list[str]:
    from bascule.security.policy.lines import MalformedLine, parse_file

    try:
        found = [line.text for line in parse_file(file.read_text("utf-8"))]
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(
            f"the policy {file} cannot be read: {error}", hint="check the path and its rights"
        ) from None
    except MalformedLine as error:
        raise InvalidConfig(f"{file}, {error.problem}", hint=error.hint) from None
    if not found:
        raise InvalidConfig(
            f"{file} has no lines", hint="lines are `p, <user>, <resource>, <action>` and `g, <user>, role:<name>`"
        )
    return list(dict.fromkeys(found))


def _report(done: str, before: str, lines: Sequence[str], unchanged: Sequence[str], *, as_json: bool) -> None:
    changed = [line for line in lines if line not in set(unchanged)]
    if as_json:
        show_json({"changed": changed, "unchanged": list(unchanged)})
        return
    for line in changed[:LINES_PER_CALL]:
        say(f"{done}: {line}")
    if len(changed) > LINES_PER_CALL:
        say(f"{done}: {plural(len(changed) - LINES_PER_CALL, 'more line')}")
    for line in unchanged[:LINES_PER_CALL]:
        say(f"No change: {line} {before}")
    if not lines:
        say("No change: the user has no lines")


# ── explain ──────────────────────────────────────────────────────────────────────────────────────


@app.command()
@connected
def explain(
    target: Target,
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
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A policy file, `tls.client.authz.policy` of the server. Default: the policy that the cluster stores.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The casbin model of the policy file. Default: the built-in one.", show_default=False
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="A role of the user's token; may be repeated.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether a user may do something, and which line of the policy allows it. Exits with code 3 if none does."""
    from bascule.security import authorization

    if policy is None and model is not None:
        raise CallerError(
            "`--model` needs a policy file", hint="give `--policy FILE` as well; the cluster uses the built-in model"
        )
    found_policy = _stored_policy(target) if policy is None else authorization.read_policy(model, policy)
    found = authorization.explain(found_policy, user, tuple(role or ()), action, resource)
    if as_json:
        show_json({"allowed": found.is_allowed, "line": found.line, "names": list(found.names)})
    elif found.is_allowed:
        say(f"Allowed: {action} on {resource}, by the line `{found.line}`.")
    else:
        names = ", ".join(f"`{name}`" for name in found.names)
        source = "the cluster" if policy is None else policy
        wanted = " or ".join(f"{right} on {name}" for name, right in found.rights)
        if wanted:
            say(f"Denied: no line of {source} allows {wanted} to {names}.")
        else:
            say(f"Denied: no policy can allow {action} on {resource}.")
    if not found.is_allowed:
        raise typer.Exit(EXIT_CODES[StateError])


def _stored_policy(target: Target) -> Policy:
    from bascule.security.policy.builtin import BuiltinPolicy
    from bascule.security.policy.lines import MalformedLine, administrators, parse_line

    found = target.run(_policy)
    lines = administrators(found.admins)
    for text in found.lines:
        with contextlib.suppress(MalformedLine):  # of a later version; it grants nothing that this one knows
            lines.append(parse_line(text))
    return BuiltinPolicy(lines)
