"""A member of a consumer group: reads its partitions, writes its progress, and hands partitions over in order.

    async with client.consumer("billing", ["orders"]) as consumer:
        async for message in consumer:
            …                              # processed when the next message is requested

The group's progress in a partition is a cursor, `__group:<group>`, with the last processed offset. The member that reads a partition
writes a hold into a second cursor, `__hold:<group>`, and clears it when it releases the partition: by then the first cursor is written.
The next member waits for that, so that no message is processed twice; it waits `handover_timeout` at most, since the previous member
may be dead. A member replaces only a hold that it has seen: of two that take a partition at the same moment, one waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self

from bascule.client.connection import options, wire
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.retry import Backoff, TimeLimit
from bascule.client.consume import positions
from bascule.client.consume.coordination import Coordination
from bascule.client.consume.cursors import FetchedCursor, fetch_cursor, replace_cursor, set_cursor
from bascule.client.consume.group import CURSOR_PREFIX, HOLD_PREFIX, Change, PartitionProgress, Place
from bascule.client.consume.partition_reader import PartitionReader, ReaderOptions
from bascule.client.consume.positions import Position, Range, Start
from bascule.errors import (
    BasculeError,
    ClientClosed,
    Conflict,
    NotGroupMember,
    OperatorError,
    OutcomeUnknown,
    StateError,
    StreamDeleted,
    StreamNotFound,
    Unavailable,
)
from bascule.kernels.client.messages import Message, MessageBatch

REOPEN_SECONDS: Final = 1.0
"""Interval between two attempts to open a partition that is paused, readonly and read to its end, or without a leader."""

TAG_BITS: Final = 20
TAG_MASK: Final = (1 << TAG_BITS) - 1

NOBODY: Final = -1
"""In `__hold`: the partition is free."""

NEVER: Final = -1
"""In `__group`: the group has never read the partition."""

BEGINNING: Final = -2
"""In `__group`: read from offset 0 on; nothing is processed yet."""


class Assignment(NamedTuple):
    """A partition that this consumer reads."""

    stream: str
    partition: int


Callback = Callable[[list[Assignment]], Awaitable[None] | None]


@dataclass(slots=True, eq=False)
class _Held:
    """A partition that this member reads."""

    place: Assignment
    position: Position
    epoch: int
    reader: PartitionReader
    stream_id: int
    """Identity of the stream, 0 if the broker does not tell it: a checkpoint must not reach a new stream of the same name."""
    progress: PartitionProgress = field(default_factory=PartitionProgress)
    revoked: bool = False
    """No more of its messages are delivered."""
    announced: bool = False
    """`on_assigned` was called for it, and `on_revoked` not yet."""
    paused: bool = False
    rest: Iterator[Message] = field(default_factory=lambda: iter(()))
    """Messages of the batch that is being delivered."""
    aside: list[Message] = field(default_factory=list)
    """What was left of it when the partition was paused."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def delivers(self) -> bool:
        return not self.revoked and not self.paused


