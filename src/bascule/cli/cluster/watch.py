"""Shared by the commands that change a cluster: print a plan, and wait until it is carried out.

On a terminal a bar shows the progress, in a pipe each step is a line. Ctrl-C ends the waiting, not the change.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from bascule.cli.terminal.output import note, say, show_json, show_rows
from bascule.cli.terminal.progress import ProgressBar
from bascule.config.values.shown import plural
from bascule.errors import StateError, Unavailable

if TYPE_CHECKING:
    from bascule.client.admin.cluster import ClusterAdmin, ClusterStatus, Move, PlannedMoves
    from bascule.client.client import Client

POLL_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 60.0
"""Maximum time to wait for a cluster that does not answer while a change is in progress."""
ATTEMPTS_MAX: Final = 5
"""Maximum number of requests for the same plan: waiting moves exist only in the controller's memory and are lost when it changes."""

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the plan without carrying it out.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done, or return while it continues.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="SIZE",
        help="Bytes per second that each server may send to replicas that catch up, such as `50MB`; `off` for no limit.",
        show_default=False,
    ),
]

T = TypeVar("T")


async def patiently(question: Callable[[], Awaitable[T]]) -> T:
    """Retry the question while it raises Unavailable: the broker that was asked may be the one that stops."""
    import asyncio

    deadline = monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await question()
        except Unavailable:
            if monotonic() > deadline:
                raise
            await asyncio.sleep(POLL_SECONDS)


# ── plans ────────────────────────────────────────────────────────────────────────────────────────


def show_plan(found: PlannedMoves) -> None:
    """Print the moves of replicas, then of leaderships; on a terminal also the load of each server before and after."""
    rows = [(one.stream, one.partition, ",".join(one.before), ",".join(one.after)) for one in found.moves]
    rows += [(one.stream, one.partition, f"leader {one.before[0]}", f"leader {one.after[0]}") for one in found.leaders]
    if rows:
        show_rows(("Stream", "Partition", "From", "To"), rows, right=("Partition",))
    if rows and sys.stdout.isatty():
        say("")
        show_rows(
            ("Server", "Replicas", "Then", "Leads", "Will lead"),
            [
                (one.server, one.replicas_before, one.replicas_after, one.leaders_before, one.leaders_after)
                for one in found.load
            ],
            right=("Replicas", "Then", "Leads", "Will lead"),
        )


def plan_document(found: PlannedMoves, *, done: bool) -> dict[str, object]:
    return {
        "moves": [move_document(one) for one in found.moves],
        "leaders": [
            {"stream": one.stream, "partition": one.partition, "from": one.before[0], "to": one.after[0]}
            for one in found.leaders
        ],
        "servers": [
            {
                "id": one.server,
                "partitions": one.replicas_before,
                "partitions_after": one.replicas_after,
                "leads": one.leaders_before,
                "leads_after": one.leaders_after,
            }
            for one in found.load
        ],
        "done": done,
    }


def move_document(one: Move) -> dict[str, object]:
    return {"stream": one.stream, "partition": one.partition, "from": list(one.before), "to": list(one.after)}


# ── carrying out ─────────────────────────────────────────────────────────────────────────────────


async def carry_out(
    client: Client,
    plan: Callable[[ClusterAdmin, bool], Awaitable[PlannedMoves]],
    throttle: str | None,
    *,
    dry_run: bool,
    wait: bool,
    as_json: bool,
    leaders: bool = False,
) -> None:
    """Carry out a plan: `plan(admin, True)` returns it, `plan(admin, False)` also starts it. A new plan has the remaining moves."""
    from bascule.client.admin.cluster import ClusterAdmin

    admin = ClusterAdmin(client)
    if not dry_run:
        await set_throttle(admin, throttle)
    found = await plan(admin, dry_run)
    if not as_json:
        show_plan(found)
    if dry_run or not wait or not (found.moves or found.leaders):
        _conclude(found, dry_run=dry_run, wait=wait, as_json=as_json)
        return
    left = found
    for _ in range(ATTEMPTS_MAX):
        await until_moved(admin, left.moves, leaders=leaders, quiet=as_json)
        left = await patiently(lambda: plan(admin, True))
        if not left.moves:
            break
        left = await patiently(lambda: plan(admin, False))
    else:
        raise StateError(
            f"{plural(len(left.moves), 'partition')} did not move, {left.moves[0].place} among them",
            hint="`bascule cluster status --moves` shows the progress; then run the command again",
        )
    _conclude(found, dry_run=False, wait=True, as_json=as_json)


def _conclude(found: PlannedMoves, *, dry_run: bool, wait: bool, as_json: bool) -> None:
    moved = plural(len(found.moves), "partition")
    led = plural(len(found.leaders), "leadership")
    is_even = not found.moves and not found.leaders
    if as_json:
        show_json(plan_document(found, done=is_even or (wait and not dry_run)))
    elif is_even:
        say("There is nothing to move.")
    elif dry_run:
        say(f"{moved} and {led} would move. Nothing was changed.")
    elif wait:
        say(f"Moved {moved} and {led}." if found.leaders else f"Moved {moved}.")
    else:
        say(f"{moved} will move; `bascule cluster status --moves` shows the progress.")


async def until_moved(admin: ClusterAdmin, moves: Iterable[Move], *, leaders: bool, quiet: bool) -> None:
    """Wait until none of these partitions is moving or waiting, and with `leaders` no leadership either."""
    import asyncio

    left = {one.place: one for one in moves}
    total = len(left)
    stalls: dict[str, str] = {}
    with ProgressBar("Moving partitions", total) as bar:
        while True:
            status = await patiently(lambda: _status_of_moves(admin))
            busy = {one.move.place for one in status.reassignments} | {one.place for one in status.waiting}
            for place in [place for place in left if place not in busy]:
                _report(f"{place} is on {', '.join(left.pop(place).after)}", quiet)
            _report_stalls(status, left, stalls, quiet)
            behind = sum(one.lag_messages for one in status.reassignments if one.move.place in left)
            bar.update(total - len(left), f"Moving partitions, lag {plural(behind, 'message')}")
            if not left and not (leaders and status.leaders_waiting):
                return
            await asyncio.sleep(POLL_SECONDS)


async def _status_of_moves(admin: ClusterAdmin) -> ClusterStatus:
    """The cluster's status. Raises Unavailable without a controller, because waiting moves would be missing from it."""
    found = await admin.status()
    if not found.controller_answers:
        raise Unavailable("the controller does not answer", hint="`bascule cluster status` shows which servers answer")
    return found


def _report_stalls(status: ClusterStatus, left: dict[str, Move], stalls: dict[str, str], quiet: bool) -> None:
    for one in status.reassignments:
        place = one.move.place
        if place in left and stalls.get(place, "") != one.stalled:
            stalls[place] = one.stalled
            if one.stalled:
                _report(f"{place} waits: {one.stalled}", quiet, always=True)


def _report(text: str, quiet: bool, *, always: bool = False) -> None:
    """Print a line in a pipe; on a terminal only with `always`, because the bar shows the rest."""
    if sys.stdout.isatty():
        if always:
            note(text)
    elif not quiet:
        say(text)


async def set_throttle(admin: ClusterAdmin, text: str | None) -> None:
    if text is not None:
        await admin.set_throttle(throttle_bytes("--throttle", text))


def throttle_bytes(option: str, text: str) -> int:
    from bascule.cli.terminal import values

    if text in ("off", "none", "0"):
        return 0
    found = values.size(option, text)
    if not found:
        raise values.wrong(option, text, "a size such as `50MB` or `1MiB`, or `off`")
    return found
