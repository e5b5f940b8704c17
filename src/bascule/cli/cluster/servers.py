"""`bascule cluster drain|add|remove`: takes servers into and out of service."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli.cluster.watch import (
    POLL_SECONDS,
    DryRun,
    Throttle,
    Wait,
    Yes,
    carry_out,
    move_document,
    patiently,
    set_throttle,
)
from bascule.cli.target import completion
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal.output import say, show_json, show_rows
from bascule.cli.terminal.progress import ProgressBar
from bascule.config.values.shown import plural
from bascule.errors import CallerError, InvalidOption, StateError, Unavailable

if TYPE_CHECKING:
    from bascule.client.admin.cluster import ClusterAdmin, KeptPartition, Removal
    from bascule.client.client import Client

HAND_OVER_SECONDS_MIN: Final = 60.0
"""Minimum timeout of a drain: a server with thousands of partitions needs longer than the usual timeout."""
STOP_SECONDS_MAX: Final = 300.0
"""Maximum time to wait for a drained server to stop."""

ServerId = Annotated[
    str,
    typer.Argument(help="Id of the server.", show_default=False, autocompletion=completion.servers, metavar="SERVER"),
]


# ── drain ────────────────────────────────────────────────────────────────────────────────────────


@connected
def drain(
    target: Target,
    name: ServerId,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Do not stop the server; it gets no leaderships and no new replicas.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="End `--keep-running`: the server gets partitions again.")
    ] = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Move all leaderships of a server to other servers, then stop it. Publishers and subscribers continue with the others."""
    if keep_running and undo:
        raise InvalidOption("`--keep-running` and `--undo` are given together", hint="choose one of them")
    target.run(_drain, target, name, keep_running, undo, wait, as_json)


async def _drain(
    client: Client, target: Target, name: str, keep_running: bool, undo: bool, wait: bool, as_json: bool
) -> None:
    from bascule.client.admin.cluster import ClusterAdmin

    admin = ClusterAdmin(client)
    timeout = max(target.timeout, HAND_OVER_SECONDS_MIN) if keep_running else None
    is_alone = len((await client.fetch_metadata([])).brokers) < 2
    kept = await admin.drain(name, keep_running=keep_running, undo=undo, timeout=timeout)
    stopped = False
    if not (keep_running or undo) and wait:
        stopped = await _until_stopped(admin, name, is_alone=is_alone)
    if as_json:
        show_json({"server": name, "stopped": stopped, "kept": [_kept_document(one) for one in kept]})
    elif undo:
        say(f"`{name}` can get partitions again. `bascule cluster rebalance` moves some to it now.")
    elif keep_running:
        _show_kept(kept)
        say(f"`{name}` leads no partition that another server can lead, and gets no partitions. `--undo` reverts this.")
    else:
        say(f"`{name}` has stopped." if stopped else f"`{name}` hands over its leaderships, then stops.")


def _show_kept(kept: tuple[KeptPartition, ...]) -> None:
    if kept:
        show_rows(
            ("Stream", "Partition", "Still leads, because"),
            [(one.stream, one.partition, one.reason) for one in kept],
            right=("Partition",),
        )


def _kept_document(one: KeptPartition) -> dict[str, object]:
    return {"stream": one.stream, "partition": one.partition, "reason": one.reason}


async def _until_stopped(admin: ClusterAdmin, name: str, *, is_alone: bool) -> bool:
    """Wait until the server does not answer any more. Raises StateError after STOP_SECONDS_MAX."""
    import asyncio

    deadline = monotonic() + STOP_SECONDS_MAX
    most = 0
    with ProgressBar(f"Draining {name}") as bar:
        while monotonic() < deadline:
            try:
                member = (await admin.status()).member(name)
            except Unavailable:
                if is_alone:
                    return True
                member = None
            if member is not None and not member.answers:
                return True
            if member is not None:
                most = max(most, member.leaders)
                bar.update(most - member.leaders, f"Draining {name}, it leads {plural(member.leaders, 'partition')}")
            await asyncio.sleep(POLL_SECONDS)
    raise StateError(f"`{name}` still runs after {STOP_SECONDS_MAX:.0f} s", hint="its log says what it waits for")


# ── add ──────────────────────────────────────────────────────────────────────────────────────────


