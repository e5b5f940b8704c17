"""What commits say: files and their facts, the next offset of each partition, losses; the sum of commits; the chain. Pure.

A chain value is a digest of everything that a commit changes and of the chain value before it: a commit that is changed, removed,
replayed or put in another's place breaks it. The sum is a digest of all files of the table and all its offsets after the commit: it
does not depend on their order, so one commit changes it in time proportional to its own files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

from bascule.lake.delta.log import AddedFile, DeltaCommit, RemovedFile

MARK: Final = "bascule"
"""The name of our facts: in statistics, in commitInfo, in the table's description, and before the ids of transactions."""
_TRANSACTION: Final = re.compile(MARK + r":(next|began|lost:(\w+):(\d+)-(\d+)):(.*)#(\d+)/(\d+)", re.DOTALL)
_DIGEST_BYTES: Final = 16
_SUM_MASK: Final = (1 << 8 * _DIGEST_BYTES) - 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the archive and what it holds: offsets `first` to `last` of one partition, as many rows as there are."""

    path: str
    """Below the archive."""
    stream: str
    stream_id: int
    partition: int
    first_offset: int
    last_offset: int
    rows: int
    bytes: int
    crc32c: int
    """Of the rows, as lake/digest.py has it."""
    date: str
    first_us: int = 0
    """Of the oldest message, since 1970."""
    last_us: int = 0
    epoch: int = 0
    """The newest leader epoch of its messages."""
    sha256: str = ""
    """Of the file."""

    def facts(self) -> dict[str, Any]:
        """What the statistics hold."""
        return {name: value for name, value in asdict(self).items() if name not in ("path", "bytes")}


@dataclass(frozen=True, slots=True)
class Covered:
    """What was read of a partition for this commit, `start` to `end` exclusive, whether there were messages or not: compaction leaves
    holes, and a hole at the end is no reason to read it again."""

    stream: str
    stream_id: int
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets `start` to before `end` of a partition that were removed before they could be archived. `onDataLoss` was `skip`, so the
    archive continued without them. Compaction may have removed some of them: that cannot be known afterwards."""

    stream: str
    stream_id: int
    partition: int
    start: int
    end: int
    reason: str
    """`removed`: retention was faster; `deleted`: the stream was deleted, or created again."""
    at_ns: int
    """When it was noticed."""


@dataclass(frozen=True, slots=True)
class Began:
    """Where a partition of an archive begins: the first offset that was to be archived."""

    stream: str
    stream_id: int
    partition: int
    offset: int


REMOVED: Final = "removed"
DELETED: Final = "deleted"


@dataclass(frozen=True, slots=True)
class TableSum:
    """The whole table after a commit."""

    files: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class Commit:
    number: int
    """Delta's version."""
    kind: str
    """`create`, `append`, `compact`, `upgrade`, `repair`; `foreign` for one that another writer has made."""
    at_ns: int
    query: str = ""
    batch: int = -1
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    covered: tuple[Covered, ...] = ()
    lost: tuple[Lost, ...] = ()
    began: tuple[Began, ...] = ()
    """Of partitions that come for the first time."""
    previous: str = ""
    """The chain value of the commit before it."""
    chain: str = ""
    whole: TableSum | None = None
    engine: str = ""
    """Who made a foreign commit, and what it did."""
    unproved: tuple[str, ...] = ()
    """Files that came without facts."""


PartitionId = tuple[str, int, int]
"""Stream, stream id and partition."""


