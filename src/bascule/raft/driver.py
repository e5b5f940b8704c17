"""Runs a Raft node in an event loop: takes events, and carries its effects out in this order: persist, send, apply, answer.

Events that arrive while a round is persisted form the next round, so that a slow disk costs latency and little throughput. A thread
persists; no message leaves this server before its state is durable.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from bascule import limits
from bascule.errors import CallerError, OutcomeUnknown, StateError, Unavailable
from bascule.raft.core.model.effects import Effects, Proposed, Reason, Refused
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.model.events import (
    ChangeMembership,
    Event,
    Propose,
    RaftTick,
    ReadIndex,
    Receive,
    TakeSnapshot,
    TransferLeadership,
)
from bascule.raft.core.model.membership import MembershipChange
from bascule.raft.core.model.messages import RaftMessage
from bascule.raft.core.node import RaftNode

RECENT_RESULTS_MAX = 1024


class DurableLog(Protocol):
    def save(self, *steps: Effects) -> None:
        """Make the effects of these steps durable, in their order. Blocks; raises when the disk fails."""

    def close(self) -> None: ...


class Machine(Protocol):
    """The state machine that entries are applied to."""

    def apply(self, entry: Entry) -> object:
        """Apply the entry; the result is the answer to its proposer."""

    def restore(self, data: bytes) -> None: ...

    def snapshot(self) -> bytes: ...


@dataclass(slots=True)
class _Waiting:
    """A request in flight. Once `index` is known it may have taken effect."""

    future: asyncio.Future[Any]
    index: int = 0
    term: int = 0


class RaftDriver:
    def __init__(
        self,
        node: RaftNode,
        wal: DurableLog,
        machine: Machine,
        send: Callable[[RaftMessage], None],
        *,
        tick_seconds: float,
        election_ticks: int,
        snapshot_entries: int,
        on_role_change: Callable[[bool], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`send` must not block; Raft tolerates the loss of a message. `on_failure` is called once, when the log cannot be written: the
        driver has stopped then."""
        self.node = node
        self._wal = wal
        self._machine = machine
        self._send = send
        self._tick_seconds = tick_seconds
        self._election_ticks = election_ticks
        self._snapshot_entries = snapshot_entries
        self._on_role_change = on_role_change or (lambda _leads: None)
        self._on_failure = on_failure or (lambda _error: None)
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._tick_pending = False
        self._led = False
        # Unique, also across restarts: they start at the present time.
        self._requests = itertools.count(time.time_ns())
        self._waiting: dict[int, _Waiting] = {}
        self._at_index: dict[int, int] = {}
        self._recent: OrderedDict[int, tuple[int, object]] = OrderedDict()
        """Term and result of the last entries: a follower may apply an entry before it learns that it was its own."""
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="bascule-raft")
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: BaseException | None = None
        self.messages_dropped = 0
        """Messages of other servers that were dropped because too many events waited."""

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        if self.node.membership.voters == {self.node.id}:
            # The only voter need not wait for an election timeout.
            for _ in range(2 * self._election_ticks):
                self._inbox.put_nowait(RaftTick())
        self._tasks = [
            asyncio.create_task(self._run(), name="raft"),
            asyncio.create_task(self._tick(), name="raft-ticks"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all(Unavailable("this server is stopping"))
        # a running write ends before the files are closed
        await asyncio.get_running_loop().run_in_executor(self._disk, self._wal.close)
        self._disk.shutdown()

    def receive(self, message: RaftMessage) -> None:
        if self._inbox.qsize() < limits.RAFT_INBOX_MAX:
            self._inbox.put_nowait(Receive(message))
        else:
            self.messages_dropped += 1

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            # After a stalled loop, ticks must not accumulate: they would start an election before the leader's messages are read.
            if not self._tick_pending:
                self._tick_pending = True
                self._inbox.put_nowait(RaftTick())

    async def _run(self) -> None:
        try:
            while True:
                await self._round([await self._inbox.get(), *self._drain()])
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # A node whose state was not persisted must not go on: it would send messages that a restart contradicts.
            self.failure = error
            self._fail_all(error)
            self._on_failure(error)
            raise

    def _drain(self) -> list[Event]:
        events = []
        while not self._inbox.empty():
            events.append(self._inbox.get_nowait())
        return events

    async def _round(self, events: list[Event]) -> None:
        effects = []
        for event in events:
            if isinstance(event, RaftTick):
                self._tick_pending = False
            effects.append(self.node.step(event))
        if any(each.is_durable_work for each in effects):
            await asyncio.get_running_loop().run_in_executor(self._disk, self._wal.save, *effects)
        for each in effects:
            for message in each.messages:
                self._send(message)
        for each in effects:
            self._apply(each)
        self._take_snapshot_if_due()
        self._tell_role()

    # ── applying and answering ───────────────────────────────────────────────────────────────────

    def _apply(self, effects: Effects) -> None:
        for proposed in effects.proposed:
            self._note_proposed(proposed)
        for refused in effects.refused:
            self._refuse(refused)
        if effects.snapshot_installed is not None:
            self._machine.restore(effects.snapshot_installed.data)
            self._forget_below(effects.snapshot_installed.index)
        for entry in effects.committed:
            result = self._machine.apply(entry)
            self._remember(entry, result)
            self._answer(entry.index, entry.term, result)
        for ready in effects.reads:
            self._resolve(ready.request, ready.index)
        for request in effects.handed_over:
            self._resolve(request, None)

    def _note_proposed(self, proposed: Proposed) -> None:
        waiting = self._waiting.get(proposed.request)
        if waiting is None:
            return
        waiting.index, waiting.term = proposed.index, proposed.term
        self._at_index[proposed.index] = proposed.request
        if proposed.index in self._recent:
            self._answer(proposed.index, *self._recent[proposed.index])

    def _remember(self, entry: Entry, result: object) -> None:
        self._recent[entry.index] = (entry.term, result)
        if len(self._recent) > RECENT_RESULTS_MAX:
            self._recent.popitem(last=False)

    def _answer(self, index: int, term: int, result: object) -> None:
        request = self._at_index.pop(index, None)
        waiting = None if request is None else self._waiting.get(request)
        if request is None or waiting is None:
            return
        if waiting.term == term:
            self._resolve(request, (index, result))
        else:
            self._reject(
                request, Unavailable("another leader's entry took its place: it was not applied", hint="try again")
            )

    def _forget_below(self, index: int) -> None:
        """Entries that a snapshot covers were not applied one by one: whether ours were among them is unknown."""
        for request, waiting in list(self._waiting.items()):
            if 0 < waiting.index <= index:
                self._reject(request, _unknown())

    def _refuse(self, refused: Refused) -> None:
        if refused.reason is Reason.TOO_LARGE:
            self._reject(refused.request, CallerError("the op is larger than an entry of the metadata log may be"))
        elif refused.reason in _FINAL_REASONS:
            self._reject(refused.request, StateError(f"the metadata group cannot do it: {refused.reason.name}"))
        else:
            self._reject(
                refused.request,
                Unavailable(
                    "no known metadata leader"
                    if refused.leader is None
                    else f"{refused.reason.name}, ask {refused.leader}"
                ),
            )

    def _resolve(self, request: int, result: object) -> None:
        waiting = self._waiting.pop(request, None)
        if waiting is not None and not waiting.future.done():
            waiting.future.set_result(result)

    def _reject(self, request: int, error: BaseException) -> None:
        waiting = self._waiting.pop(request, None)
        if waiting is not None and not waiting.future.done():
            waiting.future.set_exception(error)

    def _fail_all(self, error: BaseException) -> None:
        for request, waiting in list(self._waiting.items()):
            self._reject(request, _unknown() if waiting.index else error)

    def _take_snapshot_if_due(self) -> None:
        node = self.node
        if node.applied_index - node.snapshot.index >= self._snapshot_entries:
            self._inbox.put_nowait(TakeSnapshot(node.applied_index, self._machine.snapshot()))

    def _tell_role(self) -> None:
        if self.node.is_leader != self._led:
            self._led = self.node.is_leader
            self._on_role_change(self._led)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def propose(
        self, data: bytes, *, timeout: float, session: int = 0, sequence: int = 0, kind: EntryKind = EntryKind.COMMAND
    ) -> tuple[int, Any]:
        """Propose an entry, on any member; returns its index and the result of applying it here. Raises OutcomeUnknown when it may have
        been applied."""
        landed: tuple[int, Any] = await self._ask(
            lambda request: Propose(request, data, session, sequence, kind), timeout
        )
        return landed

    async def read_barrier(self, *, timeout: float) -> int:
        """Returns when this server has applied every entry that any server acknowledged before the call."""
        index: int = await self._ask(ReadIndex, timeout)
        return index

    async def change_membership(self, change: MembershipChange, *, timeout: float) -> None:
        await self._ask(lambda request: ChangeMembership(request, change), timeout)

    async def transfer_leadership(self, target: str, *, timeout: float) -> None:
        await self._ask(lambda request: TransferLeadership(request, target), timeout)

    async def _ask(self, event: Callable[[int], Event], timeout: float) -> Any:
        if self.failure is not None:
            raise Unavailable(f"the metadata log of this server has failed: {self.failure}")
        request = next(self._requests)
        waiting = self._waiting[request] = _Waiting(asyncio.get_running_loop().create_future())
        self._inbox.put_nowait(event(request))
        try:
            async with asyncio.timeout(timeout):
                return await waiting.future
        except TimeoutError:
            raise _unknown() from None
        finally:
            self._waiting.pop(request, None)
            self._at_index.pop(waiting.index, None)


_FINAL_REASONS = {
    Reason.UNKNOWN_SERVER,
    Reason.ALREADY_DONE,
    Reason.NOT_CAUGHT_UP,
    Reason.QUORUM_FULL,
    Reason.LAST_VOTER,
}


def _unknown() -> OutcomeUnknown:
    return OutcomeUnknown(
        "no answer from the metadata leader in time: the op may have been applied", hint="check before you try again"
    )
