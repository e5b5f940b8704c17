"""A retry is applied once (thesis §6.3), on every server and across snapshots."""

from __future__ import annotations

import pytest

from bascule.errors import FormatTooNew, StorageError
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.sessions import Applied, ApplyOutcome, RaftSessions


class Journal:
    """A state machine that remembers everything it was told."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, index: int, command: bytes) -> bytes:  # noqa: ARG002
        self.commands.append(command)
        return b"result of " + command

    def snapshot(self) -> bytes:
        return b",".join(self.commands)

    def restore(self, data: bytes) -> None:
        self.commands = data.split(b",") if data else []


def opened(index: int) -> Entry:
    return Entry(index, 1, EntryKind.OPEN_SESSION)


def command(index: int, session: int, sequence: int, data: bytes = b"x") -> Entry:
    return Entry(index, 1, EntryKind.COMMAND, data, session, sequence)


def test_a_retry_is_applied_once_and_gets_the_result_it_had() -> None:
    journal = Journal()
    sessions = RaftSessions(journal)
    assert sessions.apply(opened(5)) == Applied(ApplyOutcome.SESSION_OPENED)
    assert sessions.apply(command(6, 5, 1, b"a")) == Applied(ApplyOutcome.APPLIED, b"result of a")
    assert sessions.apply(command(7, 5, 1, b"a")) == Applied(ApplyOutcome.DUPLICATE, b"result of a")
    assert journal.commands == [b"a"]


def test_numbers_may_arrive_out_of_order() -> None:
    journal = Journal()
    sessions = RaftSessions(journal)
    sessions.apply(opened(1))
    for index, sequence in enumerate((3, 1, 2, 3, 1), start=2):
        sessions.apply(command(index, 1, sequence, b"%d" % sequence))
    assert journal.commands == [b"3", b"1", b"2"]


def test_a_number_too_old_to_be_remembered_is_not_applied() -> None:
    journal = Journal()
    sessions = RaftSessions(journal, window=4)
    sessions.apply(opened(1))
    sessions.apply(command(2, 1, 1))
    sessions.apply(command(3, 1, 5))
    assert sessions.apply(command(4, 1, 1)) == Applied(ApplyOutcome.OUT_OF_WINDOW)
    assert sessions.apply(command(5, 1, 2)).outcome is ApplyOutcome.APPLIED
    assert len(journal.commands) == 3


def test_a_session_that_is_unknown_applies_nothing() -> None:
    journal = Journal()
    assert RaftSessions(journal).apply(command(9, 3, 1)) == Applied(ApplyOutcome.SESSION_EXPIRED)
    assert journal.commands == []


def test_the_longest_unused_session_goes_first() -> None:
    sessions = RaftSessions(Journal(), sessions_max=2)
    sessions.apply(opened(1))
    sessions.apply(opened(2))
    sessions.apply(command(3, 1, 1))
    sessions.apply(opened(4))
    assert sessions.apply(command(5, 2, 1)).outcome is ApplyOutcome.SESSION_EXPIRED
    assert sessions.apply(command(6, 1, 1)).outcome is ApplyOutcome.DUPLICATE
    assert len(sessions) == 2


def test_a_proposal_without_session_is_applied_each_time() -> None:
    journal = Journal()
    sessions = RaftSessions(journal)
    assert sessions.apply(command(1, 0, 0)).outcome is ApplyOutcome.APPLIED
    assert sessions.apply(command(2, 0, 0)).outcome is ApplyOutcome.APPLIED
    assert sessions.apply(Entry(3, 1, EntryKind.NOOP)).outcome is ApplyOutcome.NOTHING
    assert len(journal.commands) == 2


def test_a_snapshot_holds_sessions_and_machine() -> None:
    first = RaftSessions(Journal(), sessions_max=3, window=3)
    for index in (1, 2, 3):
        first.apply(opened(index))
    for index, (session, sequence) in enumerate([(1, 1), (3, 1), (2, 7), (1, 2), (2, 6)], start=4):
        first.apply(command(index, session, sequence, b"%d" % index))
    journal = Journal()
    second = RaftSessions(journal, sessions_max=3, window=3)
    second.restore(first.snapshot())
    assert second.snapshot() == first.snapshot()
    rest = [command(20, 2, 7), opened(21), command(22, 3, 1), command(23, 1, 3), command(24, 2, 3), command(25, 2, 8)]
    assert [first.apply(entry) for entry in rest] == [second.apply(entry) for entry in rest]
    assert second.snapshot() == first.snapshot()
    second.restore(b"")
    assert len(second) == 0 and journal.commands == []


def test_a_snapshot_that_is_cut_or_newer_is_refused() -> None:
    sessions = RaftSessions(Journal())
    sessions.apply(opened(1))
    sessions.apply(command(2, 1, 1))
    data = sessions.snapshot()
    for length in range(1, len(data)):
        with pytest.raises(StorageError):
            RaftSessions(Journal()).restore(data[:length])
    with pytest.raises(StorageError):
        RaftSessions(Journal()).restore(data + b"x")
    with pytest.raises(FormatTooNew):
        RaftSessions(Journal()).restore(b"\x02" + data[1:])