@dataclass(slots=True)
class ArchiveState:
    """All commits so far, taken together."""

    number: int = 0
    files: dict[str, DataFile] = field(default_factory=dict)
    next_offsets: dict[PartitionId, int] = field(default_factory=dict)
    """Everything below is here, or was never there, or is lost."""
    last_commit_ns: int = 0
    lost: dict[PartitionId, list[Lost]] = field(default_factory=dict)
    began: dict[PartitionId, int] = field(default_factory=dict)
    chain: str = ""
    unproved: set[str] = field(default_factory=set)
    """Files of the table without facts: of another writer."""
    foreign: list[tuple[int, str]] = field(default_factory=list)
    """Commits of other writers that changed files: version and engine."""
    replaced: dict[str, int] = field(default_factory=dict)
    """Files that are no longer part of the table, and when they went, in milliseconds."""
    query: str = ""
    """The cursor in which the newest batch noted its progress."""
    claimed: TableSum | None = None
    """What the newest commit says of the table."""
    tip: str = ""
    """The chain value of the newest commit itself: "" for one of another writer."""
    rows: int = 0
    _sum: int = 0

    def apply(self, commit: Commit) -> None:
        self.number = commit.number
        self.last_commit_ns = commit.at_ns
        for path in commit.removed:
            self._take(path, commit.at_ns // 1_000_000)
        for one in commit.added:
            self._put(one)
        self.unproved |= set(commit.unproved)
        for covered in commit.covered:
            key = (covered.stream, covered.stream_id, covered.partition)
            self.next_offsets[key] = max(self.next_offsets.get(key, 0), covered.end)
        for lost in commit.lost:
            self.lost.setdefault((lost.stream, lost.stream_id, lost.partition), []).append(lost)
        for began in commit.began:
            self.began.setdefault((began.stream, began.stream_id, began.partition), began.offset)
        if commit.engine:
            if commit.removed or commit.unproved:
                self.foreign.append((commit.number, commit.engine))
            self.claimed = None
            self.tip = ""
        else:
            self.tip = commit.chain
            self.chain = commit.chain
            self.query = commit.query if commit.kind == "append" else self.query
            self.claimed = commit.whole

    def _put(self, one: DataFile) -> None:
        self._take(one.path, None)
        self.files[one.path] = one
        self.rows += one.rows
        self.replaced.pop(one.path, None)
        self._sum = (self._sum + _weight(one)) & _SUM_MASK

    def _take(self, path: str, at_ms: int | None) -> None:
        one = self.files.pop(path, None)
        self.unproved.discard(path)
        if one is not None:
            self._sum = (self._sum - _weight(one)) & _SUM_MASK
            self.rows -= one.rows
        if at_ms is not None:
            self.replaced[path] = at_ms

    def whole(self) -> TableSum:
        """The digest of all files and all offsets."""
        return _table_sum(len(self.files), self.rows, self._sum, self.next_offsets)

    def whole_after(self, commit: Commit) -> TableSum:
        """What `whole` will be. In time proportional to the commit, not to the table."""
        gone = [self.files[path] for path in commit.removed if path in self.files]
        total = self._sum + sum(map(_weight, commit.added)) - sum(map(_weight, gone))
        files = len(self.files) + len(commit.added) - len(gone)
        rows = self.rows + sum(one.rows for one in commit.added) - sum(one.rows for one in gone)
        ends = dict(self.next_offsets)
        for one in commit.covered:
            key = (one.stream, one.stream_id, one.partition)
            ends[key] = max(ends.get(key, 0), one.end)
        return _table_sum(files, rows, total & _SUM_MASK, ends)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files.values())

    @property
    def lost_offsets(self) -> int:
        return sum(one.end - one.start for ranges in self.lost.values() for one in ranges)

    def in_order(self) -> list[DataFile]:
        return sorted(self.files.values(), key=lambda one: (one.stream, one.stream_id, one.partition, one.first_offset))


def _table_sum(files: int, rows: int, total: int, ends: Mapping[PartitionId, int]) -> TableSum:
    offsets = _digest([[*key, end] for key, end in sorted(ends.items())])
    return TableSum(files, rows, f"{total:032x}{offsets}")


def _weight(one: DataFile) -> int:
    return int(_digest(asdict(one)), 16)


