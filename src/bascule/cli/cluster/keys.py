"""`bascule keys status|rotate`: the master keys that encrypted streams are stored under."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

import typer

from bascule.cli.cluster.watch import POLL_SECONDS, DryRun, Wait, patiently
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal.output import note, say, show_json, show_rows
from bascule.cli.terminal.progress import ProgressBar
from bascule.config.values.shown import plural
from bascule.errors import OperatorError, StateError

if TYPE_CHECKING:
    from bascule.client.admin.cluster import ClusterAdmin, ServerKeys
    from bascule.client.client import Client

app = typer.Typer(help="Show and rotate the master keys of encrypted streams.", no_args_is_help=True)

LOAD_SECONDS_MIN: Final = 60.0
"""Minimum timeout of a call that makes servers read their keys: a key command may take 30 seconds."""
SILENT_SECONDS_MAX: Final = 300.0
"""Maximum time without progress while servers count or re-wrap."""
UNKNOWN: Final = "unknown"


# ── status ───────────────────────────────────────────────────────────────────────────────────────


@app.command()
@connected
def status(target: Target, as_json: Json = False) -> None:
    """Show the master keys of each server by their ids, and how many stored batches each key protects.

    Reads all encrypted logs. Exits with code 3 if a server does not answer, has no key, or stores messages under a key that it lacks.
    """
    found = target.run(_status)
    _show(found, as_json=as_json)
    if any(one.error or one.failures or one.uses.get(UNKNOWN) for one in found):
        raise typer.Exit(3)


async def _status(client: Client) -> tuple[ServerKeys, ...]:
    from bascule.client.admin.cluster import ClusterAdmin

    admin = ClusterAdmin(client)
    refused = {one.server: one for one in await admin.keys(count=True) if one.error}
    return tuple(refused.get(one.server, one) for one in await _until_idle(admin, "Counting"))


async def _until_idle(admin: ClusterAdmin, what: str) -> tuple[ServerKeys, ...]:
    """Wait until no server counts or re-wraps. Raises StateError if that makes no progress."""
    import asyncio

    seen, deadline = -1, monotonic() + SILENT_SECONDS_MAX
    with ProgressBar(what) as bar:
        while True:
            found = await patiently(admin.keys)
            if all(one.phase in ("", "idle") for one in found):
                return found
            done = sum(one.bytes_done for one in found)
            total = sum(one.bytes_total for one in found)
            bar.update(done, f"{what}, {done * 100 // max(total, 1)} %")
            if done != seen:
                seen, deadline = done, monotonic() + SILENT_SECONDS_MAX
            elif monotonic() > deadline:
                raise StateError(
                    f"the servers have made no progress for {SILENT_SECONDS_MAX:g} s",
                    hint="see their logs; they continue by themselves",
                )
            await asyncio.sleep(POLL_SECONDS)


def _show(found: Sequence[ServerKeys], *, as_json: bool) -> None:
    if as_json:
        show_json({"servers": [_document(one) for one in found], "removable": sorted(removable(found))})
        return
    show_rows(
        ("Server", "Key", "Role", "Batches", "Source"), [row for one in found for row in _rows(one)], right=("Batches",)
    )
    for one in found:
        for text in _notes(one):
            typer.echo(f"{one.server}: {text}", err=True)
    for key in sorted(removable(found)):
        note(f"nothing is stored under key {key}: it can be removed from the source of every server")


def _rows(one: ServerKeys) -> list[tuple[object, ...]]:
    if one.error:
        return [(one.server, "", "failed", "", one.source)]
    keys = list(dict.fromkeys((*one.known, *sorted(one.uses))))
    return [
        (one.server, key, _role(one, key), one.uses.get(key, 0) if one.is_counted else "", one.source) for key in keys
    ]


def _role(one: ServerKeys, key: str) -> str:
    if key == one.current:
        return "current"
    return "missing" if key == UNKNOWN else "previous"


def _notes(one: ServerKeys) -> list[str]:
    notes = [one.error.partition("\n")[0]] if one.error else []
    if one.closed:
        notes.append(f"{plural(one.closed, 'paused partition')} left out; resume them, then run this again")
    if one.former:
        notes.append(f"{one.former:,} batches are not bound to their stream; `bascule keys rotate` binds them")
    return [*notes, *one.failures]


def _document(one: ServerKeys) -> dict[str, object]:
    return {
        "server": one.server,
        "error": one.error or None,
        "source": one.source,
        "current": one.current or None,
        "known": list(one.known),
        "batches": one.uses if one.is_counted else None,
        "former": one.former,
        "rewrapped": one.rewrapped,
        "paused_partitions": one.closed,
        "failures": list(one.failures),
    }


def removable(found: Sequence[ServerKeys]) -> set[str]:
    """Return the previous keys that protect nothing on any server. Empty unless all servers have counted everything."""
    if not all(one.is_counted and not one.error and not one.closed and not one.failures for one in found):
        return set()
    known = {key for one in found for key in one.known}
    used = {key for one in found for key, batches in one.uses.items() if batches}
    return known - used - {one.current for one in found}


# ── rotate ───────────────────────────────────────────────────────────────────────────────────────


@app.command()
@connected
def rotate(target: Target, dry_run: DryRun = False, wait: Wait = True, as_json: Json = False) -> None:
    """Encrypt new messages under the first key of every server's source, and re-wrap all stored data keys under it.

    First put the new key before the old one into the key file, or the output of the key command, of every server. Messages are
    published and read meanwhile. Repeat the command after a failure: what is done is not done again.
    """
    found = target.run(_rotate, target, dry_run, wait)
    if as_json or dry_run or not wait:
        _show(found, as_json=as_json)
        return
    moved = sum(one.rewrapped for one in found)
    say(f"Key {found[0].current} is current on {plural(len(found), 'server')}; {moved:,} batches were re-wrapped.")
    _show(found, as_json=False)
    if any(one.error or one.failures for one in found):
        raise typer.Exit(3)


async def _rotate(client: Client, target: Target, dry_run: bool, wait: bool) -> tuple[ServerKeys, ...]:
    from bascule.client.admin.cluster import ClusterAdmin

    admin = ClusterAdmin(client)
    timeout = max(target.timeout, LOAD_SECONDS_MIN)
    loaded = await admin.load_keys(timeout=timeout)
    _must_agree(loaded)
    if dry_run:
        return loaded
    switched = await admin.switch_keys(timeout=timeout)
    _must_answer(switched)
    return await _until_idle(admin, "Re-wrapping") if wait else switched


def _must_answer(found: Sequence[ServerKeys]) -> None:
    for one in found:
        if one.error:
            message, _, hint = one.error.partition("\n")
            raise OperatorError(
                f"server {one.server}: {message}",
                hint=hint or "every server must have the new key before one of them uses it",
            )


def _must_agree(found: Sequence[ServerKeys]) -> None:
    """Raises OperatorError unless all servers have read the same new key: a replica must open what its leader writes."""
    _must_answer(found)
    firsts = {one.offered[0]: one.server for one in found if one.offered}
    if len(firsts) > 1:
        listed = ", ".join(f"{key} on {server}" for key, server in sorted(firsts.items()))
        raise OperatorError(
            f"the servers have different first keys: {listed}", hint="put the same key first on every server"
        )
    for one in found:
        for other in found:
            if other.current not in one.known:
                raise OperatorError(
                    f"server {one.server} does not have the key {other.current}, which {other.server} encrypts with",
                    hint=f"add it to {one.source}, after the new key",
                )
