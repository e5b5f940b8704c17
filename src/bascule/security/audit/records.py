"""Records of the audit log, and the hash chain that links them. Pure: no clock, no file.

A record is one line of canonical JSON (sorted keys, no spaces, ASCII) with these fields:

    server  boot  number  time  principal  address  action  resource  result  detail  previous  mac

`boot` is random for each run of a server, `number` counts its records from 1, and `previous` is the SHA-256 of the line before, without
its line break; the first record of a boot names the last record of the boot before, or is empty. `mac` is there if the cluster has a
secret: HMAC-SHA256 over the line without this field, under a key that is derived from the secret.

A server has two chains: one in its file, and one in the stream `__audit`, where `boot` begins with `stream-`. So a record of one cannot
pass for a record of the other.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

TEXT_CHARACTERS_MAX: Final = 256
"""Characters of a name in an audit record; a longer one is cut."""

DETAIL_CHARACTERS_MAX: Final = 512
"""Characters of the detail of an audit record; a longer one is cut."""
LOST: Final = "Lost"
"""Action of a record that stands for records that could not be written; its detail begins with their number."""
STREAM_BOOT: Final = "stream-"
"""Begins the `boot` of records in the stream `__audit`."""

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


def mac_fault(record: dict[str, Any], keys: Sequence[bytes]) -> str | None:
    """Return why a record is not signed with one of the keys; None if it is."""
    mac = record.get("mac")
    if mac is None:
        return "the record has no MAC: a program without the cluster secret may have written it"
    bare = {name: value for name, value in record.items() if name != "mac"}
    if not any(hmac.compare_digest(mac.encode(), _mac(bare, key).encode()) for key in keys):
        return "the MAC is wrong: the record was changed, or written without this cluster secret"
    return None


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