@connected
def add(
    target: Target,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Ids of the servers.", show_default=False, autocompletion=completion.servers, metavar="SERVER..."
        ),
    ],
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Move replicas to servers that have joined the cluster. A server joins when it is started: see the guide."""
    target.run(
        carry_out,
        lambda admin, dry: admin.add_servers(names, dry_run=dry),
        throttle,
        dry_run=dry_run,
        wait=wait,
        as_json=as_json,
        leaders=True,
    )


# ── remove ───────────────────────────────────────────────────────────────────────────────────────


@connected
def remove(
    target: Target,
    name: ServerId,
    force: Annotated[
        bool, typer.Option("--force", help="Accept the loss of messages that only this server has.")
    ] = False,
    yes: Yes = False,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Move all replicas away from a server, dead or alive, and remove it from the cluster. If interrupted, run it again to continue."""
    target.run(_remove, name, force, yes, throttle, dry_run, wait, as_json)


async def _remove(
    client: Client,
    name: str,
    force: bool,
    yes: bool,
    throttle: str | None,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    from bascule.client.admin.cluster import ClusterAdmin

    admin = ClusterAdmin(client)
    planned = await admin.remove_server(name, dry_run=True)
    if not as_json:
        _show_removal(planned)
    if dry_run:
        if as_json:
            show_json(_removal_document(name, planned))
        else:
            say(f"{plural(planned.replicas_left, 'replica')} would move. Nothing was changed.")
        return
    _check_blocked(name, planned, force, yes)
    await set_throttle(admin, throttle)
    found = await admin.remove_server(name, force=force)
    if wait:
        found = await _until_removed(admin, name, force, found, quiet=as_json)
    if as_json:
        show_json(_removal_document(name, found))
    elif found.removed:
        say(f"`{name}` is removed from the cluster. If it still runs, it stops by itself.")
    else:
        say(f"`{name}` is being removed: {found.state}. Run `bascule cluster remove {name}` again to complete it.")


def _show_removal(planned: Removal) -> None:
    if planned.moves:
        show_rows(
            ("Stream", "Partition", "From", "To"),
            [(one.stream, one.partition, ",".join(one.before), ",".join(one.after)) for one in planned.moves],
            right=("Partition",),
        )


def _check_blocked(name: str, planned: Removal, force: bool, yes: bool) -> None:
    """Refuse a removal that loses messages, unless `--force` is given and the user confirms."""
    if not planned.blocked:
        return
    places = ", ".join(f"{one.stream}/{one.partition} ({one.reason})" for one in planned.blocked[:5])
    more = f" and {len(planned.blocked) - 5} more" if len(planned.blocked) > 5 else ""
    if not force:
        raise StateError(
            f"`{name}` does not answer, and only it has all messages of {places}{more}",
            hint="start the server again; or elect another replica with `bascule cluster elect`, or accept the loss with `--force`",
        )
    if yes:
        return
    if not sys.stdin.isatty():
        raise CallerError(f"messages of {places}{more} would be lost", hint="give `--yes` to confirm")
    if typer.prompt(f"Messages of {places}{more} would be lost. Type `{name}` to confirm", err=True) != name:
        raise typer.Exit(1)


def _removal_document(name: str, found: Removal) -> dict[str, Any]:
    return {
        "server": name,
        "removed": found.removed,
        "replicas_left": found.replicas_left,
        "state": found.state,
        "moves": [move_document(one) for one in found.moves],
        "blocked": [{**_kept_document(one), "replicas": list(one.replicas)} for one in found.blocked],
    }


async def _continue_removal(admin: ClusterAdmin, name: str, force: bool) -> Removal:
    """The next step of the removal. A refusal is retried: the plan was possible a moment ago, and a server may pause briefly."""
    try:
        return await admin.remove_server(name, force=force)
    except StateError as error:
        raise Unavailable(error.message, hint=error.hint) from None


async def _until_removed(admin: ClusterAdmin, name: str, force: bool, found: Removal, *, quiet: bool) -> Removal:
    import asyncio
    from dataclasses import replace

    total = found.replicas_left
    reported = -1
    with ProgressBar(f"Removing {name}", total or None) as bar:
        while not found.removed:
            if found.blocked:
                _check_blocked(name, found, force, True)
            if found.replicas_left != reported and not quiet and not sys.stdout.isatty():
                say(f"{plural(found.replicas_left, 'replica')} left on `{name}`")
            reported = found.replicas_left
            bar.update(max(0, total - found.replicas_left), f"Removing {name}")
            await asyncio.sleep(POLL_SECONDS)
            try:
                found = await patiently(lambda: _continue_removal(admin, name, force))
            except CallerError as error:
                if "no server of the cluster" not in error.message:
                    raise
                # An earlier call removed the server, but its answer was lost.
                found = replace(found, removed=True, replicas_left=0, state="")
    return found
