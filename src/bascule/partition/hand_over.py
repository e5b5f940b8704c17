"""Hand-overs: a healthy leader gives the leadership to another replica, before a stop, to the preferred leader, or after a move.

During a hand-over a LEADER ack waits like an ALL ack, and the successor has everything that was acked before: no acked message is lost.
The successor receives the partition's messages before the leader stops writing, and holds them. When the successor leads, the leader
sends it a note: the hashes of all messages that it received meanwhile, and the messages that it did not store. Each message is then
stored once, in the order of its publisher, and answered once: see succession.py and docs/internals/replication.md.

A successor that cannot listen in advance is a server of an older version, or is slow. Then messages that arrive between the two leaders
are answered with UNKNOWN. Streams with a NATS queue group and sealed streams need no successor that listens: no message has two
receivers, and a refusal is NOT_STORED.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from bascule import limits
from bascule.errors import BasculeError, StateError, Unavailable
from bascule.kernels.ingest.sealed import SealedSink
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import ChangeLeader
from bascule.metadata.core.model.streams import Partition
from bascule.partition.ingest import Ingest
from bascule.partition.replica import LedPartition
from bascule.partition.replication.leading import Leading
from bascule.partition.succession_calls import HandedPartition, SuccessionCalls, SuccessionNote
from bascule.proto.api_pb2 import Ack

POLL_SECONDS: Final = 0.002
FROZEN_SECONDS_MAX: Final = 1.0
"""How long arriving messages may wait for the last acks."""
LISTENING_SECONDS_MAX: Final = 1.0
LISTENING_MARGIN_SECONDS: Final = 0.005
"""A new leader contacts its followers and subscribes to its subject at the same time, over two connections."""
LISTEN_SECONDS_MAX: Final = 2.0
"""Time limit for the successor to subscribe."""
INTEREST_SECONDS: Final = 0.02
"""Time for the servers of a NATS cluster to learn the successor's subscription."""
NOTE_SECONDS_MAX: Final = 2.0
"""Time limit for the answer to one part of the note."""
KEY_BYTES: Final = 16

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class HandOverReport:
    moved: list[tuple[str, int, str]] = field(default_factory=list)
    """Stream, partition and the new leader."""
    kept: list[tuple[str, int, str]] = field(default_factory=list)
    """Stream, partition and the reason."""


@dataclass(slots=True)
class _Succession:
    """A successor that listens in advance."""

    successor: str
    partition: HandedPartition
    key: bytes
    early: int = 0
    """Messages that were received before the successor certainly received them, too."""


