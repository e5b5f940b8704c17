"""What is measured side by side: our broker, a Liftbridge binary where one is given, JetStream, and nats-server alone.

All of them run from the first data plane suite to the last one and are idle while another is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from bascule.proto import api_pb2
from bench.processes import Process, start_broker, start_liftbridge, start_nats

grpc: Any = import_module("grpc")  # has no types of its own

CALL_SECONDS: Final = 30.0
SETTLE_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.02


class Broker:
    """A broker that speaks the Liftbridge API, with what a benchmark has to ask it besides the load."""

    def __init__(self, name: str, process: Process, port: int, nats_port: int) -> None:
        self.name = name
        self.process = process
        self.port = port
        self.nats_port = nats_port
        self.is_ours = name == "Bascule"
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])
        self._await_leader()

    def call(self, method: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(
            f"/proto.API/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return call(request, timeout=CALL_SECONDS)

    def _await_leader(self) -> None:
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                self.call("CreateStream", _create("bench-first", "bench.first", 1), api_pb2.CreateStreamResponse)
            except grpc.RpcError:
                self.process.check()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    @contextlib.contextmanager
    def streams(self, count: int, partitions: int = 1) -> Iterator[Streams]:
        """New streams, deleted in the end: no case begins with the data of another."""
        made = Streams(count, partitions)
        for name in made.names:
            self.call("CreateStream", _create(name, made.subject(name), partitions), api_pb2.CreateStreamResponse)
        yield made
        for name in made.names:
            self.call("DeleteStream", api_pb2.DeleteStreamRequest(name=name), api_pb2.DeleteStreamResponse)

    def await_stored(self, streams: Streams, messages: int) -> tuple[int, float]:
        """Until all of them are in the logs, or nothing more comes: how many are, and when the last one was seen."""
        wanted = [messages // streams.places + (place < messages % streams.places) for place in range(streams.places)]
        stored = [0] * streams.places
        seen = time.monotonic()
        for place, (name, partition) in enumerate(streams.partitions()):
            while stored[place] < wanted[place] and time.monotonic() - seen < SETTLE_SECONDS_MAX / 10:
                found = self.newest_offset(name, partition) + 1
                if found > stored[place]:
                    stored[place], seen = found, time.monotonic()
                if found < wanted[place]:
                    time.sleep(POLL_SECONDS)
        return sum(stored), seen

    def newest_offset(self, stream: str, partition: int) -> int:
        request = api_pb2.FetchPartitionMetadataRequest(stream=stream, partition=partition)
        answer = self.call("FetchPartitionMetadata", request, api_pb2.FetchPartitionMetadataResponse)
        return int(answer.metadata.newestOffset)

    def close(self) -> None:
        self._channel.close()


def _create(name: str, subject: str, partitions: int) -> api_pb2.CreateStreamRequest:
    return api_pb2.CreateStreamRequest(name=name, subject=subject, partitions=partitions, replicationFactor=1)


class Streams:
    """`count` streams of `partitions` partitions each. Loads go round robin over all of them."""

    _numbers = itertools.count()

    def __init__(self, count: int, partitions: int) -> None:
        number = next(self._numbers)
        self.names = [f"bench-{number}-{index}" for index in range(count)]
        self.partitions_each = partitions
        self.places = count * partitions

    @staticmethod
    def subject(name: str) -> str:
        return name.replace("-", ".")

    def partitions(self) -> Iterator[tuple[str, int]]:
        return itertools.product(self.names, range(self.partitions_each))

    @property
    def subjects(self) -> str:
        """For the generators: the NATS subject of every partition."""
        return ",".join(
            self.subject(name) + (f".{partition}" if partition else "") for name, partition in self.partitions()
        )

    @property
    def label(self) -> str:
        if self.partitions_each > 1:
            return f"{self.partitions_each} partitions"
        return f"{len(self.names)} stream" + "s" * (len(self.names) > 1)


class JetStream:
    """nats-server with JetStream and file storage."""

    name = "JetStream"

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port

    @contextlib.contextmanager
    def stream(self) -> Iterator[str]:
        """A new stream with the subjects `<name>.>`, deleted in the end."""
        name = f"js{next(Streams._numbers)}"
        config = StreamConfig(
            name=name, subjects=[f"{name}.>"], storage=StorageType.FILE, retention=RetentionPolicy.LIMITS
        )
        self._ask(lambda js: js.add_stream(config))
        yield name
        self._ask(lambda js: js.delete_stream(name))

    def await_stored(self, name: str, messages: int) -> tuple[int, float]:
        """As Broker.await_stored()."""
        stored, seen = 0, time.monotonic()
        while stored < messages and time.monotonic() - seen < 1.0:
            found = self._ask(lambda js: js.stream_info(name)).state.messages
            if found > stored:
                stored, seen = found, time.monotonic()
            time.sleep(POLL_SECONDS)
        return stored, seen

    def add_consumer(self, stream: str, name: str, deliver_subject: str | None = None) -> None:
        """One that wants no acks; a pull consumer unless there is a subject to deliver to."""
        config = ConsumerConfig(durable_name=name, ack_policy=AckPolicy.NONE, deliver_subject=deliver_subject)
        self._ask(lambda js: js.add_consumer(stream, config))

    def _ask(self, question: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        async def asking() -> Any:
            client = await nats.connect(f"nats://127.0.0.1:{self.port}")
            try:
                return await question(client.jetstream(timeout=CALL_SECONDS))
            finally:
                await client.close()

        return asyncio.run(asking())


class Systems:
    """`brokers` is ours and, if its binary was given, Liftbridge; each has a nats-server to itself."""

    def __init__(self, directory: Path, *, liftbridge: str | None, quick: bool) -> None:
        self.quick = quick
        self._stack = contextlib.ExitStack()
        try:
            self.nats, self.nats_port = start_nats("nats-server", directory / "nats")
            self._stack.callback(self.nats.stop)
            self.jetstream = JetStream(*start_nats("jetstream", directory / "jetstream", jetstream=True))
            self._stack.callback(self.jetstream.process.stop)
            self.brokers = [
                self._broker("Bascule", start_broker(directory / "bascule", self.nats_port), self.nats_port)
            ]
            if liftbridge is not None:
                process, port = start_nats("liftbridge-nats", directory / "liftbridge-nats")
                self._stack.callback(process.stop)
                started = start_liftbridge(liftbridge, directory / "liftbridge", port)
                self.brokers.append(self._broker("Liftbridge", started, port))
        except BaseException:
            self.close()
            raise

    def _broker(self, name: str, started: tuple[Process, int], nats_port: int) -> Broker:
        process, port = started
        self._stack.callback(process.stop)
        broker = Broker(name, process, port, nats_port)
        self._stack.callback(broker.close)
        return broker

    def messages(self, full: int) -> int:
        """How many messages a case sends: a twentieth when only a smoke run is wanted."""
        return full // 20 if self.quick else full

    def complaints(self) -> str:
        """The last log lines of the servers, to find out why a load failed."""
        servers = [self.nats, self.jetstream.process, *(broker.process for broker in self.brokers)]
        return "\n".join(f"── {server.name}\n{server.said()}" for server in servers)

    def close(self) -> None:
        self._stack.close()
