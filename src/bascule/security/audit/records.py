"""Records of the audit log, the hash chain that links them, and the check of a chain. Pure: no clock, no file.

A record is one line of canonical JSON (sorted keys, no spaces, ASCII) with these fields:

    server  boot  number  time  principal  address  action  resource  result  detail  previous  mac

`boot` is random for each run of a server, `number` counts its records from 1, and `previous` is the SHA-256 of the line before, without
its line break; the first record of a boot names the last record of the boot before, or is empty. `mac` is there if the cluster has a
secret: HMAC-SHA256 over the line without this field, under a key that is derived from the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

TEXT_CHARACTERS_MAX: Final = 256
"""Characters of a name in an audit record; a longer one is cut."""

DETAIL_CHARACTERS_MAX: Final = 512
"""Characters of the detail of an audit record; a longer one is cut."""
LOST: Final = "Lost"
"""Action of a record that stands for records that could not be written; its detail begins with their number."""

_TEXTS: Final = (
    "server",
    "boot",
    "time",
    "principal",
    "address",
    "action",
    "resource",
    "result",
    "detail",
    "previous",
)
_FIELDS: Final = frozenset({*_TEXTS, "number"})


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """The contents of a record, before it has a place in the chain."""

    time_ns: int
    principal: str
    address: str
    action: str
    resource: str
    result: str
    detail: str = ""
    lost: int = 0
    """Dropped records that this one stands for: their numbers come before its own."""


def lost_entry(time_ns: int, count: int) -> AuditEntry:
    """Return the entry that stands for dropped records."""
    return AuditEntry(time_ns, "", "", LOST, "*", "LOST", f"{count} records were dropped before this one", count)


class AuditChain:
    """Makes records of one run of a server, numbers them, and links each to the one before."""

    def __init__(self, server: str, boot: str, previous: str, key: bytes | None) -> None:
        """`previous` is the hash of the last record of the boot before; empty if there is none."""
        self._server = server
        self._boot = boot
        self.previous = previous
        self.key = key
        """Key of the MACs from now on; None for records without."""
        self.number = 0
        """Number of the last record."""

    def seal(self, entry: AuditEntry) -> bytes:
        """Return the record of an entry as a line, without its line break."""
        self.number += 1 + entry.lost
        record: dict[str, Any] = {
            "server": self._server,
            "boot": self._boot,
            "number": self.number,
            "time": _time_text(entry.time_ns),
            "principal": clipped(entry.principal),
            "address": clipped(entry.address),
            "action": clipped(entry.action),
            "resource": clipped(entry.resource),
            "result": clipped(entry.result),
            "detail": clipped(entry.detail, DETAIL_CHARACTERS_MAX),
            "previous": self.previous,
        }
        if self.key is not None:
            record["mac"] = _mac(record, self.key)
        line = canonical(record)
        self.previous = line_hash(line)
        return line


def clipped(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def canonical(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def line_hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _mac(record: dict[str, Any], key: bytes) -> str:
    return hmac.new(key, canonical(record), hashlib.sha256).hexdigest()


def _time_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 1000 / 1e6, UTC).isoformat(timespec="microseconds")


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line, or None if it is no record in its canonical form."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.keys() - {"mac"} != _FIELDS:
        return None
    number, mac = record["number"], record.get("mac", "")
    texts = all(isinstance(record[name], str) for name in _TEXTS) and isinstance(mac, str)
    if not texts or not isinstance(number, int) or isinstance(number, bool) or canonical(record) != line:
        return None
    return record


# ── checking ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AuditFault:
    line: int
    """Number of the line, from 1 over all files."""
    text: str


@dataclass(slots=True)
class ServerTrail:
    """What the check knows of one server."""

    server: str
    first_number: int
    follows: str
    """`previous` of the first record: empty if the chain begins here, else it names a record of an older file."""
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
    without_mac: int
    has_head: bool
    """Whether the record with the hash `head` is there."""

    @property
    def is_whole(self) -> bool:
        return not self.faults


def verify_lines(lines: Iterable[bytes], keys: Sequence[bytes] = (), head: str = "") -> AuditReport:
    """Check the chain of each server. With `keys`, each record must have a MAC under one of them. `head` is the hash of a record."""
    check = _Check(keys, head)
    for number, line in enumerate(lines, start=1):
        check.line(number, line)
    trails, faults = tuple(check.trails.values()), tuple(check.faults)
    return AuditReport(trails, faults, check.records, check.without_mac, check.has_head)


class _Check:
    def __init__(self, keys: Sequence[bytes], head: str) -> None:
        self._keys = keys
        self._head = head
        self.has_head = False
        self.trails: dict[str, ServerTrail] = {}
        self.faults: list[AuditFault] = []
        self.records = 0
        self.without_mac = 0

    def line(self, at: int, line: bytes) -> None:
        record = parse_record(line)
        if record is None:
            self.faults.append(AuditFault(at, "the line is no audit record"))
            return
        self.records += 1
        self.without_mac += "mac" not in record
        found = line_hash(line)
        self.has_head |= found == self._head
        faults = [self._mac_fault(record), self._follow(record, found)]
        self.faults += [AuditFault(at, text) for text in faults if text is not None]

    def _mac_fault(self, record: dict[str, Any]) -> str | None:
        if not self._keys:
            return None
        mac = record.get("mac")
        if mac is None:
            return "the record has no MAC: a program without the cluster secret may have written it"
        bare = {name: value for name, value in record.items() if name != "mac"}
        if not any(hmac.compare_digest(mac.encode(), _mac(bare, key).encode()) for key in self._keys):
            return "the MAC is wrong: the record was changed, or written without this cluster secret"
        return None

    def _follow(self, record: dict[str, Any], found: str) -> str | None:
        """Return why the record does not follow the one before of its server. The check goes on from this record either way."""
        server, boot, number = record["server"], record["boot"], record["number"]
        trail = self.trails.get(server)
        if trail is None:
            trail = ServerTrail(server, number, record["previous"], boot, number, found)
            self.trails[server] = trail
            fault = None
        else:
            fault = self._fault_after(trail, record)
        if fault is None and record["action"] == LOST:
            trail.lost += _lost(record)
        trail.boot, trail.number, trail.last_hash = boot, number, found
        trail.boots.add(boot)
        trail.records += 1
        return fault

    @staticmethod
    def _fault_after(trail: ServerTrail, record: dict[str, Any]) -> str | None:
        place = f"record {record['number']} of server {trail.server}"
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
