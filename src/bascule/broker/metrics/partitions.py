"""Metrics of the partitions that run here, the part of the page that grows. No log is opened and no file is read for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bascule import limits
from bascule.broker.metrics.exposition import Page, escape
from bascule.errors import BasculeError
from bascule.metadata.core.model.streams import Partition
from bascule.partition.replica import FollowedPartition, LedPartition, LocalPartition
from bascule.readers.pace import Pace

if TYPE_CHECKING:
    from bascule.metadata.core.state import ClusterMetadata
    from bascule.partition.registry import Partitions
    from bascule.partition.replication.leading import Leading

_OF_ALL = (
    "bascule_partition_leader",
    "bascule_partition_leader_epoch",
    "bascule_partition_subscribers",
    "bascule_partition_messages_delivered_total",
    "bascule_partition_delivered_bytes_total",
)
_OF_LOG = (
    "bascule_partition_log_start_offset",
    "bascule_partition_high_watermark",
    "bascule_partition_log_end_offset",
    "bascule_partition_size_bytes",
    "bascule_partition_records",
)
_OF_SINK = (
    "bascule_partition_messages_received_total",
    "bascule_partition_messages_refused_total",
    "bascule_partition_messages_duplicate_total",
    "bascule_partition_messages_lost_total",
)


class _Totals:
    def __init__(self) -> None:
        self.led = self.followed = self.idle = self.subscribers = 0
        self.under_replicated = self.below_min_insync = self.leader_silent = 0


async def collect(page: Page, partitions: Partitions, metadata: ClusterMetadata, pace: Pace) -> int:
    """Returns how many partitions did not fit on the page; the totals count them."""
    running = sorted(partitions, key=lambda local: (local.stream, local.number))
    await pace.rest()
    totals = _Totals()
    for place, local in enumerate(running):
        partition = metadata.find(local.stream, local.number)
        _count(totals, local, partition)
        if place < limits.METRICS_PARTITIONS_MAX:
            _tell(page, local, partition)
        if not place % 16:
            await pace.rest()
    page.add("bascule_partitions", totals.led, '{role="leader"}')
    page.add("bascule_partitions", totals.followed, '{role="follower"}')
    page.add("bascule_partitions_idle", totals.idle)
    page.add("bascule_partitions_under_replicated", totals.under_replicated)
    page.add("bascule_partitions_below_min_insync", totals.below_min_insync)
    page.add("bascule_partitions_leader_silent", totals.leader_silent)
    page.add("bascule_partitions_failing", partitions.failing_count)
    page.add("bascule_subscribers", totals.subscribers)
    return max(0, len(running) - limits.METRICS_PARTITIONS_MAX)


def _count(totals: _Totals, local: LocalPartition, partition: Partition | None) -> None:
    totals.idle += not local.is_open
    totals.subscribers += local.subscriber_count
    if not local.is_leader:
        totals.followed += 1
        totals.leader_silent += isinstance(local, FollowedPartition) and _is_leader_silent(local)
        return
    totals.led += 1
    if partition is not None:
        totals.under_replicated += partition.is_under_replicated
        totals.below_min_insync += len(partition.in_sync_replicas) < local.settings.min_insync_replicas


def _is_leader_silent(local: FollowedPartition) -> bool:
    if local.following is None:
        return False
    core = local.following.core
    return time.monotonic_ns() - core.heard_ns > core.options.leader_timeout_ns


def _tell(page: Page, local: LocalPartition, partition: Partition | None) -> None:
    labels = f'{{stream="{escape(local.stream)}",partition="{local.number}"}}'
    page.add_integers(
        _OF_ALL, (int(local.is_leader), local.leader_epoch, local.subscriber_count, *local.delivered), labels
    )
    if local.is_open:
        _tell_log(page, local, labels)
    if isinstance(local, LedPartition):
        sink = local.sink
        page.add_integers(_OF_SINK, (sink.received, sink.refused, sink.duplicates, sink.lost), labels)
        if partition is not None:
            page.add("bascule_partition_replicas", len(partition.replicas), labels)
            page.add("bascule_partition_in_sync_replicas", len(partition.in_sync_replicas), labels)
        if local.leading is not None and local.leading.core.followers:
            _tell_replicas(page, local.leading, labels[:-1])


def _tell_log(page: Page, local: LocalPartition, labels: str) -> None:
    log = local.log
    try:
        # The start is read last: retention may move it in between, and no log starts after its end.
        high_watermark = log.readable_end_offset(committed=True) - 1
        values = (log.log_start_offset, high_watermark, log.log_end_offset, log.size_bytes, log.record_count)
        timestamp = log.last_timestamp
    except BasculeError:
        return  # closed just now
    page.add_integers(_OF_LOG, values, labels)
    if timestamp > 0:
        page.add("bascule_partition_last_timestamp_seconds", timestamp / 1e9, labels)


def _tell_replicas(page: Page, leading: Leading, labels: str) -> None:
    try:
        end_offset = leading.log.log_end_offset
    except BasculeError:
        return
    now_ns = time.monotonic_ns()
    for name, progress in sorted(leading.core.followers.items()):
        of_replica = f'{labels},replica="{escape(name)}"}}'
        page.add("bascule_replica_lag_offsets", max(0, end_offset - progress.log_end_offset), of_replica)
        page.add("bascule_replica_silent_seconds", round(max(0, now_ns - progress.last_seen_ns) / 1e9, 3), of_replica)
        page.add("bascule_replica_in_sync", leading.core.is_in_sync(name), of_replica)
