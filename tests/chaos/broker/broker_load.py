"""Load on a broker that may be killed at any moment, and the memory of what it promised.

Three ways of publishing, each to a stream of its own, and a subscriber on each stream. An ack is a promise that the message is at
its offset for ever; so is a delivery to a subscriber.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support import envelopes
from tests.support.api_client import Api, Status, grpc, pb
from tests.support.broker_process import BrokerProcess
from tests.support.nats_client import NatsClient

PLAIN: Final = "plain"
WRAPPED: Final = "wrapped"
SESSION: Final = "session"
STREAMS: Final = (PLAIN, WRAPPED, SESSION)
IN_FLIGHT_MAX: Final = 400
ENDS: Final = (Status.UNAVAILABLE, Status.CANCELLED)


@dataclass
class Promises:
    """What one stream owes us."""

    acked: dict[int, bytes] = field(default_factory=dict)
    delivered: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    published: int = 0

    def check(self, found: list[Any]) -> None:
        """`found` is everything in the stream, as it is read now."""
        assert [message.offset for message in found] == list(range(len(found)))
        values = [message.value for message in found]
        for offset, value in self.acked.items():
            assert offset < len(values), f"offset {offset} was acked and is gone; the end is {len(values)}"
            assert values[offset] == value, f"offset {offset} was acked as {value!r} and is {values[offset]!r}"
        for offset, (value, timestamp) in self.delivered.items():
            assert offset < len(values), f"offset {offset} was delivered and is gone; the end is {len(values)}"
            assert (values[offset], found[offset].timestamp) == (value, timestamp), f"offset {offset} changed"
        numbers = [int(value) for value in values]
        assert numbers == sorted(set(numbers)), "messages of one publisher changed places or came twice"


class Load:
    """Threads that work until the broker is dead or `finish` is called."""

    def __init__(
        self, broker: BrokerProcess, promises: dict[str, Promises], numbers: dict[str, itertools.count[int]]
    ) -> None:
        self._broker = broker
        self._promises = promises
        self._numbers = numbers
        self._stopping = threading.Event()
        self.faults: list[BaseException] = []
        works = [self._plain, self._wrapped, self._session, *(lambda s=s: self._subscriber(s) for s in STREAMS)]
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a client hangs on a broker that is dead"
        if self.faults:
            raise self.faults[0]

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except ConnectionError:
            self._stopping.wait()  # the NATS server was inside of the broker
        except BaseException as fault:
            self.faults.append(fault)

    def _plain(self) -> None:
        with NatsClient(self._broker.nats_url) as nats:
            while not self._stopping.wait(0.002):
                values = [b"%d" % next(self._numbers[PLAIN]) for _ in range(20)]
                nats.send(b"".join(nats.publication(f"chaos.{PLAIN}", value) for value in values))
                self._promises[PLAIN].published += len(values)

    def _wrapped(self) -> None:
        """Envelopes with acks of both kinds; an inbox of its own."""
        inbox = f"chaos.inbox.{id(self)}"
        promises, waiting = self._promises[WRAPPED], 0
        with NatsClient(self._broker.nats_url) as nats:
            nats.subscribe(inbox)
            while not self._stopping.is_set():
                if waiting < IN_FLIGHT_MAX:
                    for _ in range(20):
                        number = next(self._numbers[WRAPPED])
                        policy = pb.ALL if number % 3 == 0 else pb.LEADER
                        wrapped = envelopes.message(
                            b"%d" % number, ackInbox=inbox, correlationId=str(number), ackPolicy=policy
                        )
                        nats.send(nats.publication(f"chaos.{WRAPPED}", wrapped))
                        waiting += 1
                        promises.published += 1
                waiting -= self._take_acks(nats, promises, 0.005)
            self._take_acks(nats, promises, 0.2)

    @staticmethod
    def _take_acks(nats: NatsClient, promises: Promises, seconds: float) -> int:
        taken = 0
        while (message := nats.poll(seconds)) is not None:
            ack = envelopes.ack_in(message.payload)
            assert ack.ackError == pb.Ack.OK
            promises.acked[ack.offset] = ack.correlationId.encode()
            taken += 1
            seconds = 0
        return taken

    def _session(self) -> None:
        promises, api = self._promises[SESSION], self._broker.api()
        room = threading.Semaphore(IN_FLIGHT_MAX)
        session = api.publish_async()

        def write() -> None:
            while not self._stopping.is_set():
                if room.acquire(timeout=0.05):
                    number = next(self._numbers[SESSION])
                    policy = pb.ALL if number % 3 == 0 else pb.LEADER
                    session.send(SESSION, b"%d" % number, correlationId=str(number), ackPolicy=policy)
                    promises.published += 1
            session.half_close()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for answer in session.call:
                assert not answer.HasField("asyncError"), answer
                promises.acked[answer.ack.offset] = answer.correlationId.encode()
                room.release()
        except grpc.RpcError as error:
            assert error.code() in ENDS, error
        self._stopping.wait()
        writer.join()
        api.close()

    def _subscriber(self, stream: str) -> None:
        promises, api = self._promises[stream], self._broker.api()
        start = len(promises.delivered)
        subscription = api.open_subscription(stream, startPosition=pb.OFFSET, startOffset=start)
        expected = start

        def stop() -> None:
            self._stopping.wait()
            subscription.cancel()

        stopper = threading.Thread(target=stop)
        stopper.start()
        try:
            subscription.shake_hands()
            for message in subscription.call:
                assert message.offset == expected, (message.offset, expected)
                promises.delivered[message.offset] = (message.value, message.timestamp)
                expected += 1
        except grpc.RpcError as error:
            assert error.code() in ENDS, error
        self._stopping.wait()
        stopper.join()
        api.close()


def create_streams(api: Api) -> None:
    for name in STREAMS:
        api.CreateStream(name=name, subject=f"chaos.{name}", segmentMaxBytes=64 << 10)


def read_everything(api: Api, stream: str) -> list[Any]:
    if api.partition(stream).newestOffset < 0:
        return []
    found: list[Any] = api.read(stream)
    return found
