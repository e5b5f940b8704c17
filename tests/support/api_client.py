"""A thin client of the gRPC API. Messages and methods come straight from `proto/api.proto`, compiled when the tests begin, in a
descriptor pool of their own: what the broker was compiled with is not believed. Every call has a deadline unless a test says not.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

# Neither package has types of its own.
grpc: Any = import_module("grpc")
_protoc: Any = import_module("grpc_tools.protoc")

PROTO: Final = Path(__file__).resolve().parents[2] / "proto"
CALL_SECONDS: Final = 60.0
RECEIVE_BYTES_MAX: Final = 16 << 20
Status: Any = grpc.StatusCode

_OPTIONS: Final = {
    "grpc.enable_http_proxy": 0,
    "grpc.use_local_subchannel_pool": 1,  # a connection for each channel
    "grpc.max_receive_message_length": RECEIVE_BYTES_MAX,
    "grpc.max_send_message_length": RECEIVE_BYTES_MAX,
    "grpc.initial_reconnect_backoff_ms": 50,
    "grpc.min_reconnect_backoff_ms": 20_000,  # how long an attempt may take
    "grpc.max_reconnect_backoff_ms": 200,
}


def compile_proto(file: str = "api.proto") -> FileDescriptorSet:
    with TemporaryDirectory() as directory:
        output = Path(directory) / "descriptors"
        assert _protoc.main(["protoc", f"-I{PROTO}", f"--descriptor_set_out={output}", file]) == 0
        return FileDescriptorSet.FromString(output.read_bytes())


def _load() -> tuple[Any, Any]:
    """Message classes and enum values by name, and the methods of the service."""
    pool = descriptor_pool.DescriptorPool()
    for file in compile_proto().file:
        pool.Add(file)  # type: ignore[no-untyped-call,unused-ignore]
    described = pool.FindFileByName("api.proto")
    names: dict[str, Any] = {}
    for name, message in described.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for enum in described.enum_types_by_name.values():
        names |= {value.name: value.number for value in enum.values}
    return SimpleNamespace(**names), described.services_by_name["API"].methods_by_name


pb, METHODS = _load()
"""`pb.PublishRequest`, `pb.EARLIEST`, `pb.Ack.OK`, …"""


def request_of(kind: Any, fields: dict[str, Any]) -> Any:
    """A message with these fields. A nullable setting may be given as the plain number."""
    given = {}
    for name, value in fields.items():
        field = kind.DESCRIPTOR.fields_by_name[name]
        nested = field.message_type
        nullable = nested is not None and nested.name.startswith("Nullable")
        given[name] = {"value": value} if nullable and value is not None else value
    return kind(**given)


@contextmanager
def refused(status: Any, text: str = "") -> Iterator[SimpleNamespace]:
    """What is inside fails with this status (or one of these), and with this text somewhere in the message."""
    found = SimpleNamespace(text="")
    with pytest.raises(grpc.RpcError) as caught:
        yield found
    error: Any = caught.value
    found.text = error.details()
    assert error.code() in (status if isinstance(status, tuple) else (status,)), f"{error.code()}: {error.details()}"
    assert text in error.details(), error.details()


class Api:
    """One connection. `api.CreateStream(name=…, subject=…)` calls the RPC of that name; `timeout=None` leaves the deadline out."""

    def __init__(self, address: str, credentials: Any = None, **options: Any) -> None:
        self.address = address
        chosen = list({**_OPTIONS, **options}.items())
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options=chosen)
        else:
            self.channel = grpc.secure_channel(address, credentials, options=chosen)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method not in METHODS:
            raise AttributeError(method)

        def call(*, timeout: float | None = CALL_SECONDS, **fields: Any) -> Any:
            return self.unary(method, timeout)(request_of(self.input(method), fields))

        return call

    @staticmethod
    def input(method: str) -> Any:
        return message_factory.GetMessageClass(METHODS[method].input_type)

    @staticmethod
    def output(method: str) -> Any:
        return message_factory.GetMessageClass(METHODS[method].output_type)

    def unary(self, method: str, timeout: float | None = CALL_SECONDS) -> Callable[[Any], Any]:
        call = self.channel.unary_unary(
            f"/proto.API/{method}",
            request_serializer=self.input(method).SerializeToString,
            response_deserializer=self.output(method).FromString,
        )
        return lambda request: call(request, timeout=timeout)

    def raw(self, method: str, request: bytes, timeout: float | None = CALL_SECONDS) -> bytes:
        """Any bytes as the request; the bytes of the response."""
        answer: bytes = self.channel.unary_unary(f"/proto.API/{method}")(request, timeout=timeout)
        return answer

    def future(self, method: str, timeout: float | None = CALL_SECONDS, **fields: Any) -> Any:
        """The call while it runs."""
        call = self.channel.unary_unary(
            f"/proto.API/{method}",
            request_serializer=self.input(method).SerializeToString,
            response_deserializer=self.output(method).FromString,
        )
        return call.future(request_of(self.input(method), fields), timeout=timeout)

    # ── streams ──────────────────────────────────────────────────────────────────────────────────

    def subscribe(
        self, stream: str, partition: int = 0, *, timeout: float | None = 2 * CALL_SECONDS, **fields: Any
    ) -> Subscription:
        """A subscription whose handshake is over. The earliest message is the start unless `startPosition` says otherwise."""
        subscription = self.open_subscription(stream, partition, timeout=timeout, **fields)
        subscription.shake_hands()
        return subscription

    def open_subscription(
        self, stream: str, partition: int = 0, *, timeout: float | None = 2 * CALL_SECONDS, **fields: Any
    ) -> Subscription:
        """The same before anything was read."""
        fields.setdefault("startPosition", pb.EARLIEST)
        request = request_of(pb.SubscribeRequest, {"stream": stream, "partition": partition, **fields})
        call = self.channel.unary_stream(
            "/proto.API/Subscribe",
            request_serializer=pb.SubscribeRequest.SerializeToString,
            response_deserializer=pb.Message.FromString,
        )
        return Subscription(call(request, timeout=timeout))

    def publish_async(self, timeout: float | None = 2 * CALL_SECONDS) -> PublishSession:
        return PublishSession(self.channel, timeout)

    # ── short forms ──────────────────────────────────────────────────────────────────────────────

    def publish(self, stream: str, value: bytes | str = b"", partition: int = 0, **fields: Any) -> Any:
        """Publish and wait; the ack."""
        value = value.encode() if isinstance(value, str) else value
        return self.Publish(stream=stream, value=value, partition=partition, **fields).ack

    def read(self, stream: str, partition: int = 0, **fields: Any) -> list[Any]:
        """Everything from the earliest to what is the newest message now."""
        fields.setdefault("stopPosition", pb.STOP_LATEST)
        with_end = self.subscribe(stream, partition, **fields)
        messages = list(with_end.rest())
        assert with_end.end()[0] is Status.RESOURCE_EXHAUSTED, with_end.end()
        return messages

    def partition(self, stream: str, number: int = 0) -> Any:
        """PartitionMetadata of the leader."""
        return self.FetchPartitionMetadata(stream=stream, partition=number).metadata

    def stream(self, name: str) -> Any:
        """StreamMetadata."""
        (found,) = self.FetchMetadata(streams=[name]).streamMetadata
        return found

    def close(self) -> None:
        self.channel.close()


class Subscription:
    def __init__(self, call: Any) -> None:
        self.call = call

    def shake_hands(self) -> None:
        first = next(self.call)
        assert first == pb.Message(), f"the first message has to be an empty one, not {first}"

    def next(self) -> Any:
        return next(self.call)

    def take(self, count: int) -> list[Any]:
        return [self.next() for _ in range(count)]

    def rest(self) -> Iterator[Any]:
        """Until the server ends it, however it does."""
        try:
            yield from self.call
        except grpc.RpcError:
            return

    def end(self) -> tuple[Any, str]:
        """Status and text, once the server ended it. Messages before the end are read and forgotten."""
        for _ in self.rest():
            pass
        return self.call.code(), self.call.details()

    def expect_end(self, status: Any, text: str = "") -> None:
        """It ends now, without another message."""
        late = list(self.rest())
        code, details = self.call.code(), self.call.details()
        assert (code, late) == (status, []), f"{code}: {details}; {len(late)} messages before"
        assert text in details, details

    def cancel(self) -> None:
        self.call.cancel()


class PublishSession:
    """One PublishAsync call."""

    def __init__(self, channel: Any, timeout: float | None) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call = channel.stream_stream(
            "/proto.API/PublishAsync",
            request_serializer=pb.PublishRequest.SerializeToString,
            response_deserializer=pb.PublishResponse.FromString,
        )
        self.call = call(iter(self._requests.get, None), timeout=timeout)

    def send(self, stream: str, value: bytes | str = b"", **fields: Any) -> None:
        value = value.encode() if isinstance(value, str) else value
        self._requests.put(request_of(pb.PublishRequest, {"stream": stream, "value": value, **fields}))

    def next(self) -> Any:
        return next(self.call)

    def take(self, count: int) -> list[Any]:
        return [self.next() for _ in range(count)]

    def half_close(self) -> None:
        self._requests.put(None)

    def finish(self) -> list[Any]:
        """Half-close; what still comes until the server ends the call, which must be with OK."""
        self.half_close()
        late = list(self.call)
        assert self.call.code() is Status.OK, self.call.details()
        return late

    def cancel(self) -> None:
        self.half_close()  # lets go of the thread that waits for requests
        self.call.cancel()


@dataclass(frozen=True)
class Health:
    """grpc.health.v1 in two messages, by hand: a string in, an enum out."""

    api: Api

    SERVING = 1
    NOT_SERVING = 2

    def check(self, service: str = "proto.API") -> int:
        name = service.encode()
        request = b"\x0a" + bytes([len(name)]) + name if name else b""
        answer = self.api.channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=CALL_SECONDS)
        return answer[1] if answer else 0
