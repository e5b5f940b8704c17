"""The durable log of a Raft node: what it keeps, what it refuses, and that refusing changes nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bascule.errors import DiskFull, FormatTooNew, LogClosed, StateError, StorageError
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import PosixDisk
from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry, EntryKind, HardState, RaftSnapshot
from bascule.raft.disk import DamagedRaftLog, ForeignRaftLog, create_wal, open_wal, wal_exists
from tests.simulation.log.simulated_disk import Operation, SimulatedDisk
from tests.support.raft_cluster import Stored
from tests.support.raft_wals import ABC, DIRECTORY, create, fresh, new_disk, reopen, state_of, stored_state


def command(index: int, term: int = 1, data: bytes = b"some data") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, data, 3, index)


def commands(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(command(index, term) for index in range(first, last + 1))


def filled() -> tuple[SimulatedDisk, Stored]:
    """Three terms, a conflict, several segments and a snapshot."""
    disk = new_disk()
    create(disk)
    wal, _ = reopen(disk)
    stored = fresh()
    for effects in (
        Effects(hard_state=HardState(1, "A"), entries=commands(1, 3)),
        Effects(entries=commands(4, 8)),
        Effects(hard_state=HardState(2, "B"), entries=commands(6, 9, 2)),
        Effects(snapshot_taken=RaftSnapshot(4, 1, ABC, b"the state after four")),
        Effects(entries=commands(10, 12, 2)),
        Effects(hard_state=HardState(4, None)),
        Effects(entries=commands(13, 13, 4)),
        Effects(entries=commands(14, 14, 4)),
    ):
        wal.save(effects)
        stored.save(effects)
    wal.close()
    return disk, stored


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: disk.content(f"{DIRECTORY}/{name}") for name in disk.list_directory(DIRECTORY)}


def check_refused(disk: SimulatedDisk, error: type[Exception], match: str, **identity: str) -> None:
    before, operations = contents(disk), disk.operations
    names = {"cluster_id": "cluster", "server_id": "A", **identity}
    with pytest.raises(error, match=match):
        open_wal(disk, DIRECTORY, cluster_id=names["cluster_id"], server_id=names["server_id"])
    assert (contents(disk), disk.operations) == (before, operations), "a refused directory is left as it is"


# ── keeping ──────────────────────────────────────────────────────────────────────────────────────


def test_a_new_log_holds_its_members_and_nothing_else() -> None:
    disk = new_disk()
    assert not wal_exists(disk, DIRECTORY)
    create(disk)
    assert wal_exists(disk, DIRECTORY)
    _, recovered = reopen(disk)
    assert state_of(recovered) == (HardState(), RaftSnapshot(0, 0, ABC), ())


def test_a_log_is_not_created_over_another() -> None:
    disk, _ = filled()
    before = contents(disk)
    with pytest.raises(StateError, match="already exists"):
        create(disk)
    assert contents(disk) == before


def test_what_is_saved_is_there_again() -> None:
    disk, stored = filled()
    wal, recovered = reopen(disk)
    assert state_of(recovered) == stored_state(stored)
    assert recovered.torn_bytes == 0
    assert len(wal.segments) > 2


def test_several_steps_are_saved_in_their_order() -> None:
    disk = new_disk()
    create(disk)
    wal, _ = reopen(disk)
    stored = fresh()
    steps = [
        Effects(hard_state=HardState(1, "A"), entries=commands(1, 5)),
        Effects(entries=commands(6, 7)),
        Effects(snapshot_taken=RaftSnapshot(3, 1, ABC, b"three")),
        Effects(hard_state=HardState(2, "B"), entries=commands(5, 5, 2)),
    ]
    wal.save(*steps)
    for effects in steps:
        stored.save(effects)
    assert state_of(reopen(disk)[1]) == stored_state(stored)


def test_a_real_directory_keeps_it_too(tmp_path: Path) -> None:
    disk = PosixDisk()
    directory = str(tmp_path / "raft")
    create_wal(disk, directory, cluster_id="c", server_id="s", membership=ABC)
    wal, _ = open_wal(disk, directory, cluster_id="c", server_id="s", segment_bytes=200)
    for index in range(1, 20):
        wal.save(Effects(hard_state=HardState(index, "s"), entries=(command(index, index),)))
    wal.save(Effects(snapshot_taken=RaftSnapshot(10, 10, ABC, b"ten")))
    wal.close()
    _, recovered = open_wal(disk, directory, cluster_id="c", server_id="s")
    assert recovered.hard_state == HardState(19, "s") and recovered.snapshot.data == b"ten"
    assert [entry.index for entry in recovered.entries] == list(range(11, 20))


def test_a_snapshot_drops_the_segments_it_covers() -> None:
    disk = new_disk()
    create(disk)
    wal, _ = reopen(disk)
    wal.save(Effects(hard_state=HardState(1)))
    for index in range(1, 40):
        wal.save(Effects(entries=(command(index),)))
    before = len(wal.segments)
    wal.save(Effects(snapshot_taken=RaftSnapshot(35, 1, ABC, b"")))
    assert before > 8 and len(wal.segments) <= 2
    assert len(disk.list_directory(DIRECTORY)) == len(wal.segments) + 3
    assert [entry.index for entry in reopen(disk)[1].entries] == [36, 37, 38, 39]


def test_an_installed_snapshot_replaces_the_log() -> None:
    disk, _ = filled()
    wal, _ = reopen(disk)
    snapshot = RaftSnapshot(40, 4, ABC, b"forty")
    wal.save(Effects(snapshot_installed=snapshot))
    wal.save(Effects(entries=commands(41, 42, 4)))
    assert state_of(reopen(disk)[1]) == (HardState(4, None), snapshot, commands(41, 42, 4))
    assert len(wal.segments) == 1


@pytest.mark.parametrize("kind", ["taken", "installed"])
def test_a_vote_and_a_snapshot_of_one_step_are_both_kept(kind: str) -> None:
    disk, _ = filled()
    wal, _ = reopen(disk)
    snapshot = RaftSnapshot(12, 2, ABC, b"twelve")
    taken, installed = (snapshot, None) if kind == "taken" else (None, snapshot)
    wal.save(Effects(HardState(9, "C"), snapshot_installed=installed, snapshot_taken=taken))
    recovered = reopen(disk)[1]
    assert recovered.hard_state == HardState(9, "C") and recovered.snapshot == snapshot


# ── syncs ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "effects",
    [
        Effects(hard_state=HardState(7, "B")),
        Effects(entries=commands(15, 16, 4)),
        Effects(snapshot_taken=RaftSnapshot(12, 2, ABC, b"twelve")),
        Effects(snapshot_installed=RaftSnapshot(50, 4, ABC, b"fifty")),
        Effects(hard_state=HardState(7, "B"), entries=commands(11, 16, 7)),
    ],
)
def test_everything_is_on_the_platter_when_save_returns(effects: Effects) -> None:
    disk, stored = filled()
    wal, _ = reopen(disk)
    wal.save(effects)
    stored.save(effects)
    for seed in range(20):
        _, recovered = reopen(disk.crash(random.Random(seed)))
        assert state_of(recovered) == stored_state(stored)


def test_a_step_without_durable_work_touches_nothing() -> None:
    disk, _ = filled()
    wal, _ = reopen(disk)
    before = disk.operations
    wal.save(Effects(), Effects(committed=commands(1, 2)))
    assert disk.operations == before


def test_what_was_only_written_is_synced_before_it_is_believed() -> None:
    """A killed process leaves what it wrote; a power failure after the restart must not take what the restart has acted on."""
    disk, stored = filled()
    wal, _ = reopen(disk, segment_bytes=10_000)
    disk.refuse = lambda operation: StorageError("killed") if operation.kind == "sync" else None
    with pytest.raises(StorageError, match="killed"):
        wal.save(Effects(entries=commands(15, 15, 4)))
    again = disk.kill()
    _, believed = reopen(again)
    assert believed.entries[-1].index == 15, "written, never synced"
    for seed in range(20):
        _, recovered = reopen(again.crash(random.Random(seed)))
        assert recovered.entries == believed.entries
    assert stored.entries[-1].index == 14


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


def test_after_a_failed_write_nothing_more_is_saved() -> None:
    disk, stored = filled()
    wal, _ = reopen(disk)

    def refuse(operation: Operation) -> StorageError | None:
        return DiskFull("no room") if operation.kind == "write" else None

    disk.refuse = refuse
    with pytest.raises(DiskFull):
        wal.save(Effects(entries=commands(15, 15, 4)))
    disk.refuse = None
    with pytest.raises(StorageError, match="earlier write failed"):
        wal.save(Effects(entries=commands(15, 15, 4)))
    assert state_of(reopen(disk)[1]) == stored_state(stored)


def test_after_a_failed_sync_nothing_more_is_saved() -> None:
    disk, _ = filled()
    wal, _ = reopen(disk)
    disk.refuse = lambda operation: StorageError("cannot sync") if operation.kind == "sync" else None
    with pytest.raises(StorageError, match="cannot sync"):
        wal.save(Effects(hard_state=HardState(9, "B")))
    disk.refuse = None
    with pytest.raises(StorageError, match="earlier write failed"):
        wal.save(Effects(hard_state=HardState(9, "B")))


def test_a_closed_log_saves_nothing() -> None:
    disk, _ = filled()
    wal, _ = reopen(disk)
    wal.close()
    wal.close()
    with pytest.raises(LogClosed):
        wal.save(Effects(hard_state=HardState(9, "B")))
    assert disk.open_handles == 0


# ── refusing ─────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_of_another_cluster_or_server_is_refused() -> None:
    disk, _ = filled()
    check_refused(disk, ForeignRaftLog, "belongs to the cluster `cluster`, not to `other`", cluster_id="other")
    check_refused(disk, ForeignRaftLog, "belongs to the server `A`, not to `B`", server_id="B")


def test_a_directory_of_a_newer_version_is_refused() -> None:
    disk, _ = filled()
    content = json.loads(disk.content(f"{DIRECTORY}/state-1").partition(b"\n")[0])
    line = json.dumps({**content, "version": 2, "something": "new"}).encode()
    disk.put(f"{DIRECTORY}/state-1", b"%s\n%08x\n" % (line, crc32c(line)))
    check_refused(disk, FormatTooNew, "version 2")


def test_a_lost_state_stops_the_server() -> None:
    disk, _ = filled()
    for name in ("state-1", "state-2"):
        disk.put(f"{DIRECTORY}/{name}", b"")
    check_refused(disk, DamagedRaftLog, "term and vote of this server are lost")
    for name in ("state-1", "state-2"):
        disk.take_away(f"{DIRECTORY}/{name}")
    check_refused(disk, DamagedRaftLog, "term and vote of this server are lost")


@pytest.mark.parametrize("name", ["state-1", "state-2"])
@pytest.mark.parametrize("damage", [b"", b"garbage\n00000000\n", None])
def test_one_lost_copy_of_the_state_is_made_again(name: str, damage: bytes | None) -> None:
    disk, stored = filled()
    if damage is None:
        disk.take_away(f"{DIRECTORY}/{name}")
    else:
        disk.put(f"{DIRECTORY}/{name}", damage)
    assert state_of(reopen(disk)[1]) == stored_state(stored)
    other = "state-1" if name == "state-2" else "state-2"
    disk.put(f"{DIRECTORY}/{other}", b"")
    assert state_of(reopen(disk)[1]) == stored_state(stored)


def test_a_state_older_than_the_log_stops_the_server() -> None:
    disk, _ = filled()
    content = json.loads(disk.content(f"{DIRECTORY}/state-1").partition(b"\n")[0])
    line = json.dumps({**content, "term": 3}, separators=(",", ":")).encode()
    for name in ("state-1", "state-2"):
        disk.put(f"{DIRECTORY}/{name}", b"%s\n%08x\n" % (line, crc32c(line)))
    check_refused(disk, DamagedRaftLog, "older than the log")


def test_a_missing_file_stops_the_server() -> None:
    disk, _ = filled()
    names = [name for name in disk.list_directory(DIRECTORY) if not name.startswith("state")]
    assert len(names) >= 4
    for name in names:
        damaged = disk.copy()
        damaged.take_away(f"{DIRECTORY}/{name}")
        check_refused(damaged, DamagedRaftLog, "missing")


def test_a_hole_in_the_log_stops_the_server() -> None:
    disk, _ = filled()
    wal, _ = reopen(disk)
    wal.save(Effects(entries=commands(17, 18, 4)))
    wal.close()
    check_refused(disk, DamagedRaftLog, "entries 15 to 16 are missing")


def test_an_empty_segment_in_the_middle_stops_the_server() -> None:
    disk, _ = filled()
    segments = sorted(name for name in disk.list_directory(DIRECTORY) if name.endswith(".wal"))
    for name in segments[:-1]:
        damaged = disk.copy()
        damaged.put(f"{DIRECTORY}/{name}", b"")
        check_refused(damaged, DamagedRaftLog, "no segment begins with")


def test_two_segments_that_changed_places_stop_the_server() -> None:
    disk, _ = filled()
    segments = sorted(name for name in disk.list_directory(DIRECTORY) if name.endswith(".wal"))
    for one in segments:
        for other in segments:
            if one < other:
                damaged = disk.copy()
                damaged.put(f"{DIRECTORY}/{one}", disk.content(f"{DIRECTORY}/{other}"))
                damaged.put(f"{DIRECTORY}/{other}", disk.content(f"{DIRECTORY}/{one}"))
                check_refused(damaged, DamagedRaftLog, "frame")


def test_files_that_do_not_count_are_removed_and_others_left_alone() -> None:
    disk, stored = filled()
    disk.put(f"{DIRECTORY}/00000000000000009999.wal", b"never named")
    disk.put(f"{DIRECTORY}/snapshot-00000000000000000003-00000000000000000001", b"older")
    disk.put(f"{DIRECTORY}/notes.txt", b"somebody's")
    assert state_of(reopen(disk)[1]) == stored_state(stored)
    names = disk.list_directory(DIRECTORY)
    assert "notes.txt" in names
    assert "00000000000000009999.wal" not in names
    assert "snapshot-00000000000000000003-00000000000000000001" not in names


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────


def test_every_flipped_byte_is_an_error_or_a_cut_tail_and_never_another_state() -> None:
    disk, stored = filled()
    whole = stored_state(stored)
    cut = (whole[0], whole[1], whole[2][:-1])
    outcomes = {"same": 0, "cut": 0, "refused": 0}
    for name, data in contents(disk).items():
        for at in range(len(data)):
            for byte in {data[at] ^ 1 << at % 8, 0, 0xFF} - {data[at]}:
                damaged = disk.copy()
                damaged.put(f"{DIRECTORY}/{name}", data[:at] + bytes((byte,)) + data[at + 1 :])
                try:
                    _, recovered = reopen(damaged)
                except (DamagedRaftLog, FormatTooNew):
                    outcomes["refused"] += 1
                    continue
                state = state_of(recovered)
                assert state in (whole, cut), f"{name} byte {at} = {byte:#x}"
                assert (state == cut) is (recovered.torn_bytes > 0)
                outcomes["cut" if state == cut else "same"] += 1
    assert min(outcomes.values()) > 50, outcomes
    last_frame = sum(entry.size_bytes for entry in whole[2][-1:]) + 16
    assert outcomes["cut"] <= 3 * last_frame, "only the last frame may be taken for torn"


def test_a_log_cut_at_any_byte_loses_no_more_than_its_last_frame_or_stops_the_server() -> None:
    disk, stored = filled()
    whole = stored_state(stored)
    for name, data in contents(disk).items():
        for length in range(len(data)):
            damaged = disk.copy()
            damaged.put(f"{DIRECTORY}/{name}", data[:length])
            try:
                _, recovered = reopen(damaged)
            except DamagedRaftLog:
                continue
            state = state_of(recovered)
            assert state[:2] == whole[:2] and state[2] == whole[2][: len(state[2])]
            if state != whole:
                assert name == max(one for one in contents(disk) if one.endswith(".wal"))


def test_garbage_behind_the_log_is_cut() -> None:
    disk, stored = filled()
    last = max(name for name in disk.list_directory(DIRECTORY) if name.endswith(".wal"))
    data = disk.content(f"{DIRECTORY}/{last}")
    for tail in (b"\0", bytes(500), b"\xff" * 33, b"garbage" * 9):
        damaged = disk.copy()
        damaged.put(f"{DIRECTORY}/{last}", data + tail)
        wal, recovered = reopen(damaged)
        assert state_of(recovered) == stored_state(stored) and recovered.torn_bytes == len(tail)
        wal.save(Effects(entries=commands(15, 15, 4)))
        wal.close()
        assert reopen(damaged)[1].entries[-1] == command(15, 4)
