"""When a message counts as kept, and who is told: acks and the high watermark of one partition.

| `streams.sync` | LEADER ack            | ALL ack and commit                      |
|----------------|-----------------------|-----------------------------------------|
| `interval`     | written               | written on all in-sync replicas         |
| `ack`          | written               | synced to disk on all in-sync replicas  |
| `always`       | synced to disk        | synced to disk on all in-sync replicas  |

Readers see a message once it is committed; with `ack` that is when it is written everywhere, only the ALL ack waits for the disk.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bascule.errors import BasculeError
from bascule.kernels.acks import AckWriter
from bascule.kernels.ingest import PreparedBatch
from bascule.log import PartitionLog, SyncPolicy
from bascule.log.batches import Appended
from bascule.proto.api_pb2 import ALL, LEADER, Ack


@dataclass(slots=True)
class _Unsynced:
    batch: PreparedBatch
    landed: Appended


class Commitment:
    """Lives in the event loop. `call_in_loop` brings the word of the sync thread there."""

    def __init__(
        self,
        log: PartitionLog,
        acks: AckWriter,
        call_in_loop: Callable[[Callable[[], None]], object],
        on_acks: Callable[[], None],
        *,
        in_sync_replicas: int,
        min_insync_replicas: int,
    ) -> None:
        self._log = log
        self._acks = acks
        self._call_in_loop = call_in_loop
        self._on_acks = on_acks
        self._can_commit = in_sync_replicas >= min_insync_replicas
        self._unsynced: deque[_Unsynced] = deque()
        self._waits = False

    def start(self) -> None:
        """What a former life of this leader wrote is on all in-sync replicas, for there is no other: it is committed."""
        if self._can_commit:
            self._log.advance_high_watermark(self._log.newest_offset)

    def appended(self, batch: PreparedBatch, landed: Appended) -> None:
        """The batch is in the log."""
        policy = self._log.options.sync
        if self._can_commit:
            self._log.advance_high_watermark(landed.last_offset)
        if policy is not SyncPolicy.ALWAYS and batch.has_leader_acks:
            self._acknowledge(batch, LEADER, landed)
        if batch.has_all_acks and policy is SyncPolicy.INTERVAL:
            self._acknowledge_all(batch, landed)
        elif batch.has_all_acks or (batch.has_leader_acks and policy is SyncPolicy.ALWAYS):
            self._unsynced.append(_Unsynced(batch, landed))
            self._wait_for_disk()
            return
        batch.release()

    def _acknowledge(self, batch: PreparedBatch, which: int, landed: Appended) -> None:
        self._acks.acknowledge(batch, which, landed.base_offset, landed.timestamp, time.time_ns())
        self._on_acks()

    def _acknowledge_all(self, batch: PreparedBatch, landed: Appended) -> None:
        # With fewer in-sync replicas than the stream asks for nothing is committed, and an ALL ack never comes.
        if self._can_commit:
            self._acknowledge(batch, ALL, landed)

    def _wait_for_disk(self) -> None:
        if self._waits:
            return
        try:
            while self._unsynced:
                offset = self._unsynced[0].landed.last_offset
                self._waits = True
                if self._log.call_when_synced(self, offset, self._on_synced):
                    return
                self._waits = False
                self._settle()
        except BasculeError:
            self._waits = False
            self._give_up()

    def _on_synced(self) -> None:
        """On the sync thread."""
        self._call_in_loop(self._synced)

    def _synced(self) -> None:
        self._waits = False
        self._settle()
        self._wait_for_disk()

    def _settle(self) -> None:
        synced = self._log.synced_end_offset if self._unsynced else 0
        while self._unsynced and self._unsynced[0].landed.last_offset < synced:
            done = self._unsynced.popleft()
            if self._log.options.sync is SyncPolicy.ALWAYS and done.batch.has_leader_acks:
                self._acknowledge(done.batch, LEADER, done.landed)
            if done.batch.has_all_acks:
                self._acknowledge_all(done.batch, done.landed)
            done.batch.release()

    def _give_up(self) -> None:
        """The log was closed, or the disk failed: nobody can say any more whether these are safe."""
        while self._unsynced:
            batch = self._unsynced.popleft().batch
            self._acks.reject(batch, Ack.Error.UNKNOWN)
            batch.release()
        self._on_acks()

    def stop(self) -> None:
        self._log.stop_waiting(self)
        self._waits = False
        with contextlib.suppress(BasculeError):
            self._settle()
        self._give_up()
