"""What the commands that change a cluster share: showing a plan, and waiting until it is carried out.

On a terminal a bar shows how far it is; in a pipe each step is a line. Whoever stops waiting, with Ctrl-C, stops nothing else.
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
    from bascule.client.admin.cluster import ClusterAdmin, ClusterStatus, Move, Moves

POLL_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 60.0
"""How long a cluster that does not answer is waited for, while something goes on in it."""
ATTEMPTS_MAX: Final = 5
"""What waits is in the controller's memory: as often as another server becomes controller, it is asked for again."""

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and do nothing.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done; otherwise it goes on by itself.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="SIZE",
        help="Set what each server may send to replicas that catch up, in a second, such as `50MB`; `off` for no bound.",
        show_default=False,
    ),
]

T = TypeVar("T")


async def patiently(question: Callable[[], Awaitable[T]]) -> T:
    """Asked again while nobody answers: the broker that was asked may be the one that stops."""
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


def show_plan(found: Moves) -> None:
    """Replicas first, then leaderships; on a terminal also what that makes of each server's share."""
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


def plan_document(found: Moves, *, done: bool) -> dict[str, object]:
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
    admin: ClusterAdmin,
    ask: Callable[[bool], Awaitable[Moves]],
    *,
    dry_run: bool,
    wait: bool,
    as_json: bool,
    leaders: bool = False,
) -> None:
    """`ask` plans, or with False has it done. What is left of it is found by planning again."""
    found = await ask(dry_run)
    if not as_json:
        show_plan(found)
    if dry_run or not wait or not (found.moves or found.leaders):
        _conclude(found, dry_run=dry_run, wait=wait, as_json=as_json)
        return
    left = found
    for _ in range(ATTEMPTS_MAX):
        await until_moved(admin, left.moves, leaders=leaders, quiet=as_json)
        left = await patiently(lambda: ask(True))
        if not left.moves:
            break
        left = await patiently(lambda: ask(False))
    else:
        raise StateError(
            f"{plural(len(left.moves), 'partition')} did not move, {left.moves[0].place} among them",
            hint="`bascule cluster status --moves` shows what goes on; ask again",
        )
    _conclude(found, dry_run=False, wait=True, as_json=as_json)


def _conclude(found: Moves, *, dry_run: bool, wait: bool, as_json: bool) -> None:
    moved = plural(len(found.moves), "partition")
    led = plural(len(found.leaders), "leadership")
    is_even = not found.moves and not found.leaders
    if as_json:
        show_json(plan_document(found, done=is_even or (wait and not dry_run)))
    elif is_even:
        say("There is nothing to move.")
    elif dry_run:
        say(f"{moved} and {led} would move. Nothing was done.")
    elif wait:
        say(f"Moved {moved} and {led}." if found.leaders else f"Moved {moved}.")
    else:
        say(f"{moved} move; `bascule cluster status --moves` shows how far they are.")


async def until_moved(admin: ClusterAdmin, moves: Iterable[Move], *, leaders: bool, quiet: bool) -> None:
    """Until none of these partitions moves or waits to, and with `leaders` no leadership either."""
    import asyncio

    left = {one.place: one for one in moves}
    total = len(left)
    told: dict[str, str] = {}
    with ProgressBar("Moving partitions", total) as bar:
        while True:
            status = await patiently(lambda: _status_of_moves(admin))
            busy = {one.move.place for one in status.reassignments} | {one.place for one in status.waiting}
            for place in [place for place in left if place not in busy]:
                _tell(f"{place} is on {', '.join(left.pop(place).after)}", quiet)
            _tell_stalls(status, left, told, quiet)
            behind = sum(one.lag_messages for one in status.reassignments if one.move.place in left)
            bar.update(total - len(left), f"Moving partitions, {behind:,} messages behind")
            if not left and not (leaders and status.leaders_waiting):
                return
            await asyncio.sleep(POLL_SECONDS)


async def _status_of_moves(admin: ClusterAdmin) -> ClusterStatus:
    """While the controller is silent, or another one is being elected, what waits would look as if it had been done."""
    found = await admin.status()
    if not found.controller_answers:
        raise Unavailable("the controller does not answer", hint="`bascule cluster status` shows who does")
    return found


def _tell_stalls(status: ClusterStatus, left: dict[str, Move], told: dict[str, str], quiet: bool) -> None:
    for one in status.reassignments:
        place = one.move.place
        if place in left and told.get(place, "") != one.stalled:
            told[place] = one.stalled
            if one.stalled:
                _tell(f"{place} waits: {one.stalled}", quiet, always=True)


def _tell(text: str, quiet: bool, *, always: bool = False) -> None:
    """A line in a pipe; on a terminal only what the bar does not show."""
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
    assert found is not None
    if found < 1:
        raise values.wrong(option, text, "a size such as `50MB` or `1MiB`, or `off`")
    return found
