"""The end of a run: the cluster comes to rest, every replica is read, and everything that was promised is looked up.

Each replica is read twice: through the API of its broker, where `through_api` says so, and from a copy of its files. Files are also
compared batch by batch: replicas hold the same bytes, not only the same messages.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bascule.log import PartitionLog
from bascule.log.recovery.inspection import open_segments, walk_batches
from bascule.log.segments.damage import Damage
from tests.chaos.cluster.cluster_checks import lost_leader_acks, violations
from tests.chaos.cluster.cluster_groups import GroupLoad
from tests.chaos.cluster.cluster_history import ALL, LEADER, FinalLog, PartitionHistory
from tests.chaos.cluster.cluster_load import ClusterLoad
from tests.support.api_client import Api, Status, grpc, pb
from tests.support.cluster import RECOVERY_SECONDS, Cluster
from tests.support.logs import ManualSyncer
from tests.support.waiting import eventually

READ_BYTES: Final = 1 << 20


@dataclass
class Verdict:
    """What a run came to."""

    published: int = 0
    acked: dict[str, int] = field(default_factory=lambda: {ALL: 0, LEADER: 0})
    refused: int = 0
    """Messages whose answer says that they are surely not stored."""
    unknown: int = 0
    """Messages without an answer, or with one that leaves open whether they are stored."""
    stored: int = 0
    read: int = 0
    leader_acks_lost: int = 0
    leader_acks_moved: int = 0
    """Of messages that are stored, but by another leader than the one that said so, and so at another offset."""
    silence_seconds_max: float = 0.0
    violations: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [
            f"published                   {self.published:>12,}",
            f"acked by all                {self.acked[ALL]:>12,}",
            f"acked by the leader         {self.acked[LEADER]:>12,}"
            f"   of which lost {self.leader_acks_lost:,}, at another offset {self.leader_acks_moved:,}",
            f"refused                     {self.refused:>12,}",
            f"of unknown outcome          {self.unknown:>12,}",
            f"in the logs at the end      {self.stored:>12,}",
            f"read                        {self.read:>12,}",
            f"longest time without an ack {self.silence_seconds_max:>12.2f} s",
            f"violations                  {len(self.violations):>12,}",
            *(f"  {one}" for one in self.violations),
        ]


def judge(cluster: Cluster, load: ClusterLoad, groups: GroupLoad | None = None, *, through_api: bool = True) -> Verdict:
    """Ends the load. All faults have to be over; the brokers stay as they are."""
    load.join_writers()
    ends = {}
    for history in load.histories:
        cluster.wait_until_in_sync(history.stream, history.partition, 2 * RECOVERY_SECONDS)
        ends[history.name] = _wait_until_committed(cluster, history)
    load.finish(ends)
    if groups is not None:
        groups.finish(ends)
    verdict = Verdict(violations=[] if groups is None else groups.violations(ends))
    for history in load.histories:
        logs = _through_api(cluster, history) if through_api else []
        with _copies(cluster, history) as directories:
            from_files = [read_files(replica, path) for replica, path in directories.items()]
            if not history.cleaning.is_compacted:  # each replica rewrites batches at its own time
                verdict.violations += [f"{history.name}: {fault}" for fault in unequal_batches(directories)]
        verdict.violations += violations(history, from_files + logs)
        _count(verdict, history, from_files[0])
    return verdict


def _count(verdict: Verdict, history: PartitionHistory, log: FinalLog) -> None:
    verdict.published += history.published
    for policy in verdict.acked:
        verdict.acked[policy] += history.acked(policy)
    verdict.refused += history.refused
    verdict.unknown += history.published - history.refused - sum(writer.acked for writer in history.writers)
    verdict.stored += len(log)
    verdict.read += sum(len(reader.offsets) for reader in history.readers)
    lost, moved = lost_leader_acks(history, log)
    verdict.leader_acks_lost += lost
    verdict.leader_acks_moved += moved
    verdict.silence_seconds_max = max(verdict.silence_seconds_max, history.clock.longest_seconds)


def _replicas(cluster: Cluster, history: PartitionHistory) -> list[str]:
    view = cluster.view(history.stream, history.partition)
    assert view is not None
    return sorted(view.replicas)


@contextmanager
def _copies(cluster: Cluster, history: PartitionHistory) -> Iterator[dict[str, Path]]:
    """The files of each replica, as they are now: nothing is written any more, and a log of our own may be opened on them."""
    with TemporaryDirectory(dir=cluster.directory) as temporary:
        found = {}
        for replica in _replicas(cluster, history):
            found[replica] = Path(temporary) / replica
            shutil.copytree(cluster.partition_directory(replica, history.stream, history.partition), found[replica])
        yield found


def _wait_until_committed(cluster: Cluster, history: PartitionHistory) -> int:
    """Until every message in the leader's log is committed, and nothing comes any more; how many there are."""

    def look() -> int | None:
        leader = cluster.leader_of(history.stream, history.partition)
        try:
            found = cluster.api(leader).partition(history.stream, history.partition)
        except grpc.RpcError:
            return None
        return found.newestOffset + 1 if found.highWatermark == found.newestOffset >= 0 else None

    return eventually(look, f"everything in {history.name} is committed", RECOVERY_SECONDS)


