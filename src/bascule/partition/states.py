"""The state of the replicas of the partitions that this server leads, for metrics and tools."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bascule.errors import BasculeError
from bascule.partition.replica import LedPartition


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
