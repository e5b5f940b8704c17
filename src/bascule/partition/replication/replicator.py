"""The parts that the replicated partitions of a server share: the link to the other servers, timers, threads, the controller.

Messages that arrive go to the partition that they name. Answers with data leave as long as the link has room for them, then wait for
room in their order; those for replicas that are catching up also respect the cluster's replication throttle.
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
from bascule.partition.core.follower_events import Flaw
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
    def __init__(
        self,
        link: ReplicationLink,
        server_id: str,
        controller: Controller,
        flush_acks: Callable[[], None],
        on_broken: Callable[[_Role, str, Flaw | None], None],
    ) -> None:
        """`flush_acks` sends the acks that were written. `on_broken` is called when a replica here cannot be relied on: with the role,
        the reason, and the flaw of its log if that cannot be used."""
        self.link = link
        self.server_id = server_id
        self.flush_acks = flush_acks
        self.throttle = Throttle(lambda: controller.metadata.replication_throttle)
        self._on_broken = on_broken
        self._controller = controller
        self._loop = asyncio.get_running_loop()
        self.timers = CoarseTimers(self._loop)
        self._threads = ThreadPoolExecutor(limits.REPLICATION_THREADS, "bascule-replica")
        self._roles: dict[PartitionKey, _Role] = {}
        self._numbers: dict[PartitionKey, int] = {}
        self._deferred: deque[tuple[Leading, ReadBatches]] = deque()
        self._notices: dict[tuple[Leading, str], bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slow_writes = SlowWrites()
        link.on_request = self._on_request
        link.on_answer = self._on_answer
        link.on_room = self._send_deferred
        link.on_connected = self._on_connected

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
        """Above every number that this process, or one that was stopped cleanly before it, has used for the partition: a leader
        ignores lower ones as old."""
        return self._numbers.get(key) or time.time_ns()

    def forget(self, key: PartitionKey) -> None:
        """The partition is deleted."""
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
        """Messages in flight were lost: followers repeat their requests, leaders their notices."""
        for role in list(self._roles.values()):
            role.reconnected()

    # ── answers with data ────────────────────────────────────────────────────────────────────────

    def may_send(self, leading: Leading, request: ReadBatches) -> bool:
        """Whether to read and send at once. If not, `leading.send_batches` is called as soon as the link and the throttle allow it."""
        if self._deferred or not self.link.has_room:
            self._deferred.append((leading, request))
            return False
        if leading.core.is_in_sync(request.replica):
            return True
        delay = self.throttle.delay_seconds()
        if delay > 0:
            self._loop.call_later(delay, self._send_later, leading, request)
        return delay <= 0

    def _send_later(self, leading: Leading, request: ReadBatches) -> None:
        if not leading.is_over and self.may_send(leading, request):
            leading.send_batches(request)

    def _send_deferred(self) -> None:
        while self._deferred and self.link.has_room:
            leading, request = self._deferred.popleft()
            if not leading.is_over:
                leading.send_batches(request)

    # ── notices ──────────────────────────────────────────────────────────────────────────────────

    def notify(self, leading: Leading, replica: str, *, is_beginning: bool) -> None:
        """Calls `leading.notice_due` a moment later. Under load an answer tells the high watermark first, and no notice is sent."""
        if not self._notices:
            self._loop.call_later(limits.REPLICATION_NOTICE_SECONDS, self._send_notices)
        self._notices[leading, replica] = is_beginning or self._notices.get((leading, replica), False)

    def _send_notices(self) -> None:
        notices, self._notices = self._notices, {}
        for (leading, replica), is_beginning in notices.items():
            leading.notice_due(replica, is_beginning)

    # ── the controller ───────────────────────────────────────────────────────────────────────────

    def propose(self, leading: Leading, effect: Shrink | Expand) -> None:
        self.spawn(self._propose(leading, effect))

    async def _propose(self, leading: Leading, effect: Shrink | Expand) -> None:
        stream, number = leading.stream, leading.key[1]
        fence = (stream, number, effect.replica, self.server_id, leading.leader_epoch)
        if isinstance(effect, Shrink):
            op: ShrinkIsr | ExpandIsr = ShrinkIsr(*fence)
            _logger.warning("%s: %s leaves the in-sync replicas: %s", leading.name, effect.replica, effect.reason)
        else:
            op = ExpandIsr(*fence, effect.replica_epoch, effect.partition_epoch)
        try:
            refusal = await self._controller.submit(op)
            outcome = ProposalOutcome.DONE if refusal is None else ProposalOutcome.REFUSED
            if refusal is not None:
                _logger.info("%s: %s", leading.name, refusal.text)
            elif isinstance(effect, Expand):
                _logger.info("%s: %s is in sync", leading.name, effect.replica)
        except BasculeError as error:
            # Also when this attempt was certainly not sent: an earlier one may still be in flight.
            outcome = ProposalOutcome.UNKNOWN
            _logger.warning("%s: the in-sync replicas cannot be changed now: %s", leading.name, error.message)
        # The metadata first: the proposal may have been applied, and the leader must not assume the contrary for a moment.
        partition = self._known(leading)
        if partition is not None:
            leading.refresh(partition)
            leading.settled(effect.replica, outcome)

    def _known(self, role: Leading) -> Partition | None:
        """The partition, if the role is still the one in the metadata."""
        stream = self._controller.metadata.streams.get(role.stream)
        partition = None if stream is None or stream.id != role.key[0] else stream.partition(role.key[1])
        return partition if partition is not None and partition.leader_epoch == role.leader_epoch else None

    def report_leader(self, following: Following) -> None:
        if not following.is_reporting:
            following.is_reporting = True
            self.spawn(self._report(following))

    async def _report(self, following: Following) -> None:
        core = following.core
        _logger.warning("%s: its leader %s is silent", following.name, core.leader)
        try:
            refusal = await self._controller.report_leader(
                following.stream, following.key[1], self.server_id, core.leader, core.leader_epoch
            )
            if refusal is not None:
                _logger.info("%s: the report is refused: %s", following.name, refusal.text)
        except BasculeError as error:
            _logger.warning("%s: the leader cannot be reported now: %s", following.name, error.message)
        finally:
            following.is_reporting = False

    def step_down(self, leading: Leading, reason: str, *, is_damaged: bool) -> None:
        self._on_broken(leading, reason, Flaw.DAMAGED if is_damaged else None)

    def rebuild(self, following: Following, reason: str, flaw: Flaw) -> None:
        self._on_broken(following, reason, flaw)

    # ── threads ──────────────────────────────────────────────────────────────────────────────────

    def writes_at_once(self, size: int) -> bool:
        """Whether the event loop writes it itself: it is small, and the disk has been fast."""
        return size <= limits.REPLICATION_INLINE_BYTES and not self._slow_writes.expected(time.monotonic())

    def note_write(self, seconds: float) -> None:
        self._slow_writes.note(seconds, time.monotonic())

    def run(self, action: Callable[[], _T]) -> Awaitable[_T]:
        return self._loop.run_in_executor(self._threads, action)

    def call_in_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        self.timers.close()
        for task in list(self._tasks):
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
