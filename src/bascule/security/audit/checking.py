"""The check of audit records: of files, and of the stream `__audit`. Pure.

A file has each record once, in order. The stream is written at least once, so it may have a record again: exact copies are counted and
otherwise ignored. In the stream, a message that no broker of the cluster has signed is a fault by itself, and the chains go on without
it: it does not make the genuine record after it a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bascule.security.audit.records import LOST, STREAM_BOOT, line_hash, mac_fault, parse_record


@dataclass(frozen=True, slots=True)
class AuditFault:
    place: int
    """Number of the line, from 1 over all files; in the stream the offset."""
    text: str
    is_forged: bool = False
    """Whether no broker has written this message of the stream."""


@dataclass(slots=True)
class ServerTrail:
    """What the check knows of one server."""

    server: str
    first_number: int
    follows: str
    """`previous` of the first record: empty if the chain begins here, else it names an older record."""
    boot: str
    number: int
    last_hash: str
    boots: set[str] = field(default_factory=set)
    records: int = 0
    lost: int = 0
    """Records that the server itself reports as lost."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    trails: tuple[ServerTrail, ...]
    faults: tuple[AuditFault, ...]
    records: int
    duplicates: int
    """Exact copies of records in the stream, which count as one record."""
    without_mac: int
    has_head: bool
    """Whether the record with the hash `head` is there."""

    @property
    def is_whole(self) -> bool:
        return not self.faults


def verify_lines(lines: Iterable[bytes], keys: Sequence[bytes] = (), head: str = "") -> AuditReport:
    """Check the lines of files. With `keys`, each record must have a MAC under one of them. `head` is the hash of a record."""
    check = AuditCheck(keys, head)
    for number, line in enumerate(lines, start=1):
        check.add(number, line)
    return check.report()


def forgery(record: dict[str, Any], keys: Sequence[bytes], *, is_stream: bool) -> str | None:
    """Return why no broker has written a record; None if one has, or without keys if one may have. All records of the stream are
    signed."""
    if keys or (is_stream and "mac" not in record):
        fault = mac_fault(record, keys)
        if fault is not None:
            return fault
    if is_stream and not record["boot"].startswith(STREAM_BOOT):
        return "the record belongs to the file of a server: it was copied into the stream"
    return None


class AuditCheck:
    """Gets the records one by one, and checks the chain of each server."""

    def __init__(self, keys: Sequence[bytes] = (), head: str = "", *, is_stream: bool = False) -> None:
        self._keys = keys
        self._head = head
        self._has_head = False
        self._is_stream = is_stream
        self._seen: set[bytes] = set()
        """Hashes of all records of the stream, shortened: about 100 bytes of memory for each."""
        self._trails: dict[str, ServerTrail] = {}
        self._faults: list[AuditFault] = []
        self._records = 0
        self._duplicates = 0
        self._without_mac = 0

    def add(self, place: int, line: bytes) -> None:
        """Check a line of a file, or the value of a message of the stream."""
        record = parse_record(line)
        if record is None:
            what = "message" if self._is_stream else "line"
            self._fault(place, f"the {what} is no audit record", is_forged=self._is_stream)
            return
        found = line_hash(line)
        if self._is_copy(found):
            return
        self._records += 1
        self._without_mac += "mac" not in record
        unsigned = forgery(record, self._keys, is_stream=self._is_stream)
        self._fault(place, unsigned, is_forged=self._is_stream)
        if self._is_stream and unsigned is not None:
            return
        self._has_head |= found == self._head
        self._fault(place, self._follow(record, found))

    def _is_copy(self, found: str) -> bool:
        if not self._is_stream:
            return False
        short = bytes.fromhex(found)[:16]
        is_copy = short in self._seen
        self._duplicates += is_copy
        self._seen.add(short)
        return is_copy

    def _fault(self, place: int, text: str | None, *, is_forged: bool = False) -> None:
        if text is not None:
            self._faults.append(AuditFault(place, text, is_forged))

    def report(self) -> AuditReport:
        trails, faults = tuple(self._trails.values()), tuple(self._faults)
        return AuditReport(trails, faults, self._records, self._duplicates, self._without_mac, self._has_head)

    def _follow(self, record: dict[str, Any], found: str) -> str | None:
        """Return why the record does not follow the one before of its server. The check goes on from this record either way."""
        server, boot, number = record["server"], record["boot"], record["number"]
        trail = self._trails.get(server)
        if trail is None:
            trail = ServerTrail(server, number, record["previous"], boot, number, found)
            self._trails[server] = trail
            fault = None
        else:
            fault = _fault_after(trail, record)
        if fault is None and record["action"] == LOST:
            trail.lost += _lost(record)
        trail.boot, trail.number, trail.last_hash = boot, number, found
        trail.boots.add(boot)
        trail.records += 1
        return fault


def _fault_after(trail: ServerTrail, record: dict[str, Any]) -> str | None:
    place = f"record {record['number']} of server {trail.server}"
    if not record["previous"]:
        return f"{place} begins a new chain: the server has lost its data directory, or records are missing before this one"
    if record["previous"] != trail.last_hash:
        return f"{place} does not follow record {trail.number}: records were changed, removed, inserted or moved before this line"
    is_new = record["boot"] != trail.boot
    if is_new and record["boot"] in trail.boots:
        return f"{place} belongs to an earlier run of the server"
    expected = 1 if is_new else trail.number + 1
    stated = _lost(record) if record["action"] == LOST else 0
    if record["number"] != expected + stated:
        return f"{place} has a wrong number: {expected + stated} is expected"
    return None


def _lost(record: dict[str, Any]) -> int:
    """Return how many records a record of the action `Lost` stands for."""
    count = record["detail"].partition(" ")[0]
    return int(count) if count.isascii() and count.isdecimal() and len(count) < 19 else 0
