"""Everything that the replicated partitions of a server share: the line to the other servers, timers, threads, the controller.

Messages that arrive go to the partition they are for. Answers with data leave as long as there is room for them on the line, then
wait their turn; those for replicas that are catching up also keep to the cluster's throttle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from bascule import limits
from bascule.errors import BasculeError
from bascule.log.disk.slowness import SlowWrites
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import ExpandIsr, ShrinkIsr
from bascule.metadata.core.model.streams import Partition
from bascule.partition.core.codec import Answer, PartitionKey, Request
from bascule.partition.core.leader_events import Expand, ProposalOutcome, ReadBatches, Shrink
from bascule.partition.core.messages import EpochAnswer, Fetch, FetchAnswer, Verdict
from bascule.partition.replication.following import Following
from bascule.partition.replication.leading import Leading
from bascule.partition.replication.link import ReplicationLink
from bascule.partition.replication.throttle import Throttle
from bascule.partition.replication.timers import CoarseTimers

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_Role = Leading | Following


class Replicator:
    def __init__(self, link: ReplicationLink, server_id: str) -> None:
        self.link = link
        self.server_id = server_id
        self._throttle = Throttle(self._throttle_rate)
        self.on_broken: Callable[[_Role, str, bool], None] = _ignore
        """A replica here cannot be relied on: the role, why, and whether its log is damaged."""
        self._loop = asyncio.get_running_loop()
        self.timers = CoarseTimers(self._loop)
        self._threads = ThreadPoolExecutor(limits.REPLICATION_THREADS, "bascule-replica")
        self._roles: dict[PartitionKey, _Role] = {}
        self._numbers: dict[PartitionKey, int] = {}
        self._deferred: deque[tuple[Leading, ReadBatches]] = deque()
        self._notices: dict[tuple[Leading, str], bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._controller: Controller | None = None
        self._slow_writes = SlowWrites()
        link.on_request = self._on_request
        link.on_answer = self._on_answer
        link.on_room = self._send_deferred
        link.on_connected = self._on_connected

    def connect(self, controller: Controller) -> None:
        self._controller = controller

    def _throttle_rate(self) -> int:
        return 0 if self._controller is None else self._controller.metadata.replication_throttle

    # ── roles ────────────────────────────────────────────────────────────────────────────────────

    def attach(self, role: _Role) -> None:
        self._roles[role.key] = role

    def detach(self, role: _Role) -> None:
        if self._roles.get(role.key) is role:
            del self._roles[role.key]
        self.timers.disarm(role)
        if isinstance(role, Following):
            self._numbers[role.key] = role.core.next_number

    def next_number(self, key: PartitionKey) -> int:
        """Above every number that this process, or one that was stopped cleanly before it, has used for the partition: its leader may
        be the same, and takes lower ones for old."""
        return self._numbers.get(key) or time.time_ns()

    def forget(self, key: PartitionKey) -> None:
        """The partition is gone for good."""
        self._numbers.pop(key, None)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def _on_request(self, sender: str, key: PartitionKey, request: Request, now_ns: int) -> None:
        role = self._roles.get(key)
        if isinstance(role, Leading):
            role.received(sender, request, now_ns)
        elif not isinstance(request, Fetch):
            refused = EpochAnswer(request.leader_epoch, request.number, Verdict.NOT_LEADER)
            self.link.send(sender, key, refused)
        elif request.is_fetch:
            self.link.send(sender, key, FetchAnswer(request.leader_epoch, request.number, Verdict.NOT_LEADER))

    def _on_answer(self, sender: str, key: PartitionKey, answer: Answer, now_ns: int) -> None:
        role = self._roles.get(key)
        if isinstance(role, Following):
            role.received(sender, answer, now_ns)

    def _on_connected(self) -> None:
        """What was on its way is lost: everybody begins to ask, and to notify, again."""
        for role in list(self._roles.values()):
            role.reconnected()

    # ── sending batches ──────────────────────────────────────────────────────────────────────────

    def send_batches(self, leading: Leading, effect: ReadBatches) -> None:
        if self._deferred or not self.link.has_room:
            self._deferred.append((leading, effect))
            return
        delay = 0.0 if leading.core.is_in_sync(effect.replica) else self._throttle.delay_seconds()
        if delay > 0:
            self._loop.call_later(delay, self._send_later, leading, effect)
        else:
            self._read_and_send(leading, effect)

    def _send_later(self, leading: Leading, effect: ReadBatches) -> None:
        if not leading.is_over:
            self.send_batches(leading, effect)

    def _send_deferred(self) -> None:
        while self._deferred and self.link.has_room:
            leading, effect = self._deferred.popleft()
            if not leading.is_over:
                self._read_and_send(leading, effect)

    def _read_and_send(self, leading: Leading, effect: ReadBatches) -> None:
        if leading.slow_reads.expected:
            self._spawn(self._read_on_thread(leading, effect))
        else:
            self._send_answer(leading, effect, self._read(leading, effect))

    def _read(self, leading: Leading, effect: ReadBatches) -> bytes | memoryview | None:
        began = time.monotonic()
        data = leading.read(effect, limits.REPLICATION_READ_BYTES)
        leading.slow_reads.note(time.monotonic() - began)
        return data

    async def _read_on_thread(self, leading: Leading, effect: ReadBatches) -> None:
        data = await self.run(lambda: self._read(leading, effect))
        if not leading.is_over:
            self._send_answer(leading, effect, data)

    def _send_answer(self, leading: Leading, effect: ReadBatches, data: bytes | memoryview | None) -> None:
        if data and not leading.core.is_in_sync(effect.replica):
            self._throttle.spend(len(data))
        leading.batches_read(effect, data)

    # ── notices ──────────────────────────────────────────────────────────────────────────────────

    def notify(self, leading: Leading, replica: str, *, is_beginning: bool) -> None:
        """A moment later, unless an answer has told it by then: under load most notices are never sent."""
        if not self._notices:
            self._loop.call_later(limits.REPLICATION_NOTICE_SECONDS, self._send_notices)
        self._notices[leading, replica] = is_beginning or self._notices.get((leading, replica), False)

    def _send_notices(self) -> None:
        notices, self._notices = self._notices, {}
        for (leading, replica), is_beginning in notices.items():
            leading.notice_due(replica, is_beginning)

    # ── the controller ───────────────────────────────────────────────────────────────────────────

    def propose(self, leading: Leading, effect: Shrink | Expand) -> None:
        self._spawn(self._propose(leading, effect))

    async def _propose(self, leading: Leading, effect: Shrink | Expand) -> None:
        stream, number = leading.stream, leading.key[1]
        fence = (stream, number, effect.replica, self.server_id, leading.leader_epoch)
        if isinstance(effect, Shrink):
            op: ShrinkIsr | ExpandIsr = ShrinkIsr(*fence)
            _logger.warning("%s: %s leaves the in-sync replicas: %s", leading.name, effect.replica, effect.reason)
        else:
            op = ExpandIsr(*fence, effect.replica_epoch, effect.partition_epoch)
        assert self._controller is not None
        try:
            refusal = await self._controller.submit(op)
            outcome = ProposalOutcome.DONE if refusal is None else ProposalOutcome.REFUSED
            if refusal is not None:
                _logger.info("%s: %s", leading.name, refusal.text)
            elif isinstance(effect, Expand):
                _logger.info("%s: %s is in sync", leading.name, effect.replica)
        except BasculeError as error:
            # Also when this attempt was surely not made: an earlier one may still be under way.
            outcome = ProposalOutcome.UNKNOWN
            _logger.warning("%s: the in-sync replicas cannot be changed now: %s", leading.name, error.message)
        # First what the metadata says: it may have been done, and the leader must not believe the contrary for a moment.
        partition = self._known(leading)
        if partition is not None:
            leading.refresh(partition)
            leading.settled(effect.replica, outcome)

    def _known(self, role: Leading) -> Partition | None:
        """The partition, if the role still is what the metadata says."""
        assert self._controller is not None
        stream = self._controller.metadata.streams.get(role.stream)
        partition = None if stream is None or stream.id != role.key[0] else stream.partition(role.key[1])
        return partition if partition is not None and partition.leader_epoch == role.leader_epoch else None

    def report_leader(self, following: Following) -> None:
        if not following.is_reporting:
            following.is_reporting = True
            self._spawn(self._report(following))

    async def _report(self, following: Following) -> None:
        assert self._controller is not None
        core = following.core
        _logger.warning("%s: its leader %s is silent", following.name, core.leader)
        try:
            refusal = await self._controller.report_leader(
                following.stream, following.key[1], self.server_id, core.leader, core.leader_epoch
            )
            if refusal is not None:
                _logger.info("%s: the report is refused: %s", following.name, refusal.text)
        except BasculeError as error:
            _logger.warning("%s: the controller cannot be told: %s", following.name, error.message)
        finally:
            following.is_reporting = False

    def step_down(self, leading: Leading, reason: str, *, is_damaged: bool) -> None:
        self.on_broken(leading, reason, is_damaged)

    def rebuild(self, following: Following, reason: str) -> None:
        self.on_broken(following, reason, True)

    # ── threads ──────────────────────────────────────────────────────────────────────────────────

    def writes_at_once(self, size: int) -> bool:
        """Little to write, and the disk has been quick: nobody minds if the event loop waits for it."""
        return size <= limits.REPLICATION_INLINE_BYTES and not self._slow_writes.expected(time.monotonic())

    def note_write(self, seconds: float) -> None:
        self._slow_writes.note(seconds, time.monotonic())

    def run(self, action: Callable[[], _T]) -> Awaitable[_T]:
        return self._loop.run_in_executor(self._threads, action)

    def call_in_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        self.timers.close()
        for task in list(self._tasks):
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _ignore(*_: object) -> None:
    """For whom nobody listens."""