def _digest(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


# ── the chain ────────────────────────────────────────────────────────────────────────────────────


def sealed(commit: Commit, state: ArchiveState) -> Commit:
    """The commit with its place in the chain, and the sum of the table after it."""
    whole = replace(commit, previous=state.chain, whole=state.whole_after(commit))
    return replace(whole, chain=chain_of(whole))


def chain_of(commit: Commit) -> str:
    """The digest of all that a commit says, and of the chain before it."""
    said = asdict(replace(commit, chain="", engine="", unproved=()))
    said["added"] = sorted(said["added"], key=lambda one: str(one["path"]))
    said["removed"] = sorted(said["removed"])
    for name in ("covered", "lost", "began"):
        said[name] = sorted((list(one.values()) for one in said[name]), key=str)
    return _digest(said)


# ── as Delta has it ──────────────────────────────────────────────────────────────────────────────


def statistics(one: DataFile) -> str:
    """Delta's statistics of a file, for engines that skip files, with our facts."""
    low = {
        "stream": one.stream,
        "partition": one.partition,
        "offset": one.first_offset,
        "timestamp": _moment(one.first_us),
    }
    high = {**low, "offset": one.last_offset, "timestamp": _moment(one.last_us + 999)}
    never_null = ("stream", "partition", "offset", "timestamp", "subject", "leaderEpoch")
    found: dict[str, Any] = {"numRecords": one.rows}
    if one.last_us:
        found |= {"minValues": low, "maxValues": high}
    return json.dumps({**found, "nullCount": dict.fromkeys(never_null, 0), MARK: one.facts()}, separators=(",", ":"))


def _moment(us: int) -> str:
    """In milliseconds, as Delta has them: the greatest value is rounded up by its caller."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=us // 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _key(one: Covered | Lost | Began) -> str:
    return f"{one.stream}#{one.stream_id}/{one.partition}"


def encode_commit(
    commit: Commit, state: ArchiveState
) -> tuple[list[AddedFile], list[tuple[RemovedFile, tuple[int, str]]], dict[str, int]]:
    """Its files that come, those that go, and its transactions."""
    at_ms = commit.at_ns // 1_000_000
    is_change = commit.kind != "compact"
    added = [
        AddedFile(one.path, one.bytes, (("date", one.date),), at_ms, statistics(one), is_change) for one in commit.added
    ]
    gone = [(path, state.files[path]) for path in commit.removed]
    removed = [(RemovedFile(path, at_ms, is_change), (one.bytes, one.date)) for path, one in gone]
    transactions = {f"{MARK}:next:{_key(one)}": one.end for one in commit.covered}
    transactions |= {f"{MARK}:began:{_key(one)}": one.offset for one in commit.began}
    transactions |= {f"{MARK}:lost:{one.reason}:{one.start}-{one.end}:{_key(one)}": one.at_ns for one in commit.lost}
    return added, removed, transactions


def information(commit: Commit) -> dict[str, Any]:
    """What commitInfo holds of ours."""
    assert commit.whole is not None  # it is sealed
    starts = {_key(one): one.start for one in commit.covered}
    return {
        "kind": commit.kind,
        "at_ns": commit.at_ns,
        "query": commit.query,
        "batch": commit.batch,
        "starts": starts,
        "previous": commit.previous,
        "chain": commit.chain,
        "table": asdict(commit.whole),
    }


def decode_commit(found: DeltaCommit) -> Commit:
    """A version of the log. Raises ValueError, KeyError or TypeError for one that says to be ours and is not."""
    about = found.info.get(MARK)
    added, unproved = _files(found)
    removed = tuple(one.path for one in found.removed)
    next_offsets, began, lost = _offsets(found.transactions)
    if not isinstance(about, dict) or "chain" not in about:
        who = found.info.get("engineInfo") or found.info.get("clientVersion") or "unknown"
        engine = f"{who}: {found.info.get('operation') or 'unknown'}"
        at_ns = int(found.info.get("timestamp") or 0) * 1_000_000
        paths = (*unproved, *(one.path for one in added))
        return Commit(found.version, "foreign", at_ns, removed=removed, engine=engine, unproved=paths)
    starts: Mapping[str, int] = about.get("starts") or {}
    covered = tuple(
        Covered(*key, starts.get(f"{key[0]}#{key[1]}/{key[2]}", end), end) for key, end in sorted(next_offsets.items())
    )
    return Commit(
        found.version,
        str(about["kind"]),
        int(about["at_ns"]),
        str(about["query"]),
        int(about["batch"]),
        tuple(added),
        removed,
        covered,
        tuple(lost),
        tuple(Began(*key, offset) for key, offset in sorted(began.items())),
        str(about["previous"]),
        str(about["chain"]),
        TableSum(**about["table"]),
        unproved=tuple(unproved),
    )


_FACTS: Final = frozenset(item.name for item in fields(DataFile)) - {"path", "bytes"}


def _files(found: DeltaCommit) -> tuple[list[DataFile], list[str]]:
    """Files with facts, and the paths of those without."""
    added: list[DataFile] = []
    unproved: list[str] = []
    for one in found.added:
        facts = one.facts(MARK)
        if facts is None or not facts.keys() <= _FACTS or found.deletion_vectors:
            unproved.append(one.path)
            continue
        try:
            added.append(DataFile(path=one.path, bytes=one.size, **facts))
        except TypeError:
            unproved.append(one.path)
    return added, unproved


def _offsets(
    transactions: Mapping[str, int],
) -> tuple[dict[PartitionId, int], dict[PartitionId, int], list[Lost]]:
    """The next offsets, the beginnings and the losses."""
    next_offsets: dict[PartitionId, int] = {}
    began: dict[PartitionId, int] = {}
    lost: list[Lost] = []
    for name, value in transactions.items():
        match = _TRANSACTION.fullmatch(name)
        if match is None:
            continue
        key = match[5], int(match[6]), int(match[7])
        if match[1] == "next":
            next_offsets[key] = value
        elif match[1] == "began":
            began[key] = value
        else:
            lost.append(Lost(*key, int(match[3]), int(match[4]), match[2], value))
    return next_offsets, began, sorted(lost, key=lambda one: (one.at_ns, one.start))


def state_of_checkpoint(found: DeltaCommit, newest: DeltaCommit | None) -> ArchiveState:
    """The sum that a checkpoint is; `newest` is the commit of the same version, which knows the chain."""
    added, unproved = _files(found)
    next_offsets, began, lost = _offsets(found.transactions)
    state = ArchiveState(found.version, began=began, next_offsets=next_offsets, unproved=set(unproved))
    for one in added:
        state._put(one)
    for gone in found.removed:
        state.replaced[gone.path] = gone.at_ms
    for each in lost:
        state.lost.setdefault((each.stream, each.stream_id, each.partition), []).append(each)
    if unproved:
        state.foreign.append((found.version, "before the checkpoint"))
    if newest is not None:
        commit = decode_commit(newest)
        state.chain = state.tip = commit.chain
        state.claimed, state.last_commit_ns = commit.whole, commit.at_ns
    return state
