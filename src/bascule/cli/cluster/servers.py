"""`bascule cluster drain|add|remove`: servers come, rest and go."""

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
    from bascule.client.admin.cluster import ClusterAdmin, Kept, Moves, Removal
    from bascule.client.client import Client

HAND_OVER_SECONDS_MIN: Final = 60.0
"""A server with thousands of partitions takes longer to hand them over than most calls may take."""
STOP_SECONDS_MAX: Final = 300.0

ServerId = Annotated[
    str,
    typer.Argument(help="Its id.", show_default=False, autocompletion=completion.servers, metavar="SERVER"),
]


# ── drain ────────────────────────────────────────────────────────────────────────────────────────


@connected
def drain(
    target: Target,
    name: ServerId,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Do not stop it; it leads nothing and is given nothing.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="After `--keep-running`: give it partitions again.")] = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Have a server hand over everything it leads, and stop. Publishers and subscribers go on with the others."""
    if keep_running and undo:
        raise InvalidOption("`--keep-running` and `--undo` do not go together", hint="say one of them")
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
        say(f"`{name}` is given partitions again. `bascule cluster rebalance` gives it some now.")
    elif keep_running:
        _show_kept(kept)
        say(f"`{name}` leads nothing that another server can lead, and is given nothing. `--undo` takes that back.")
    else:
        say(f"`{name}` has stopped." if stopped else f"`{name}` hands over what it leads, and stops.")


def _show_kept(kept: tuple[Kept, ...]) -> None:
    if kept:
        show_rows(
            ("Stream", "Partition", "Stays, because"),
            [(one.stream, one.partition, one.reason) for one in kept],
            right=("Partition",),
        )


def _kept_document(one: Kept) -> dict[str, object]:
    return {"stream": one.stream, "partition": one.partition, "reason": one.reason}


async def _until_stopped(admin: ClusterAdmin, name: str, *, is_alone: bool) -> bool:
    """Until it does not answer any more. Raises StateError when it still does after a long time."""
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
    raise StateError(f"`{name}` still runs", hint="its log says what it waits for")


# ── add ──────────────────────────────────────────────────────────────────────────────────────────


@connected
def add(
    target: Target,
    names: Annotated[
        list[str],
        typer.Argument(help="Their ids.", show_default=False, autocompletion=completion.servers, metavar="SERVER..."),
    ],
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Give servers that have joined their share of the replicas. To have one join, start it: see the guide."""
    target.run(_add, names, throttle, dry_run, wait, as_json)


async def _add(
    client: Client, names: list[str], throttle: str | None, dry_run: bool, wait: bool, as_json: bool
) -> None:
    from bascule.client.admin.cluster import ClusterAdmin

    admin = ClusterAdmin(client)

    async def ask(dry: bool) -> Moves:
        return await admin.add_servers(names, dry_run=dry)

    if not dry_run:
        await set_throttle(admin, throttle)
    await carry_out(admin, ask, dry_run=dry_run, wait=wait, as_json=as_json, leaders=True)


# ── remove ───────────────────────────────────────────────────────────────────────────────────────


@connected
def remove(
    target: Target,
    name: ServerId,
    force: Annotated[
        bool, typer.Option("--force", help="Give up messages that only this server has, if it is gone for good.")
    ] = False,
    yes: Yes = False,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Move everything away from a server, dead or alive, and take it out of the cluster. Asked again, it goes on where it was."""
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
            say(f"{plural(planned.replicas_left, 'replica')} would move. Nothing was done.")
        return
    _check_blocked(name, planned, force, yes)
    await set_throttle(admin, throttle)
    found = await admin.remove_server(name, force=force)
    if wait:
        found = await _until_removed(admin, name, force, found, quiet=as_json)
    if as_json:
        show_json(_removal_document(name, found))
    elif found.removed:
        say(f"`{name}` is no server of the cluster any more. If it runs, it stops by itself.")
    else:
        say(f"`{name}` is on its way out: {found.state}. Say `bascule cluster remove {name}` again to complete it.")


def _show_removal(planned: Removal) -> None:
    if planned.moves:
        show_rows(
            ("Stream", "Partition", "From", "To"),
            [(one.stream, one.partition, ",".join(one.before), ",".join(one.after)) for one in planned.moves],
            right=("Partition",),
        )


def _check_blocked(name: str, planned: Removal, force: bool, yes: bool) -> None:
    """What only a dead server has is not given up without somebody saying so."""
    if not planned.blocked:
        return
    places = ", ".join(f"{one.stream}/{one.partition} ({one.reason})" for one in planned.blocked[:5])
    more = f" and {len(planned.blocked) - 5} more" if len(planned.blocked) > 5 else ""
    if not force:
        raise StateError(
            f"`{name}` does not answer, and only it has all messages of {places}{more}",
            hint="start it again; or choose what to lose with `bascule cluster elect`, or lose it all with `--force`",
        )
    if yes:
        return
    if not sys.stdin.isatty():
        raise CallerError(f"messages of {places}{more} would be lost", hint="say `--yes` if that is meant")
    if typer.prompt(f"Messages of {places}{more} would be lost. Type `{name}` to go on", err=True) != name:
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


async def _go_on(admin: ClusterAdmin, name: str, force: bool) -> Removal:
    """It could be done a moment ago: a server that takes over and stands still for a second is waited for."""
    try:
        return await admin.remove_server(name, force=force)
    except StateError as error:
        raise Unavailable(error.message, hint=error.hint) from None


async def _until_removed(admin: ClusterAdmin, name: str, force: bool, found: Removal, *, quiet: bool) -> Removal:
    import asyncio
    from dataclasses import replace

    total = found.replicas_left
    told = -1
    with ProgressBar(f"Removing {name}", total or None) as bar:
        while not found.removed:
            if found.blocked:
                _check_blocked(name, found, force, True)
            if found.replicas_left != told and not quiet and not sys.stdout.isatty():
                say(f"{plural(found.replicas_left, 'replica')} left on `{name}`")
            told = found.replicas_left
            bar.update(max(0, total - found.replicas_left), f"Removing {name}")
            await asyncio.sleep(POLL_SECONDS)
            try:
                found = await patiently(lambda: _go_on(admin, name, force))
            except CallerError as error:
                if "no server of the cluster" not in error.message:
                    raise
                # It was done, and the answer to that call was lost.
                found = replace(found, removed=True, replicas_left=0, state="")
    return found