def _through_api(cluster: Cluster, history: PartitionHistory) -> list[FinalLog]:
    """What each broker that has a replica serves."""
    return [_read_api(replica, cluster.api(replica), history) for replica in _replicas(cluster, history)]


def _read_api(replica: str, api: Api, history: PartitionHistory) -> FinalLog:
    log = FinalLog(f"{replica} through its API")
    subscription = api.subscribe(
        history.stream, history.partition, readISRReplica=True, stopPosition=pb.STOP_LATEST, timeout=120.0
    )
    for message in subscription.rest():
        log.add(message.offset, message.value, message.timestamp)
    assert subscription.end()[0] is Status.RESOURCE_EXHAUSTED, subscription.end()
    return log


def read_files(replica: str, directory: Path) -> FinalLog:
    log = PartitionLog(str(directory), syncer=ManualSyncer())
    found = FinalLog(replica)
    try:
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.read(offset, bytes_max=READ_BYTES, committed=False)
            if piece is None:
                break
            for record in piece.records():
                found.add(record.offset, record.value or b"", record.timestamp)
            offset = piece.next_offset
    finally:
        log.close()
    return found


def unequal_batches(directories: dict[str, Path]) -> list[str]:
    """From the start on that all logs have: retention of one may have been later than of another."""
    batches = {replica: _batches(path) for replica, path in directories.items()}
    start = max((found[0][0] for found in batches.values() if found), default=0)
    batches = {replica: [one for one in found if one[0] >= start] for replica, found in batches.items()}
    (first, expected), *others = batches.items()
    return [
        f"the bytes of {first} and {replica} differ from batch {_difference(expected, found)} on"
        for replica, found in others
        if found != expected
    ]


def _batches(directory: Path) -> list[tuple[int, int, int]]:
    """Base offset, length and checksum of the bytes of each batch. Segments may begin anywhere."""
    found = []
    for segment in open_segments(directory):
        data = Path(segment.path).read_bytes()
        for batch in walk_batches(segment):
            assert not isinstance(batch, Damage), f"{segment.path}: {batch.describe()}"
            piece = data[batch.position : batch.position + batch.header.length]
            found.append((batch.header.base_offset, batch.header.length, zlib.crc32(piece)))
    return found


def _difference(one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]) -> str:
    for place, pair in enumerate(zip(one, other, strict=False)):
        if pair[0] != pair[1]:
            return f"{place} (offset {pair[0][0]} and {pair[1][0]})"
    return f"{min(len(one), len(other))} (one of them ends there)"
