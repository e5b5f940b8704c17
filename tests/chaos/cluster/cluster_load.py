"""Writers and readers of a cluster that continue through all faults, and record everything in a PartitionHistory.

Three ways of writing, with ALL acks or LEADER acks: our own client's publisher, unary Publish with grpcio at any broker, and
envelopes straight over NATS. They never send a message again: one that was not acked may or may not be stored. A fourth writer is our
client's idempotent publisher, which does. Three ways of reading: our own client at the leader and at any in-sync replica, and grpcio
at one in-sync replica after the other. A fourth reader is slow, so brokers hold messages for it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import bascule
from bascule.errors import BasculeError, OutcomeUnknown
from tests.chaos.cluster.cluster_history import ALL, LEADER, PartitionHistory, Reader, Writer
from tests.support import envelopes
from tests.support.api_client import Api, grpc, pb
from tests.support.cluster import Cluster
from tests.support.nats_client import NatsClient
from tests.support.waiting import PATIENCE_SECONDS, eventually

DRAIN_SECONDS: Final = 1.0
"""After so long without an ack, no more is expected when the run is over."""
STAY_SECONDS: Final = 4.0
"""How long the reader of replicas stays with one of them."""
RETRY_SECONDS: Final = 0.05
DAWDLE_SECONDS: Final = 1.0
"""The longest pause of a slow reader between two batches."""
WINDOW: Final = 200
BURST: Final = 10
PROGRESS_SECONDS: Final = 120.0
OUR_CLIENT: Final = "client"
"""Our own client stays with the broker it is connected to for as long as the connection is good, answers or not."""
NOBODY: Final = "-"


@dataclass(frozen=True, slots=True)
class Pace:
    """Messages per second of each writer that does not wait for every ack, and of one that does."""

    windowed: float = 300.0
    unary: float = 50.0
    ack_seconds: float = 4.0
    """After so long without an ack, a writer goes on without it."""
    call_seconds: float = 3.0
    """The same for unary calls."""
    more: bool = False
    """With idempotent writers and slow readers."""


class ClusterLoad:
    def __init__(self, cluster: Cluster, histories: list[PartitionHistory], pace: Pace | None = None) -> None:
        self._cluster = cluster
        self.histories = histories
        self._pace = pace or Pace()
        self._stopping = threading.Event()
        self._reading_done = threading.Event()
        self._threads: list[threading.Thread] = []
        self._writing = 0
        self._lock = threading.Lock()
        self.faults: list[BaseException] = []

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._spawn(lambda: asyncio.run(self._on_loop()))
        for history in self.histories:
            self._spawn(partial(self._unary, history, history.new_writer("unary", ALL)))
            for policy in (ALL, LEADER):
                self._spawn(partial(self._envelopes, history, history.new_writer("envelope", policy)))
            self._spawn(partial(self._replica_reader, history, history.new_reader("grpcio replica")))

    def _spawn(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as fault:
                self.faults.append(fault)

        self._threads.append(thread := threading.Thread(target=guarded, daemon=True))
        thread.start()

    def wait_for_progress(self, messages: int = 20, *, but: str = NOBODY, timeout: float = PROGRESS_SECONDS) -> None:
        """Every writer gets that many more acks, and every reader is shown something; `but` those whose kind begins so."""
        before = [
            (writer, writer.acked)
            for history in self.histories
            for writer in history.writers
            if not writer.kind.startswith(but)
        ]
        shown = [
            (reader, reader.next_offset)
            for history in self.histories
            for reader in history.readers
            if not reader.name.startswith(but)
        ]

        def stuck() -> list[str]:
            self._raise()
            waiting = [
                f"{one.kind} writer {one.identity} with {one.policy} acks"
                for one, count in before
                if one.acked < count + messages
            ]
            return waiting + [one.name for one, count in shown if one.next_offset <= count]

        deadline = time.monotonic() + timeout
        while stuck():
            assert time.monotonic() < deadline, f"no progress for {timeout:g} s: {stuck()}"
            time.sleep(0.02)

    def finish(self, ends: dict[str, int] | None = None) -> None:
        """No more messages; readers go on until they were shown everything: the number of messages of each partition, by name."""
        self._stopping.set()
        try:
            for history in self.histories if ends is not None else ():
                assert ends is not None
                for reader in history.readers:
                    eventually(
                        lambda reader=reader, end=ends[history.name]: reader.next_offset >= end,  # type: ignore[misc]
                        f"{reader.name} is shown all {ends[history.name]} messages, not only {reader.next_offset}",
                        PROGRESS_SECONDS,
                    )
        finally:
            self._reading_done.set()
            for thread in self._threads:
                thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"
        self._raise()

    def abort(self) -> None:
        """End without waiting; for a test that has failed."""
        self._stopping.set()
        self._reading_done.set()

    def join_writers(self) -> None:
        """Until what was sent is answered or given up."""
        self._stopping.set()
        eventually(lambda: self._writing == 0, "writers end", PROGRESS_SECONDS)

    def _raise(self) -> None:
        if self.faults:
            raise self.faults[0]

    def _count(self, change: int) -> None:
        with self._lock:
            self._writing += change

    # ── our own client ───────────────────────────────────────────────────────────────────────────

    async def _on_loop(self) -> None:
        async with await self._connected() as client:
            tasks = [
                asyncio.create_task(work) for history in self.histories for work in self._client_work(client, history)
            ]
            while not self._reading_done.is_set():
                await asyncio.sleep(RETRY_SECONDS)
                for task in tasks:
                    if task.done() and task.exception() is not None:
                        await task
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self) -> bascule.Client:
        """Tried again: what a call may take here is less than a busy machine may need to begin."""
        while True:
            try:
                return await bascule.connect(
                    self._cluster.addresses, timeout=self._pace.ack_seconds, patience=PROGRESS_SECONDS
                )
            except BasculeError:
                if self._reading_done.is_set():
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    def _client_work(self, client: bascule.Client, history: PartitionHistory) -> list[Any]:
        work = [
            self._publisher(client, history, history.new_writer("client publisher", ALL)),
            self._publisher(client, history, history.new_writer("client publisher", LEADER)),
            self._client_reader(client, history, history.new_reader("client leader")),
            self._client_reader(client, history, history.new_reader("client replica"), read_replica=True),
        ]
        if self._pace.more:
            idempotent = history.new_writer("client idempotent publisher", ALL)
            work += [
                self._publisher(client, history, idempotent, is_idempotent=True),
                self._client_reader(client, history, history.new_reader("client slow"), is_slow=True),
            ]
        return work

    async def _publisher(
        self, client: bascule.Client, history: PartitionHistory, writer: Writer, *, is_idempotent: bool = False
    ) -> None:
        self._count(1)
        choices: dict[str, Any] = (
            {"idempotent": True, "timeout": PATIENCE_SECONDS}
            if is_idempotent
            else {"resend": False, "timeout": self._pace.ack_seconds}
        )
        publisher = client.publisher(
            history.stream,
            ack="all" if writer.policy == ALL else "leader",
            partition=history.partition,
            window=WINDOW,
            on_error=lambda _error: None,
            **choices,
        )
        while not self._stopping.is_set():
            for _ in range(BURST):
                number, value = writer.begin(anywhere=not is_idempotent)
                try:
                    future = await publisher.send(value, key=history.key(writer, number))
                except BasculeError:
                    writer.refused.add(number)
                    break
                future.add_done_callback(partial(_settle, writer, number))
            await asyncio.sleep(BURST / self._pace.windowed)
        await publisher.flush()
        await publisher.close()
        self._count(-1)

    async def _client_reader(
        self,
        client: bascule.Client,
        history: PartitionHistory,
        reader: Reader,
        *,
        read_replica: bool = False,
        is_slow: bool = False,
    ) -> None:
        while True:
            try:
                async with client.subscribe(
                    history.stream,
                    partition=history.partition,
                    start=reader.next_offset,
                    read_replica=read_replica,
                ) as subscription:
                    async for batch in subscription.batches():
                        for place, value in enumerate(batch.values()):
                            reader.take(batch.offsets[place], value or b"", batch.timestamps[place])
                        if is_slow and not self._stopping.is_set():
                            await asyncio.sleep(random.uniform(0.0, DAWDLE_SECONDS))
            except BasculeError:
                await asyncio.sleep(RETRY_SECONDS)

    # ── grpcio ───────────────────────────────────────────────────────────────────────────────────

    def _unary(self, history: PartitionHistory, writer: Writer) -> None:
        """One after the other, each at another broker than the last when that one failed."""
        self._count(1)
        apis = [Api(address) for address in self._cluster.addresses]
        turns = itertools.cycle(apis)
        api = next(turns)
        while not self._stopping.wait(1 / self._pace.unary):
            number, value = writer.begin()
            try:
                answer = api.Publish(
                    stream=history.stream,
                    partition=history.partition,
                    key=history.key(writer, number) or b"",
                    value=value,
                    ackPolicy=pb.ALL,
                    timeout=self._pace.call_seconds,
                )
            except grpc.RpcError:
                api = next(turns)
                continue
            _note(writer, number, answer.ack)
        for one in apis:
            one.close()
        self._count(-1)

    def _replica_reader(self, history: PartitionHistory, reader: Reader) -> None:
        apis = [Api(address) for address in self._cluster.addresses]
        for api in itertools.cycle(apis):
            if self._reading_done.wait(RETRY_SECONDS):
                break
            subscription = api.open_subscription(
                history.stream,
                history.partition,
                timeout=STAY_SECONDS,
                startPosition=pb.OFFSET,
                startOffset=reader.next_offset,
                readISRReplica=True,
            )
            try:
                subscription.shake_hands()
                for message in subscription.call:
                    reader.take(message.offset, message.value, message.timestamp)
                    if self._reading_done.is_set():
                        subscription.cancel()
            except (grpc.RpcError, StopIteration):
                continue
        for api in apis:
            api.close()

    # ── envelopes ────────────────────────────────────────────────────────────────────────────────

    def _envelopes(self, history: PartitionHistory, writer: Writer) -> None:
        self._count(1)
        servers = itertools.cycle(self._cluster.nats)
        while not self._stopping.is_set():
            try:
                with NatsClient(next(servers).url) as nats:
                    writer.life += 1
                    self._envelopes_over(nats, history, writer)
            except OSError:
                self._stopping.wait(RETRY_SECONDS)
        self._count(-1)

    def _envelopes_over(self, nats: NatsClient, history: PartitionHistory, writer: Writer) -> None:
        """Until the connection is lost: a window of messages under way."""
        inbox = f"_INBOX.chaos.{self._cluster.namespace}.{history.stream}.{history.partition}.{writer.identity}"
        subject = self._cluster.subject_of(history.stream) + f".{history.partition}" * (history.partition > 0)
        policy = pb.ALL if writer.policy == ALL else pb.LEADER
        nats.subscribe(inbox)
        outstanding: set[int] = set()
        last_ack = time.monotonic()
        while not self._stopping.is_set() or (outstanding and time.monotonic() - last_ack < DRAIN_SECONDS):
            if len(outstanding) < WINDOW and not self._stopping.is_set():
                for _ in range(BURST):
                    number, value = writer.begin()
                    wrapped = envelopes.message(
                        value,
                        key=history.key(writer, number) or b"",
                        ackInbox=inbox,
                        correlationId=str(number),
                        ackPolicy=policy,
                        checksum=bool(number % 2),
                    )
                    nats.send(nats.publication(subject, wrapped))
                    outstanding.add(number)
            pause_until = time.monotonic() + BURST / self._pace.windowed
            while (left := pause_until - time.monotonic()) > 0 and (message := nats.poll(left)) is not None:
                ack = envelopes.ack_in(message.payload)
                _note(writer, int(ack.correlationId), ack)
                outstanding.discard(int(ack.correlationId))
                last_ack = time.monotonic()
            if outstanding and time.monotonic() - last_ack > self._pace.ack_seconds:
                outstanding.clear()
                last_ack = time.monotonic()


def _note(writer: Writer, number: int, ack: Any) -> None:
    """With UNKNOWN the message may be stored."""
    if ack.ackError == pb.Ack.OK:
        writer.settle(number, ack.offset)
    elif ack.ackError != pb.Ack.UNKNOWN:
        writer.refused.add(number)


def _settle(writer: Writer, number: int, future: asyncio.Future[bascule.Ack]) -> None:
    if future.cancelled():
        return
    error = future.exception()
    if error is None:
        writer.settle(number, future.result().offset)
    elif isinstance(error, BasculeError) and not isinstance(error, OutcomeUnknown):
        writer.refused.add(number)
