"""Applies a retried proposal once (thesis §6.3). It wraps a state machine, and is itself replicated and part of every snapshot.

A proposer opens a session, whose id is the index of the entry that opened it, and numbers its proposals 1, 2, 3, …. A proposal whose
number was applied before gets the result it had. Each session keeps the results of a window of numbers: a proposer has at most that
many outstanding, and an older number is refused, because it is unknown whether it was applied. When there are too many sessions, the
least recently used one is removed. All of this depends on the log alone, so all servers decide the same.

    snapshot    version u8 · count u32 · session …  · blob (the machine's own)
    session     id u64 · highest u64 · count u16 · (sequence u64 · blob) …       in the order of last use
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Final, Protocol

from bascule import limits
from bascule.errors import FormatTooNew, StorageError
from bascule.raft.core.model.codec import U8, U16, U32, U64, Malformed, Reader, encode_blob
from bascule.raft.core.model.entries import Entry, EntryKind

VERSION: Final = 1


class StateMachine(Protocol):
    """A deterministic state machine: the same commands at the same indexes give the same state, results and snapshot."""

    def apply(self, index: int, command: bytes) -> bytes: ...

    def snapshot(self) -> bytes: ...

    def restore(self, data: bytes) -> None: ...


@unique
class ApplyOutcome(IntEnum):
    APPLIED = 0
    DUPLICATE = 1
    """Applied before; `result` is that of the first time."""

    SESSION_OPENED = 2
    SESSION_EXPIRED = 3
    """The session is unknown. Not applied now; it is unknown whether it was applied before. Open another session."""

    OUT_OF_WINDOW = 4
    """The number is older than the window. Not applied now; it is unknown whether it was applied before."""

    NOTHING = 5
    """An entry of the core, not a command."""


@dataclass(frozen=True, slots=True)
class Applied:
    outcome: ApplyOutcome
    result: bytes = b""


@dataclass(slots=True)
class _Session:
    highest: int = 0
    results: dict[int, bytes] = field(default_factory=dict)


class RaftSessions:
    __slots__ = ("_machine", "_sessions", "_sessions_max", "_window")

    def __init__(
        self,
        machine: StateMachine,
        *,
        sessions_max: int = limits.RAFT_SESSIONS_MAX,
        window: int = limits.RAFT_SESSION_WINDOW,
    ) -> None:
        self._machine = machine
        self._sessions_max = sessions_max
        self._window = window
        self._sessions: dict[int, _Session] = {}
        """In the order of last use; the first one is removed first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def apply(self, entry: Entry) -> Applied:
        match entry.kind:
            case EntryKind.COMMAND:
                return self._apply_command(entry)
            case EntryKind.OPEN_SESSION:
                self._open(entry.index)
                return Applied(ApplyOutcome.SESSION_OPENED)
            case _:
                return Applied(ApplyOutcome.NOTHING)

    def _open(self, index: int) -> None:
        self._sessions[index] = _Session()
        if len(self._sessions) > self._sessions_max:
            del self._sessions[next(iter(self._sessions))]

    def _apply_command(self, entry: Entry) -> Applied:
        if entry.session == 0:
            return Applied(ApplyOutcome.APPLIED, self._machine.apply(entry.index, entry.data))
        session = self._sessions.pop(entry.session, None)
        if session is None:
            return Applied(ApplyOutcome.SESSION_EXPIRED)
        self._sessions[entry.session] = session
        if entry.sequence in session.results:
            return Applied(ApplyOutcome.DUPLICATE, session.results[entry.sequence])
        if entry.sequence <= session.highest - self._window:
            return Applied(ApplyOutcome.OUT_OF_WINDOW)
        result = self._machine.apply(entry.index, entry.data)
        assert len(result) <= limits.RAFT_SESSION_RESULT_BYTES_MAX
        self._remember(session, entry.sequence, result)
        return Applied(ApplyOutcome.APPLIED, result)

    def _remember(self, session: _Session, sequence: int, result: bytes) -> None:
        session.results[sequence] = result
        if sequence > session.highest:
            session.highest = sequence
            oldest = sequence - self._window
            for forgotten in [one for one in session.results if one <= oldest]:
                del session.results[forgotten]

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> bytes:
        pieces = [U8.pack(VERSION), U32.pack(len(self._sessions))]
        for number, session in self._sessions.items():
            pieces += (U64.pack(number), U64.pack(session.highest), U16.pack(len(session.results)))
            for sequence in sorted(session.results):
                pieces += (U64.pack(sequence), encode_blob(session.results[sequence]))
        pieces.append(encode_blob(self._machine.snapshot()))
        return b"".join(pieces)

    def restore(self, data: bytes) -> None:
        """Replace the state by that of a snapshot; the first snapshot of a group is empty."""
        if not data:
            self._sessions = {}
            self._machine.restore(b"")
            return
        sessions, machine = _decode(data)
        self._sessions = sessions
        self._machine.restore(machine)


def machine_snapshot(data: bytes) -> bytes:
    """The snapshot of the state machine in a snapshot. Raises StorageError, or FormatTooNew for a later version."""
    return _decode(data)[1] if data else b""


def _decode(data: bytes) -> tuple[dict[int, _Session], bytes]:
    try:
        reader = Reader(data)
        _check_version(reader.number(U8))
        sessions = dict(_read_session(reader) for _ in range(reader.number(U32)))
        machine = reader.blob()
        reader.end()
    except Malformed as error:
        raise StorageError(f"a snapshot of the replicated state is malformed: {error}") from None
    return sessions, machine


def _check_version(version: int) -> None:
    if version != VERSION:
        raise FormatTooNew(
            f"a snapshot of the replicated state has version {version}, this version of Bascule reads {VERSION}",
            hint="run the version of Bascule that wrote it, or a later one, on all servers",
        )


def _read_session(reader: Reader) -> tuple[int, _Session]:
    number, highest = reader.number(U64), reader.number(U64)
    results = {reader.number(U64): reader.blob() for _ in range(reader.number(U16))}
    return number, _Session(highest, results)
