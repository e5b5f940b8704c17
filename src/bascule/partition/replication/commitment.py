"""Who waits for an ack of a partition's leader, and for what.

| `streams.sync` | LEADER ack            | readers see it                          | ALL ack                                 |
|----------------|-----------------------|-----------------------------------------|-----------------------------------------|
| `interval`     | written               | written on all in-sync replicas         | written on all in-sync replicas         |
| `ack`          | written               | written on all in-sync replicas         | synced to disk on all in-sync replicas  |
| `always`       | synced to disk        | synced to disk on all in-sync replicas  | synced to disk on all in-sync replicas  |

What is on all in-sync replicas is the leader's decision (partition/core/leader.py); this class remembers whom to tell. While a leader
hands over, LEADER acks wait like ALL acks: a message that was acked is on its successor.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bascule.errors import BasculeError
from bascule.kernels.ingest.acks import AckWriter
from bascule.kernels.ingest.sink import PreparedBatch
from bascule.log import PartitionLog, SyncPolicy
from bascule.log.partition.batches import Appended
from bascule.partition.replication.ack_times import AckTimes
from bascule.proto.api_pb2 import ALL, LEADER, Ack


@dataclass(slots=True)
class _Pending:
    batch: PreparedBatch
    landed: Appended
    awaits_disk: bool
    """LEADER acks, for this server's own disk."""
    awaits_all: bool
    with_leader_acks: bool
    """LEADER acks are due with the ALL acks."""
    received_at: float | None


class Commitment:
    """Lives in the event loop. `call_in_loop` brings the word of the sync thread there."""

    def __init__(
        self,
        log: PartitionLog,
        acks: AckWriter,
        call_in_loop: Callable[[Callable[[], None]], object],
        on_acks: Callable[[], None],
        on_synced: Callable[[], None],
        on_failed: Callable[[BasculeError], None],
        times: AckTimes,
    ) -> None:
        """`on_synced` hears of every sync that was waited for, `on_failed` when there will be none."""
        self._log = log
        self._acks = acks
        self._call_in_loop = call_in_loop
        self._on_acks = on_acks
        self._tell_synced = on_synced
        self._tell_failed = on_failed
        self._times = times
        self.received_at: float | None = None
        """When what is appended next was received."""
        self._pending: deque[_Pending] = deque()
        self._acked_end_offset = 0
        self._sync_to = -1
        self._waits_for_disk = False
        self.holds_leader_acks = False

    def __len__(self) -> int:
        """Batches somebody still waits for."""
        return len(self._pending)

    def appended(self, batch: PreparedBatch, landed: Appended) -> None:
        """The batch is in the log. The leader is told after this, and tells what that means for ALL acks."""
        policy = self._log.options.sync
        wants_leader = batch.has_leader_acks
        awaits_disk = wants_leader and not self.holds_leader_acks and policy is SyncPolicy.ALWAYS
        with_leader_acks = wants_leader and self.holds_leader_acks
        if wants_leader and not awaits_disk and not with_leader_acks:
            self._acknowledge(batch, LEADER, landed, self.received_at)
        awaits_all = batch.has_all_acks or with_leader_acks
        if awaits_disk or awaits_all:
            self._pending.append(_Pending(batch, landed, awaits_disk, awaits_all, with_leader_acks, self.received_at))
        else:
            batch.release()
        if policy is SyncPolicy.ALWAYS or (awaits_all and policy is SyncPolicy.ACK):
            self._sync_to = landed.last_offset
            self._wait_for_disk()

    def repeated(self, batch: PreparedBatch, originals: Appended) -> None:
        """Nothing but duplicates, of messages up to `originals.last_offset`: nothing was appended for them."""
        if originals.last_offset < self._acked_end_offset:
            for which, is_wanted in ((LEADER, batch.has_leader_acks), (ALL, batch.has_all_acks)):
                if is_wanted:
                    self._acknowledge(batch, which, originals, self.received_at)
            batch.release()
            return
        if self._pending:  # these are in the order of their offsets
            last_offset = max(originals.last_offset, self._pending[-1].landed.last_offset)
            originals = Appended(originals.base_offset, last_offset, originals.timestamp)
        self.appended(batch, originals)

    def acknowledge_below(self, end_offset: int) -> None:
        """Everything below is on all in-sync replicas, as safe as the stream asks for."""
        self._acked_end_offset = max(self._acked_end_offset, end_offset)
        self._settle()

    def _acknowledge(self, batch: PreparedBatch, which: int, landed: Appended, received_at: float | None) -> None:
        self._acks.acknowledge(batch, which, landed.base_offset, landed.timestamp, time.time_ns())
        if received_at is not None:
            self._times.note(which, received_at)
        self._on_acks()

    # ── the disk ─────────────────────────────────────────────────────────────────────────────────

    def _wait_for_disk(self) -> None:
        if self._waits_for_disk:
            return
        try:
            while self._sync_to >= 0:
                self._waits_for_disk = True
                if self._log.call_when_synced(self, self._sync_to, self._on_synced):
                    return
                self._waits_for_disk = False
                self._note_synced()
        except BasculeError as error:
            self._waits_for_disk = False
            self._sync_to = -1
            self._give_up()
            self._tell_failed(error)

    def _on_synced(self) -> None:
        """On the sync thread."""
        self._call_in_loop(self._synced)

    def _synced(self) -> None:
        self._waits_for_disk = False
        try:
            self._note_synced()
        except BasculeError:
            return  # closed meanwhile
        self._wait_for_disk()

    def _note_synced(self) -> None:
        if self._log.synced_end_offset > self._sync_to:
            self._sync_to = -1
        self._settle()
        self._tell_synced()

    # ── telling ──────────────────────────────────────────────────────────────────────────────────

    def _settle(self) -> None:
        if not self._pending:
            return
        synced = self._log.synced_end_offset
        for one in self._pending:
            last_offset = one.landed.last_offset
            if last_offset >= max(synced, self._acked_end_offset):
                break
            if one.awaits_disk and last_offset < synced:
                one.awaits_disk = False
                self._acknowledge(one.batch, LEADER, one.landed, one.received_at)
            if one.awaits_all and last_offset < self._acked_end_offset:
                one.awaits_all = False
                self._acknowledge_all(one)
        while self._pending and not (self._pending[0].awaits_disk or self._pending[0].awaits_all):
            self._pending.popleft().batch.release()

    def _acknowledge_all(self, one: _Pending) -> None:
        if one.with_leader_acks:
            self._acknowledge(one.batch, LEADER, one.landed, one.received_at)
        if one.batch.has_all_acks:
            self._acknowledge(one.batch, ALL, one.landed, one.received_at)

    def _give_up(self) -> None:
        """The log was closed, the disk failed, or somebody else leads: nobody here can say whether these are kept."""
        while self._pending:
            one = self._pending.popleft()
            if one.awaits_all or one.awaits_disk:
                self._acks.reject(one.batch, Ack.Error.UNKNOWN)
            one.batch.release()
        self._on_acks()

    def stop(self) -> None:
        self._log.stop_waiting(self)
        self._waits_for_disk = False
        self._sync_to = -1
        with contextlib.suppress(BasculeError):
            self._settle()
        self._give_up()