class Consumer:
    """An async iterator of the messages of all partitions that the group gives to this member. Made by `Client.consumer`."""

    def __init__(
        self,
        brokers: Brokers,
        group: str,
        streams: Iterable[str],
        *,
        consumer_id: str | None,
        wanted: Range,
        auto_checkpoint: float | None,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        handover_timeout: float,
        patience: float,
    ) -> None:
        self.group = group
        self.consumer_id = consumer_id or f"bascule-{secrets.token_hex(8)}"
        self._brokers = brokers
        self._wanted_range = wanted
        self._auto_checkpoint = auto_checkpoint
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._handover_timeout = handover_timeout
        self._reader_options = ReaderOptions(patience=patience)
        self._coordination = Coordination(
            brokers,
            group,
            self.consumer_id,
            list(streams),
            on_assignments=self._assigned,
            on_put_out=self._put_out,
        )
        self._held: dict[Place, _Held] = {}
        self._notes: dict[Place, int] = {}
        """The holds that we wrote into `__hold` and have not cleared: the epoch, then bits that identify this member."""
        self._tag = secrets.randbits(TAG_BITS)
        self._epoch = 0
        """The epoch of the assignments in `_wanted`."""
        self._turns: deque[_Held] = deque()
        self._wanted: frozenset[Place] = frozenset()
        self._lost = False
        self._has_taken = False
        self._current: _Held | None = None
        """The partition of the last message that was delivered, until the next one is requested."""
        self._reading: _Held | None = None
        """The partition whose batch is being delivered."""
        self._news = asyncio.Event()
        self._returned = asyncio.Event()
        self._rebalance = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._error: BaseException | None = None
        self._opened = False
        self._closed = False

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> Self:
        """Join the group. Iterating does it by itself."""
        self._check_open()
        if not self._opened:
            self._opened = True
            try:
                await self._coordination.join()
            except BaseException:
                self._closed = True
                raise
            if self._closed:  # closed meanwhile: the group may have seen the leave before the join
                await self._coordination.leave()
                self._check_open()
            self._spawn(self._coordination.run, "heartbeats")
            self._spawn(self._rebalance_for_ever, "rebalance")
            if self._auto_checkpoint is not None:
                self._spawn(self._checkpoint_for_ever, "checkpoints")
        return self

    async def close(self, *, processed: bool = True) -> None:
        """Write the progress, release the partitions, leave the group. `processed` says whether the last message was processed."""
        if self._closed:
            return
        self._closed = True
        self._news.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if processed:
            self._came_back()
        self._current = None
        if self._opened:
            await self._give_up(list(self._held.values()))
            # Partitions that were being taken over.
            await asyncio.gather(*(self._withdraw(Assignment(*place)) for place in list(self._notes)))
            await self._coordination.leave()

    @property
    def assignments(self) -> list[Assignment]:
        """The partitions that are read now."""
        return sorted(held.place for held in self._held.values() if held.announced and not held.revoked)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close(processed=kind is None)

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        async def run() -> None:
            try:
                await work()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._error = self._error or error
                self._news.set()

        self._tasks.append(asyncio.get_running_loop().create_task(run(), name=f"{self.group} {name}"))

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer was closed")

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message. The previous one counts as processed now."""
        self._came_back()
        while True:
            held = self._reading
            if held is not None and held.delivers:
                for message in held.rest:
                    held.progress.hand_out(message.offset)
                    self._current = held
                    return message
            self._read_on(*await self._received())

    async def poll(self, timeout: float) -> Message | None:
        """The next message; None if none arrives within `timeout` seconds. The previous message counts as processed now."""
        await self.open()
        try:
            async with asyncio.timeout(options.seconds("timeout", timeout, zero=True)):
                return await self.__anext__()
        except TimeoutError:
            return None

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """The same as columns. A batch counts as processed when the next one is requested."""
        while True:
            yield await self.next_batch()

    async def next_batch(self) -> MessageBatch:
        self._came_back()
        while True:
            held, batch = await self._received()
            if isinstance(batch, MessageBatch):
                held.progress.hand_out(batch.last_offset)
                self._current = held
                return batch
            self._read_on(held, batch)  # the application reads messages too

    def _read_on(self, held: _Held, messages: Iterable[Message]) -> None:
        held.aside = []
        held.rest = iter(messages)
        self._reading = held

    async def _received(self) -> tuple[_Held, MessageBatch | list[Message]]:
        if not self._opened:
            await self.open()
        while True:
            self._check_open()
            if self._error is not None:
                raise self._error
            self._news.clear()
            for _ in range(len(self._turns)):
                held = self._turns[0]
                self._turns.rotate(-1)
                if held.delivers and (batch := held.aside or held.reader.take()):
                    return held, batch
            await self._news.wait()

    def _came_back(self) -> None:
        if self._current is not None:
            self._current.progress.came_back()
            self._current = None
            self._returned.set()

    # ── positions ────────────────────────────────────────────────────────────────────────────────

    def pause(self, *assignments: Place) -> None:
        """Deliver no more messages of these partitions, or of all without any, until `resume`. They stay with this member; a partition
        that it loses and gets again is not paused."""
        for held in self._chosen(assignments):
            held.paused = True
            if held is self._reading:
                held.aside, self._reading = list(held.rest), None

    def resume(self, *assignments: Place) -> None:
        """Deliver messages of these partitions, or of all without any, again: from the first one that was not delivered."""
        for held in self._chosen(assignments):
            held.paused = False
        self._news.set()

    @property
    def paused(self) -> list[Assignment]:
        """The partitions of which no messages are delivered."""
        return sorted(held.place for held in self._held.values() if held.paused and held.announced)

    async def seek(self, start: Start, *assignments: Place) -> None:
        """Go on reading at `start` in these partitions, or in all without any: what `Client.subscribe` takes, such as an offset.

        The group has the new position after the next checkpoint. If the broker cannot be reached, this raises Unavailable, and the
        consumer goes on at `start` when it can. Raises NotGroupMember when another member has a partition now.
        """
        wanted = positions.parse(start, None, reverse=False, now_ns=time.time_ns())
        await self.open()
        await asyncio.gather(*(self._seek(held, wanted) for held in self._chosen(assignments)))

    async def _seek(self, held: _Held, wanted: Range) -> None:
        if self._current is held:
            self._came_back()  # a rebalance does not wait for the message in hand
        held.position, held.rest, held.aside = Position(wanted), iter(()), []
        old = held.reader
        # Until it is open it has not ended, so that `_reopen` leaves it alone.
        reader = held.reader = self._reader(held.place, held.position, held.epoch, held.stream_id)
        try:
            await old.close()  # a second subscription of the group would end it as one of a newer member
            held.progress.moved()
            await reader.open(TimeLimit.after(self._brokers.timeout))
            begin = 0 if wanted.start_position == positions.EARLIEST else held.position.pinned_start
            if begin is not None and held.progress.handed_out is None:  # no message was delivered meanwhile
                held.progress.came_to(begin - 1 if begin else BEGINNING)
        except BaseException:
            reader.abandon()
            self._rebalance.set()
            raise
        if held.revoked:
            await reader.close()
            raise _not_ours(held.place)
        self._news.set()

    def _chosen(self, assignments: tuple[Place, ...]) -> list[_Held]:
        self._check_open()
        if not assignments:
            return [held for held in self._held.values() if held.announced and not held.revoked]
        chosen = [self._held.get((stream, partition)) for stream, partition in assignments]
        for place, held in zip(assignments, chosen, strict=True):
            if held is None or held.revoked:
                raise _not_ours(place)
        return [held for held in chosen if held is not None]

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────

    async def checkpoint(self, message: Message | None = None) -> None:
        """Write that everything up to this message is processed; without one, everything that was delivered before the last message.

        Raises NotGroupMember when another member has the partition now.
        """
        if message is None:
            for held in list(self._held.values()):
                await self._write(held)
            return
        found = self._held.get((message.stream, message.partition))
        if found is None:
            raise _not_ours((message.stream, message.partition))
        async with found.writing:
            await self._set_cursor(found.place, message.offset, found.stream_id)
            found.progress.checkpointed = message.offset

    async def _checkpoint_for_ever(self) -> None:
        while self._auto_checkpoint is not None:
            await asyncio.sleep(self._auto_checkpoint)
            for held in list(self._held.values()):
                if not held.revoked:
                    try:
                        await self._write(held)
                    except (Unavailable, OperatorError, OutcomeUnknown, StreamNotFound):
                        continue  # the next one will do, or the stream was deleted

    async def _write(self, held: _Held) -> None:
        async with held.writing:
            offset = held.progress.to_checkpoint
            if offset is not None:
                await self._set_cursor(held.place, offset, held.stream_id)
                held.progress.checkpointed = offset

    # ── assignments ──────────────────────────────────────────────────────────────────────────────

    def _assigned(self, wanted: frozenset[Place], epoch: int) -> None:
        self._epoch = epoch
        if wanted != self._wanted or any(held.revoked for held in self._held.values()):
            self._wanted = wanted
            self._rebalance.set()

    def _put_out(self) -> None:
        """The group has removed us: our partitions belong to other members, and we must not write their cursors."""
        self._wanted = frozenset()
        self._lost = True
        for held in self._held.values():
            held.revoked = True
        self._rebalance.set()

    def _reader_news(self, place: Place) -> None:
        held = self._held.get(place)
        if held is not None and held.reader.ended:
            if isinstance(held.reader.error, NotGroupMember | StreamDeleted) and not held.revoked:
                # A newer member reads it, or the stream is gone: stop at once, and ask the coordinator for the assignments.
                held.revoked = True
                self._wanted -= {place}
                self._coordination.hurry()
            self._rebalance.set()
        self._news.set()

    async def _rebalance_for_ever(self) -> None:
        while True:
            unfinished = self._wanted - self._held.keys() or any(held.reader.ended for held in self._held.values())
            pause = REOPEN_SECONDS if unfinished else None
            try:
                async with asyncio.timeout(pause):
                    await self._rebalance.wait()
            except TimeoutError:
                pass
            self._rebalance.clear()
            lost, self._lost = self._lost, False
            ours = frozenset(place for place, held in self._held.items() if not held.revoked)
            change = Change.between(ours, self._wanted)
            leaving = [held for place, held in self._held.items() if held.revoked or place in change.revoked]
            if leaving:
                await self._give_up(leaving, lost=lost)
            await self._take(sorted(change.assigned - self._held.keys()))
            await self._reopen()

    async def _give_up(self, leaving: list[_Held], *, lost: bool = False) -> None:
        """Stop delivery, wait for the message in hand, call `on_revoked`, write the cursor, clear the hold."""
        for held in leaving:
            held.revoked = True
        try:
            async with asyncio.timeout(self._handover_timeout):
                while self._current in leaving:
                    self._returned.clear()
                    await self._returned.wait()
        except TimeoutError:
            pass  # the message in hand may be processed again by the next member
        known = [held for held in leaving if held.announced]
        for held in known:
            held.announced = False
        if known:
            await _tell(self._on_revoked, sorted(held.place for held in known))
        await asyncio.gather(*(self._let_go(held, lost=lost) for held in leaving))

    async def _let_go(self, held: _Held, *, lost: bool) -> None:
        """Release a partition. `close` repeats it if it was cancelled: the partition stays in `_held` until all is done."""
        await held.reader.close()
        if held in self._turns:
            self._turns.remove(held)
        try:
            if not lost and self._auto_checkpoint is not None and await self._is_noted(held.place):
                await self._write(held)
        except (Unavailable, StateError, OperatorError, OutcomeUnknown):
            pass  # the next member begins at the last checkpoint
        await self._withdraw(held.place)
        self._held.pop(held.place, None)

    async def _withdraw(self, place: Assignment) -> None:
        """Clear our hold, unless another member has replaced it."""
        # If that fails, the next member waits for the handover timeout.
        with contextlib.suppress(Unavailable, StateError, OperatorError, OutcomeUnknown):
            await self._replace_note(place, self._notes.get(place, NOBODY), NOBODY)
        self._notes.pop(place, None)

    async def _is_noted(self, place: Assignment) -> bool:
        return (await self._fetch_cursor(HOLD_PREFIX, place)).offset == self._notes.get(place)

    async def _take(self, places: list[Place]) -> None:
        # All at once: if the previous member is dead, each partition takes the whole handover timeout.
        outcomes = await asyncio.gather(*(self._try_to_take(Assignment(*place)) for place in places))
        taken = [held for held in outcomes if held is not None]
        # The assignments may have changed meanwhile.
        await asyncio.gather(*(self._let_go(held, lost=True) for held in taken if held.place not in self._wanted))
        taken = [held for held in taken if held.place in self._wanted]
        if not taken:
            return
        for held in taken:
            held.announced = True
        await _tell(self._on_assigned, [held.place for held in taken])
        self._turns.extend(taken)
        self._news.set()
        for held in taken:
            self._reader_news(held.place)

    async def _try_to_take(self, place: Assignment) -> _Held | None:
        try:
            return await self._take_over(place)
        except NotGroupMember:
            # A newer member reads it: ask the coordinator whether it is still ours.
            self._wanted -= {place}
            self._coordination.hurry()
        except (Unavailable, StateError, OutcomeUnknown):
            pass  # it is tried again
        except OperatorError:
            if not self._has_taken:
                raise  # it never worked: perhaps cursors are not enabled
        return None

    async def _take_over(self, place: Assignment) -> _Held:
        """Take a partition over, after the previous member has released it or had the time to."""
        epoch = self._epoch
        await self._note(place, epoch)
        cursor = await self._fetch_cursor(CURSOR_PREFIX, place)
        self._has_taken = True
        position = Position(self._wanted_range)
        if cursor.offset != NEVER:
            position.last = max(cursor.offset, -1)
        reader = self._reader(place, position, epoch, cursor.stream_id)
        try:
            await reader.open(TimeLimit.after(self._brokers.timeout))
            begin = position.pinned_start
            if cursor.offset == NEVER and begin is not None:
                # Pinned for the group: the next member must not start at what is newest by then.
                await self._set_cursor(place, begin - 1 if begin else BEGINNING, cursor.stream_id)
        except BaseException:
            reader.abandon()
            raise
        held = self._held[place] = _Held(place, position, epoch, reader, cursor.stream_id)
        return held

    async def _note(self, place: Assignment, epoch: int) -> None:
        """Write our hold as soon as the partition is free."""
        note = epoch << TAG_BITS | self._tag
        while True:
            holder = (await self._fetch_cursor(HOLD_PREFIX, place)).offset
            if holder != NOBODY and holder & TAG_MASK != self._tag:
                holder = await self._wait_for_release(place, epoch, holder)
            self._notes[place] = note  # even if the answer is lost
            try:
                return await self._replace_note(place, holder, note)
            except Conflict:
                continue  # another member was faster: wait for that one

    async def _wait_for_release(self, place: Assignment, epoch: int, holder: int) -> int:
        """Subscribe, which ends the previous member's subscription and so asks it to release the partition; wait until its hold is
        cleared. Returns the hold, which is still there if that member is dead."""
        deadline = TimeLimit.after(self._handover_timeout)
        nowhere = Position(self._wanted_range)
        nowhere.start_at(options.INT64_MAX)
        reader = self._reader(place, nowhere, epoch)
        try:
            await reader.open(TimeLimit.after(self._brokers.timeout))
            backoff = Backoff()
            while await backoff.wait(deadline):
                holder = (await self._fetch_cursor(HOLD_PREFIX, place)).offset
                if holder == NOBODY:
                    break
                if holder >> TAG_BITS > epoch:
                    raise NotGroupMember(f"partition {place.partition} of `{place.stream}` was given to a newer member")
        finally:
            await reader.close()
        return holder

    async def _reopen(self) -> None:
        """Open partitions again whose subscription has ended for a reason that may pass."""
        for held in list(self._held.values()):
            if held.revoked or not held.reader.is_exhausted:
                continue
            error = held.reader.error
            if not isinstance(error, Unavailable | StateError | None):
                raise error
            reader = self._reader(held.place, held.position, held.epoch, held.stream_id)
            try:
                await reader.open(TimeLimit.after(self._brokers.timeout))
            except (Unavailable, StateError):
                continue
            held.reader = reader
            self._news.set()

    def _reader(self, place: Assignment, position: Position, epoch: int, stream_id: int = 0) -> PartitionReader:
        return PartitionReader(
            self._brokers,
            place.stream,
            place.partition,
            position,
            self._reader_options,
            lambda: self._reader_news(place),
            consumer={"groupId": self.group, "consumerId": self.consumer_id, "groupEpoch": epoch},
            stream_id=stream_id,
        )

    # ── cursors ──────────────────────────────────────────────────────────────────────────────────

    async def _fetch_cursor(self, prefix: str, place: Assignment) -> FetchedCursor:
        return await fetch_cursor(self._brokers, self._cursor(prefix, place), self._brokers.timeout)

    async def _set_cursor(self, place: Assignment, offset: int, stream_id: int) -> None:
        cursor = self._cursor(CURSOR_PREFIX, place)
        await set_cursor(self._brokers, cursor, offset, self._brokers.timeout, stream_id)

    async def _replace_note(self, place: Assignment, expected: int, note: int) -> None:
        await replace_cursor(self._brokers, self._cursor(HOLD_PREFIX, place), expected, note, self._brokers.timeout)

    def _cursor(self, prefix: str, place: Assignment) -> wire.Fields:
        return {"stream": place.stream, "partition": place.partition, "cursorId": prefix + self.group}


def _not_ours(place: Place) -> NotGroupMember:
    return NotGroupMember(f"partition {place[1]} of `{place[0]}` is not assigned to this consumer")


async def _tell(callback: Callback | None, places: list[Assignment]) -> None:
    if callback is not None:
        answer = callback(places)
        if inspect.isawaitable(answer):
            await answer


__all__ = ["Assignment", "BasculeError", "Consumer"]
