"""The promises that a partition has to keep, checked at the end of a run: its record against the logs of all its replicas.

Everything that was acked by all, or delivered, is on every replica, the same at the same offset; a message that was refused is on
none; no message is there twice; order is kept. What cleaning may remove is excused, and nothing else: records before the start of a log
that retention shortened to no less than it keeps, and records of a compacted stream with a newer one of the same key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.chaos.cluster.cluster_history import (
    ALL,
    EXAMPLES_MAX,
    LEADER,
    Cleaning,
    FinalLog,
    PartitionHistory,
    Reader,
    Writer,
    key_of,
)


def violations(history: PartitionHistory, logs: Iterable[FinalLog]) -> list[str]:
    """Broken promises. `logs` are those of all replicas, read when no message is in flight."""
    cleaning = history.cleaning
    found: list[str] = [fault for reader in history.readers for fault in reader.faults]
    replicas = list(logs)
    with_all = [writer for writer in history.writers if writer.policy == ALL]
    for log in replicas:
        found += _log_faults(log, cleaning)
        for writer in with_all:
            found += _lost(writer, log, cleaning)
        for reader in history.readers:
            found += _changed(reader, log, cleaning)
        found += _refused_but_stored(history.writers, log)
    for reader in history.readers:
        found += _skipped(reader, replicas, cleaning)
    found += _unequal(replicas, cleaning)
    found += [fault for writer in with_all for fault in _changed_places(writer)]
    found += _out_of_order(with_all)
    return [f"{history.name}: {fault}" for fault in dict.fromkeys(found)]


def lost_leader_acks(history: PartitionHistory, log: FinalLog) -> tuple[int, int]:
    """A LEADER ack promises less: the number of messages that are lost, and of those at another offset than their ack says."""
    stored = set(zip(log.writers, log.numbers, strict=True))
    missing = [
        (writer.identity, number) in stored
        for writer in history.writers
        if writer.policy == LEADER
        for number, _ in _missing(writer, log, history.cleaning)
    ]
    return missing.count(False), missing.count(True)


def _may_lack(log: FinalLog, offset: int, writer: int, number: int, cleaning: Cleaning) -> bool:
    """Whether cleaning explains that the log has no record at this offset, where that message was."""
    if cleaning.is_compacted:
        return log.newest_of_key.get(key_of(writer, number), -1) > offset
    return cleaning.retained_min is not None and offset < log.start


def _missing(writer: Writer, log: FinalLog, cleaning: Cleaning) -> Iterator[tuple[int, int]]:
    """Number and offset of messages that were acked and are not there."""
    for number, offset in enumerate(writer.offsets):
        if offset < 0:
            continue
        place = log.place(offset)
        if place is None:
            if not _may_lack(log, offset, writer.identity, number, cleaning):
                yield number, offset
        elif log.writers[place] != writer.identity or log.numbers[place] != number:
            yield number, offset


def _lost(writer: Writer, log: FinalLog, cleaning: Cleaning) -> list[str]:
    missing = list(_missing(writer, log, cleaning))
    found = []
    for number, offset in missing[:EXAMPLES_MAX]:
        place = log.place(offset)
        instead = "nothing" if place is None else f"{log.writers[place]}:{log.numbers[place]}"
        found.append(
            f"message {number} of {writer.kind} writer {writer.identity} was acked at offset {offset}, and {log.replica}, which has "
            f"{log.start} to {log.end}, has {instead} there ({len(missing)} like this)"
        )
    return found


def _log_faults(log: FinalLog, cleaning: Cleaning) -> list[str]:
    found = []
    seen: set[tuple[int, int]] = set()
    kept = log.end if cleaning.retained_min is None else min(cleaning.retained_min, log.end)
    if not cleaning.is_compacted and log.end - log.start < kept:
        found.append(
            f"{log.replica} keeps {log.end - log.start} messages, and retention may not leave less than {kept}"
        )
    last = -1
    for place, offset in enumerate(log.offsets):
        if offset <= last if cleaning.is_compacted else offset != log.start + place:
            found.append(f"{log.replica} has offset {offset} at place {place}: offsets are not in order, or not dense")
            break
        last = offset
    for offset, what in zip(log.offsets, zip(log.writers, log.numbers, strict=True), strict=True):
        if what == (-1, -1):
            found.append(f"{log.replica} has a message at offset {offset} that no writer sent")
        elif what in seen:
            found.append(f"{log.replica} has message {what[1]} of writer {what[0]} twice, again at offset {offset}")
        seen.add(what)
    return found[:EXAMPLES_MAX]


def _changed(reader: Reader, log: FinalLog, cleaning: Cleaning) -> list[str]:
    """No reader may get a record before it is certain for ever."""
    for offset, digest, message in zip(reader.offsets, reader.digests, reader.messages, strict=True):
        place = log.place(offset)
        if place is None:
            if not _may_lack(log, offset, message >> 48, message & (1 << 48) - 1, cleaning):
                return [f"{reader.name} got {offset}, and {log.replica} has only {log.start} to {log.end}, without it"]
        elif log.digests[place] != digest:
            return [f"{reader.name} got a record at offset {offset} that is another one on {log.replica}"]
    return []


def _skipped(reader: Reader, logs: Sequence[FinalLog], cleaning: Cleaning) -> list[str]:
    """A reader gets every message, unless it was cleaned away before."""
    for first, end in reader.gaps:
        if cleaning.is_compacted:
            wrong = next((offset for offset in range(first, end) if _is_newest(offset, logs)), None)
        else:
            start = 0 if cleaning.retained_min is None else max(log.start for log in logs)
            wrong = None if end <= start else max(first, start)
        if wrong is not None:
            return [f"{reader.name} got offset {end} where {first} is next, and {wrong} was not cleaned away"]
    return []


def _is_newest(offset: int, logs: Sequence[FinalLog]) -> bool:
    """Whether a record is the newest of its key."""
    for log in logs:
        place = log.place(offset)
        if place is not None:
            return log.newest_of_key[key_of(log.writers[place], log.numbers[place])] == offset
    return False


def _unequal(logs: Sequence[FinalLog], cleaning: Cleaning) -> list[str]:
    first, *others = logs
    return [
        f"{first.replica} has {first.start} to {first.end} and {other.replica} {other.start} to {other.end}, or not the same"
        for other in others
        if not _are_equal(first, other, cleaning)
    ]


def _are_equal(one: FinalLog, other: FinalLog, cleaning: Cleaning) -> bool:
    """As far as neither was cleaned. Each replica cleans its own log, at its own time."""
    if cleaning.is_compacted:
        theirs = dict(zip(other.offsets, other.digests, strict=True))
        same = all(theirs.get(at, it) == it for at, it in zip(one.offsets, one.digests, strict=True))
        return same and one.newest_of_key == other.newest_of_key and one.end == other.end
    start = max(one.start, other.start)
    return one.end == other.end and one.digests[start - one.start :] == other.digests[start - other.start :]


def _refused_but_stored(writers: list[Writer], log: FinalLog) -> list[str]:
    promised = {(writer.identity, number) for writer in writers for number in writer.refused}
    found = promised & set(zip(log.writers, log.numbers, strict=True)) if promised else set()
    return [
        f"message {number} of {writers[writer].kind} writer {writer} was surely not stored, its answer says, and {log.replica} has it"
        f" ({len(found)} like this)"
        for writer, number in sorted(found)[:EXAMPLES_MAX]
    ]


def _changed_places(writer: Writer) -> list[str]:
    """Messages of one connection have to be stored in the order in which they were sent."""
    last, life = -1, -1
    for number, offset in enumerate(writer.offsets):
        if writer.lives[number] != life:
            last, life = -1, writer.lives[number]
        if offset >= 0:
            if offset <= last:
                return [
                    f"message {number} of {writer.kind} writer {writer.identity} is at {offset}, behind one at {last}"
                ]
            last = offset
    return []


def _out_of_order(writers: list[Writer]) -> list[str]:
    """A message that is sent after another one was acked is stored after it, whichever writers the two have."""
    acks = sorted((at, offset) for one in writers for at, offset in zip(one.acked_at, one.offsets, strict=True) if at)
    sends = sorted(
        (sent, offset) for one in writers for sent, offset in zip(one.sent_at, one.offsets, strict=True) if offset >= 0
    )
    found, highest, place = [], -1, 0
    for sent, offset in sends:
        while place < len(acks) and acks[place][0] < sent:
            highest = max(highest, acks[place][1])
            place += 1
        if offset <= highest:
            found.append(f"offset {offset} was sent after {highest} had been acked")
    return found[:EXAMPLES_MAX]
