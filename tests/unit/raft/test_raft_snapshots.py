"""Snapshots and compaction: paper §7, and what can race with them."""

from __future__ import annotations

import pytest

from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry, EntryKind, RaftSnapshot
from bascule.raft.core.model.events import ChangeMembership, TakeSnapshot
from bascule.raft.core.model.membership import AddLearner
from bascule.raft.core.model.messages import AppendEntries, AppendReply, SnapshotChunk, SnapshotReply
from tests.support.raft_cluster import OPTIONS, Cluster, members, with_options

ABC = members("ABC")


def command(index: int, term: int = 1) -> Entry:
    return Entry(index, term, EntryKind.COMMAND, b"%d" % index)


def commands(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(command(index, term) for index in range(first, last + 1))


def chunk(index: int, data: bytes = b"state", *, term: int = 1, snapshot_term: int = 1, **more: int) -> SnapshotChunk:
    total, position = more.get("total", len(data)), more.get("position", 0)
    return SnapshotChunk("A", "B", term, index, snapshot_term, ABC, total, position, data)


def filled(options: object = OPTIONS, entries: int = 10) -> Cluster:
    assert isinstance(options, type(OPTIONS))
    cluster = Cluster("ABC", options=options)
    cluster.elect("A")
    cluster.isolate("C")
    for number in range(entries):
        cluster.propose("A", b"%d" % number)
        cluster.settle()
    return cluster


# ── taking ───────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_drops_the_log_before_it_but_a_few_entries() -> None:
    cluster = filled()
    effects = cluster.step("A", TakeSnapshot(9, b"state"))
    assert effects.snapshot_taken == RaftSnapshot(9, 1, ABC, b"state")
    assert cluster["A"].log_offset == 9 - OPTIONS.trailing_entries and cluster["A"].last_index == 11
    assert cluster.step("A", TakeSnapshot(9, b"again")) == Effects()
    assert cluster.step("A", TakeSnapshot(4, b"older")) == Effects()


def test_a_snapshot_of_what_was_not_applied_is_a_bug() -> None:
    cluster = filled()
    cluster.propose("A")
    with pytest.raises(AssertionError, match="applied"):
        cluster.step("A", TakeSnapshot(12, b"state"))


def test_a_snapshot_carries_the_membership_of_its_index_not_a_later_one() -> None:
    cluster = filled()
    cluster.step("A", ChangeMembership(1, AddLearner("D")))
    cluster.settle()
    effects = cluster.step("A", TakeSnapshot(5, b"state"))
    assert effects.snapshot_taken is not None and effects.snapshot_taken.membership == ABC
    effects = cluster.step("A", TakeSnapshot(12, b"state"))
    assert effects.snapshot_taken is not None and effects.snapshot_taken.membership == members("ABC", "D")


# ── sending ──────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_that_is_too_far_behind_gets_the_snapshot_in_chunks() -> None:
    cluster = filled(with_options(snapshot_chunk_bytes=10))
    state = bytes(range(95))
    cluster.step("A", TakeSnapshot(11, state))
    cluster.propose("A", b"behind")
    cluster.settle()
    cluster.heal()
    cluster.tick("A", times=OPTIONS.heartbeat_ticks)
    chunks = []
    for _ in range(60):
        chunks += [message for message in cluster.deliver() if isinstance(message, SnapshotChunk)]
    assert [len(one.data) for one in chunks] == [10] * 9 + [5]
    installed = [one.snapshot_installed for one in cluster.effects["C"] if one.snapshot_installed is not None]
    assert installed == [RaftSnapshot(11, 1, ABC, state)]
    assert cluster.data("C") == [b"behind"] and cluster["C"].commit_index == 12


@pytest.mark.parametrize("lost", range(12))
def test_a_lost_chunk_or_answer_is_repeated(lost: int) -> None:
    cluster = filled(with_options(snapshot_chunk_bytes=10))
    cluster.step("A", TakeSnapshot(11, bytes(range(50))))
    cluster.heal()
    seen = 0

    def passes(message: object) -> bool:
        nonlocal seen
        if isinstance(message, (SnapshotChunk, SnapshotReply)):
            seen += 1
            return seen != lost
        return True

    for _ in range(4 * OPTIONS.election_ticks):
        cluster.tick()
        cluster.settle(passes)
    assert cluster["C"].snapshot == RaftSnapshot(11, 1, ABC, bytes(range(50)))


def test_a_follower_that_restarts_in_the_middle_gets_it_from_the_beginning() -> None:
    cluster = filled(with_options(snapshot_chunk_bytes=10))
    cluster.step("A", TakeSnapshot(11, bytes(range(50))))
    cluster.heal()
    cluster.tick("A", times=OPTIONS.heartbeat_ticks)
    for _ in range(8):
        cluster.deliver()
    cluster.restart("C")
    cluster.run(4 * OPTIONS.election_ticks)
    assert cluster["C"].snapshot.data == bytes(range(50))


def test_an_empty_snapshot_is_one_chunk() -> None:
    cluster = filled()
    cluster.step("A", TakeSnapshot(11, b""))
    cluster.heal()
    cluster.run(2 * OPTIONS.heartbeat_ticks)
    assert cluster["C"].snapshot == RaftSnapshot(11, 1, ABC, b"")


# ── receiving, and racing an append ──────────────────────────────────────────────────────────────


def test_a_snapshot_that_appends_have_overtaken_changes_nothing() -> None:
    cluster = Cluster("ABC")
    cluster.receive(AppendEntries("A", "B", 1, 0, 0, commands(1, 5), 5))
    effects = cluster.receive(chunk(4))
    assert effects == Effects(messages=(AppendReply("B", "A", 1, True, 5),))


def test_a_snapshot_of_an_entry_in_the_log_only_commits_it() -> None:
    cluster = Cluster("ABC")
    cluster.receive(AppendEntries("A", "B", 1, 0, 0, commands(1, 6), 2))
    effects = cluster.receive(chunk(4))
    assert effects.snapshot_installed is None and effects.committed == commands(3, 4)
    assert cluster["B"].last_index == 6, "what lies behind may be acknowledged and stays"


def test_a_snapshot_replaces_a_log_that_differs_at_its_index() -> None:
    """The log is long enough, but of another term: its entries are not what the snapshot holds."""
    cluster = Cluster("ABC")
    cluster.receive(AppendEntries("C", "B", 1, 0, 0, commands(1, 6), 2))
    effects = cluster.receive(chunk(4, term=3, snapshot_term=2))
    assert effects.snapshot_installed == RaftSnapshot(4, 2, ABC, b"state")
    assert effects.committed == () and cluster["B"].last_index == 4 and cluster["B"].applied_index == 4


def test_entries_behind_an_installed_snapshot_are_applied_once_and_in_order() -> None:
    cluster = Cluster("ABC")
    cluster.receive(AppendEntries("A", "B", 1, 0, 0, commands(1, 3), 3))
    cluster.receive(chunk(5))
    effects = cluster.receive(AppendEntries("A", "B", 1, 5, 1, commands(6, 8), 8))
    assert [entry.index for entry in effects.committed] == [6, 7, 8]
    assert [entry.index for entry in cluster.applied["B"]] == [1, 2, 3, 6, 7, 8]


def test_an_append_that_a_snapshot_has_overtaken_is_accepted_and_changes_nothing() -> None:
    cluster = Cluster("ABC")
    cluster.receive(chunk(5))
    effects = cluster.receive(AppendEntries("A", "B", 1, 2, 1, commands(3, 4), 4))
    assert effects == Effects(messages=(AppendReply("B", "A", 1, True, 5),))
    effects = cluster.receive(AppendEntries("A", "B", 1, 2, 1, commands(3, 7), 7))
    assert [entry.index for entry in effects.committed] == [6, 7]


def test_a_snapshot_of_a_deposed_leader_is_refused() -> None:
    cluster = Cluster("ABC")
    cluster.start("B", term=5)
    effects = cluster.receive(chunk(4, term=3))
    assert effects == Effects(messages=(AppendReply("B", "A", 5, False, 0),))


def test_chunks_of_two_leaders_are_not_mixed() -> None:
    """They may have written down the same state in different bytes."""
    cluster = Cluster("ABC")
    cluster.receive(chunk(4, b"AAAA", total=8))
    cluster.receive(SnapshotChunk("C", "B", 2, 4, 1, ABC, 8, 4, b"CCCC"))
    assert cluster["B"].snapshot.index == 0
    cluster.receive(SnapshotChunk("C", "B", 2, 4, 1, ABC, 8, 0, b"cccc"))
    cluster.receive(SnapshotChunk("C", "B", 2, 4, 1, ABC, 8, 4, b"CCCC"))
    assert cluster["B"].snapshot.data == b"ccccCCCC"


def test_a_chunk_out_of_order_is_not_taken() -> None:
    cluster = Cluster("ABC")
    effects = cluster.receive(chunk(4, b"5678", total=8, position=4))
    assert effects.messages == (SnapshotReply("B", "A", 1, 4, 1, 0),)
    cluster.receive(chunk(4, b"1234", total=8))
    effects = cluster.receive(chunk(4, b"1234", total=8))
    assert effects.messages == (SnapshotReply("B", "A", 1, 4, 1, 4),)
    cluster.receive(chunk(4, b"5678", total=8, position=4))
    assert cluster["B"].snapshot.data == b"12345678"


def test_a_snapshot_that_is_too_large_is_not_taken() -> None:
    cluster = Cluster("ABC", options=with_options(snapshot_bytes_max=100))
    effects = cluster.receive(chunk(4, b"1234", total=101))
    assert effects.messages == () and cluster["B"].snapshot.index == 0


def test_the_snapshot_being_sent_stays_the_same_while_others_are_taken() -> None:
    cluster = filled(with_options(snapshot_chunk_bytes=10, trailing_entries=0))
    cluster.step("A", TakeSnapshot(11, b"a" * 35))
    cluster.heal()
    cluster.tick("A", times=OPTIONS.heartbeat_ticks)
    for number in range(12):
        cluster.deliver()
        if number == 4:
            cluster.propose("A", b"more")
        if number == 8:
            cluster.step("A", TakeSnapshot(cluster["A"].applied_index, b"b" * 35))
    cluster.run(4 * OPTIONS.election_ticks)
    installed = [one.snapshot_installed for one in cluster.effects["C"] if one.snapshot_installed is not None]
    assert installed and all(len(set(one.data)) == 1 for one in installed)
    assert cluster["C"].commit_index == cluster["A"].commit_index