class HandOvers:
    def __init__(
        self,
        server_id: str,
        controller: Controller,
        ingest: Ingest,
        calls: SuccessionCalls,
        arrive: Callable[[], Awaitable[None]],
        settled: Callable[[int], Awaitable[None]],
        has_new_leader: Callable[[LedPartition], bool],
        unsubscribe: Callable[[LedPartition], None],
    ) -> None:
        """`arrive` waits until all messages that NATS has sent to this server are here. `has_new_leader` returns whether the replica
        here has had an answer from the successor."""
        self._server_id = server_id
        self._controller = controller
        self._ingest = ingest
        self._calls = calls
        self._arrive = arrive
        self._settled = settled
        self._has_new_leader = has_new_leader
        self._unsubscribe = unsubscribe
        self._busy: set[LedPartition] = set()
        self._given_away: dict[LedPartition, _Succession | None] = {}
        """Partitions that may have another leader, and the successor if it listens."""
        self._stopped: set[LedPartition] = set()
        """Of these: their replica here has stopped leading."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def hand_over(self, local: LedPartition, successor: str | None, *, timeout: float) -> str:
        """Returns the new leader. Raises StateError if there is no successor, Unavailable on timeout."""
        partition = self._known(local)
        chosen = self._choose(local, partition, successor)
        if local in self._busy or local.sink.holds_all:
            raise Unavailable(f"{local.stream}/{local.number} is being handed over already")
        self._busy.add(local)
        try:
            await self._hand_over(local, chosen, timeout)
        finally:
            self._busy.discard(local)
        return chosen

    async def _hand_over(self, local: LedPartition, chosen: str, timeout: float) -> None:
        leading = local.open_leading()
        in_doubt, is_proposed = leading.holds_leader_acks, False
        leading.holds_leader_acks = True
        succession: _Succession | None = None
        try:
            await self._catch_up(local, leading, chosen, timeout)
            if not self._is_exclusive(local):
                succession = await self._prepare(local, chosen)
            self._ingest.freeze(local)
            await self._send_last_acks(local, leading, chosen)
            self._given_away[local] = succession
            is_proposed = True
            await self._change_leader(local, chosen, timeout)
        except BaseException as error:
            if succession is not None:
                self._cancel(succession)
            self._given_away.pop(local, None)
            if local in self._stopped:  # another server leads it after all
                self._stopped.discard(local)
                self._ingest.refuse(local, Ack.Error.UNKNOWN)
                self._unsubscribe(local)
                self._ingest.forget(local)
            else:
                # Unless this and all earlier hand-overs were refused or not sent, a successor may lead any moment: a LEADER ack would
                # promise what it may not have.
                is_certain = not is_proposed or isinstance(error, StateError | Unavailable)
                leading.holds_leader_acks = in_doubt or not is_certain
                self._ingest.thaw(local)
            raise
        if succession is None:
            await self._leave_to(local)
        else:
            await self._pass_on(local, succession)

    def is_given_away(self, local: LedPartition) -> bool:
        """Whether this object deals with the messages of the partition that stops."""
        return local in self._given_away

    def on_stopped(self, local: LedPartition) -> None:
        """The partition that was given away is stopped here, and its sink still receives messages."""
        self._stopped.add(local)
        if self._given_away[local] is None:
            # NOT_STORED makes a publisher send again; the new leader must not have the same message.
            self._ingest.refuse(local, Ack.Error.NOT_STORED if self._is_exclusive(local) else Ack.Error.UNKNOWN)

    def _is_exclusive(self, local: LedPartition) -> bool:
        """Whether only one server can store a message: NATS sends it to one, or it is sealed for one."""
        stream = self._controller.metadata.streams.get(local.stream)
        return isinstance(local.sink, SealedSink) or (stream is not None and bool(stream.group))

    # ── a successor that listens ─────────────────────────────────────────────────────────────────

    async def _prepare(self, local: LedPartition, chosen: str) -> _Succession | None:
        """Have the successor listen. None if it cannot."""
        handed = HandedPartition(local.stream, local.stream_id, local.number, local.leader_epoch)
        succession = _Succession(chosen, handed, secrets.token_bytes(KEY_BYTES))
        # From before the successor subscribes: what it receives and the leader stores has a noted hash.
        local.sink.note_received(succession.key)
        try:
            await self._calls.listen(chosen, handed, timeout=LISTEN_SECONDS_MAX)
            await asyncio.sleep(INTEREST_SECONDS)
            await self._arrive()
        except BasculeError as error:
            _logger.info("%s does not listen for %s/%d: %s", chosen, local.stream, local.number, error.message)
            self._cancel(succession)
            return None
        except BaseException:
            self._cancel(succession)
            raise
        # The successor receives all messages from here on, and some of those before.
        succession.early = local.sink.noted_hashes
        return succession

    def _cancel(self, succession: _Succession) -> None:
        task = asyncio.create_task(self._calls.cancel(succession.successor, succession.partition))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, local: LedPartition, succession: _Succession) -> None:
        """The successor leads: stop receiving, and send it what it has to know. Publishers are answered by the successor."""
        hashes, messages = self._ingest.leave(local)
        self._unsubscribe(local)
        try:
            partition = await self._changed(local)
            if hashes is None or partition is None or partition.leader != succession.successor:
                raise Unavailable("it does not lead the partition any more, or there was no memory")
            note = SuccessionNote(partition.leader_epoch, succession.key, hashes, succession.early, messages)
            await self._calls.take(succession.successor, succession.partition, note, timeout=NOTE_SECONDS_MAX)
        except BasculeError as error:
            _logger.warning(
                "%s/%d: messages that arrived during the hand-over to %s may be lost: %s",
                local.stream,
                local.number,
                succession.successor,
                error.message,
            )
        try:
            await self._settled(self._controller.metadata.applied_index)
        finally:
            self._given_away.pop(local, None)
            self._stopped.discard(local)

    async def _changed(self, local: LedPartition) -> Partition | None:
        """The partition, once this server knows its next leader."""
        deadline = time.monotonic() + NOTE_SECONDS_MAX
        while True:
            partition = self._controller.metadata.find(local.stream, local.number)
            if partition is None or partition.leader_epoch != local.leader_epoch or time.monotonic() > deadline:
                return partition
            await asyncio.sleep(POLL_SECONDS)

    # ── a successor that does not listen yet ─────────────────────────────────────────────────────

    async def _leave_to(self, local: LedPartition) -> None:
        """Refuse messages until the new leader receives them: a message without a receiver would get no answer."""
        try:
            await self._settled(self._controller.metadata.applied_index)
            deadline = time.monotonic() + LISTENING_SECONDS_MAX
            while not self._has_new_leader(local) and time.monotonic() < deadline:
                await asyncio.sleep(POLL_SECONDS)
            await asyncio.sleep(LISTENING_MARGIN_SECONDS)
        finally:
            self._given_away.pop(local, None)
            self._stopped.discard(local)
            self._unsubscribe(local)
            self._ingest.forget(local)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    async def _change_leader(self, local: LedPartition, successor: str, timeout: float) -> None:
        fence = (local.stream, local.number, self._server_id, local.leader_epoch)
        refusal = await self._controller.submit(ChangeLeader(*fence, (successor,), failed=False), timeout=timeout)
        if refusal is not None:
            raise StateError(refusal.text)

    def _known(self, local: LedPartition) -> Partition:
        stream = self._controller.metadata.streams.get(local.stream)
        partition = None if stream is None else stream.partition(local.number)
        if partition is None or partition.leader_epoch != local.leader_epoch:
            raise StateError(f"{local.stream}/{local.number} has another leader")
        return partition

    def _choose(self, local: LedPartition, partition: Partition, successor: str | None) -> str:
        others = [name for name in partition.in_sync_replicas if name != self._server_id]
        if successor is not None and successor not in others:
            raise StateError(f"{successor} is no in-sync follower of {local.stream}/{local.number}")
        if not others:
            raise StateError(f"no other replica of {local.stream}/{local.number} is in sync")
        metadata = self._controller.metadata
        staying = [name for name in others if name not in metadata.leaving] or others
        return successor or metadata.load.least_led(staying)

    async def _catch_up(self, local: LedPartition, leading: Leading, successor: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        end_offset = local.log.log_end_offset
        while leading.log_end_offset_of(successor) < end_offset:
            if time.monotonic() > deadline:
                raise Unavailable(f"{successor} has not caught up with {local.stream}/{local.number} in time")
            await asyncio.sleep(POLL_SECONDS)

    async def _send_last_acks(self, local: LedPartition, leading: Leading, successor: str) -> None:
        """The partition is frozen: wait until the successor has the whole log and all acks are sent. Raises Unavailable on timeout."""
        deadline = time.monotonic() + FROZEN_SECONDS_MAX
        while (is_writing := self._ingest.flush(local)) or leading.pending_batches or not _has_all(leading, successor):
            if time.monotonic() > deadline:
                if not is_writing and _has_all(leading, successor):
                    return  # the last acks wait for replicas other than the successor
                raise Unavailable(f"{successor} has not caught up with {local.stream}/{local.number} in time")
            await asyncio.sleep(POLL_SECONDS)

    async def hand_over_all(self, led: Iterable[LedPartition], *, timeout: float) -> HandOverReport:
        report = HandOverReport()
        deadline = time.monotonic() + timeout
        gate = asyncio.Semaphore(limits.HAND_OVERS_AT_ONCE_MAX)

        async def move(local: LedPartition) -> None:
            async with gate:
                try:
                    left = max(0.0, deadline - time.monotonic())
                    successor = await self.hand_over(local, None, timeout=left)
                    report.moved.append((local.stream, local.number, successor))
                except BasculeError as error:
                    report.kept.append((local.stream, local.number, error.message))

        await asyncio.gather(*(move(local) for local in led))
        return report


def _has_all(leading: Leading, successor: str) -> bool:
    return leading.log_end_offset_of(successor) >= leading.log.log_end_offset
