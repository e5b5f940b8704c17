"""The states of replicas on this server, for metadata, metrics and tools: of partitions that it leads, and of logs that are closed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bascule.errors import BasculeError
from bascule.log import PartitionLog
from bascule.metadata.core.model.streams import Stream
from bascule.partition.replica import LedPartition, LocalPartition
from bascule.partition.stream_data import StreamData


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    log_end_offset: int
    in_sync: bool
    lag_messages: int
    seconds_since_seen: float


@dataclass(frozen=True, slots=True)
class ReplicaState:
    stream: str
    partition: int
    leader_epoch: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    replicas: dict[str, ReplicaProgress]
    """The followers."""


def replica_state(local: LedPartition) -> ReplicaState | None:
    """The state; None if the log is not open, which means that there are no followers."""
    leading = local.leading
    if leading is None:
        return None
    now_ns = time.monotonic_ns()
    try:
        end_offset = leading.log.log_end_offset
        followers = {
            name: ReplicaProgress(
                progress.log_end_offset,
                leading.core.is_in_sync(name),
                max(0, end_offset - progress.log_end_offset),
                (now_ns - progress.last_seen_ns) / 1e9,
            )
            for name, progress in leading.core.followers.items()
        }
        return ReplicaState(
            local.stream,
            local.number,
            local.leader_epoch,
            end_offset,
            leading.log.high_watermark,
            leading.log.size_bytes,
            followers,
        )
    except BasculeError:
        return None  # the log was closed meanwhile


# ── closed logs: of paused partitions, and of those not used since the start ─────────────────────


@dataclass(frozen=True, slots=True)
class LastKnown:
    high_watermark: int = -1
    newest_offset: int = -1
    log_start_offset: int = 0
    first_ns: int = 0
    """Time of the oldest message; 0 if it is not known."""
    latest_ns: int = 0


def last_known_of(log: PartitionLog) -> LastKnown:
    """The offsets and times of an open log."""
    newest = log.newest_offset
    latest_ns = log.last_timestamp if newest >= 0 else 0
    return LastKnown(
        log.high_watermark, newest, log.log_start_offset, max(0, log.segments.oldest.first_timestamp), latest_ns
    )


class LastKnownOffsets:
    def __init__(self, data: StreamData) -> None:
        self._data = data
        self._known: dict[tuple[int, int], LastKnown] = {}
        """By stream id and partition."""

    def note(self, local: LocalPartition) -> None:
        """The log of this replica is about to be closed."""
        if local.is_open:
            try:
                self._known[local.stream_id, local.number] = last_known_of(local.log)
            except BasculeError:
                return  # the checkpoint on the disk says it

    def of(self, stream: Stream, number: int) -> LastKnown:
        """The values of the last time that the log was open, or of its checkpoint, which may be older than the log after a crash."""
        key = (stream.id, number)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._from_disk(stream, number)
        return found

    def forget(self, stream_id: int, number: int) -> None:
        """The log is open, or was deleted."""
        self._known.pop((stream_id, number), None)

    def _from_disk(self, stream: Stream, number: int) -> LastKnown:
        try:
            saved = self._data.checkpoint(stream, number)
        except BasculeError:
            return LastKnown()
        if saved is None or saved.recovery_point == 0:
            return LastKnown()
        has_one_segment = saved.active_base == saved.log_start_offset
        return LastKnown(
            min(saved.high_watermark, saved.recovery_point - 1),
            saved.recovery_point - 1,
            saved.log_start_offset,
            max(0, saved.active_first_timestamp) if has_one_segment else 0,
            saved.last_timestamp,
        )
