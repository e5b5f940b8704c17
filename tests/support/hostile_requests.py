"""Requests drawn from a seed that cost a client little and might cost the server much: every RPC of the gRPC port, every path of HTTP,
every call of Arrow Flight.

A drawn request is valid protobuf or JSON as a rule: fields have values at the edges of what they allow, lists repeat the name of the
widest stream, and calls come by the hundred, with or without windows for the answers.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight
from google.protobuf import descriptor_pool, message_factory

from tests.support.api_client import compile_proto
from tests.support.hostile_http2 import hostile

STREAMS: Final = ("wide", "small", "other-0", "other-1", "other-2", "other-3")
NUMBERS: Final = (0, 1, 2, 3, 100, 65_536, 2**31 - 1, 2**63 - 1, -1, -(2**31))
PARTITIONS_MAX: Final = 50
"""Partitions of a stream that a drawn request creates: each is work that the caller has a right to."""

CONNECTION_BYTES_MAX: Final = 3 << 20
"""Bytes of requests on one connection, which the server's first window allows."""

HTTP_PATHS: Final = ("/metrics", "/healthz", "/readyz", "/nowhere", "/" + "x" * 4000, "/%2e%2e/%00")

# A client that has the right to stop a server can do so: that is no attack.
LEFT_OUT: Final = {"Drain", "RemoveServer"}


def _methods() -> dict[str, Any]:
    """The request class of every RPC, by path."""
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, Any] = {}
    for name in ("api.proto", "extensions.proto", "health.proto", "reflection.proto"):
        for file in compile_proto(name).file:
            with contextlib.suppress(TypeError):  # a file that another one imports, too
                pool.Add(file)  # type: ignore[no-untyped-call,unused-ignore]
        for service in pool.FindFileByName(name).services_by_name.values():
            for method in service.methods:
                if method.name not in LEFT_OUT:
                    path = f"/{service.full_name}/{method.name}"
                    found[path] = message_factory.GetMessageClass(method.input_type)
    return found


METHODS: Final = _methods()


def draw_text(chance: random.Random, field: str) -> str:
    if "stream" in field.lower() or field == "name":
        return chance.choice(STREAMS)
    kinds: list[Callable[[], str]] = [
        lambda: chance.choice(STREAMS),
        lambda: "proto.API",
        lambda: "x" * chance.choice((1, 200, 257, 5000)),
        lambda: "a." * chance.choice((1, 50, 900)) + "b",
        lambda: "é\x00\n\x1b[2J",
        lambda: f"id-{chance.randrange(20)}",
    ]
    return chance.choice(kinds)()


def draw_value(chance: random.Random, field: Any, depth: int) -> Any:
    if field.message_type is not None:
        return draw_message(chance, message_factory.GetMessageClass(field.message_type), depth + 1)
    if field.cpp_type == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return bytes(chance.choice((0, 10, 1000, 60_000)))
        return draw_text(chance, field.name)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.cpp_type == field.CPPTYPE_ENUM:
        return chance.choice(field.enum_type.values).number
    if field.name == "partitions":
        return chance.randrange(PARTITIONS_MAX)
    number = chance.choice(NUMBERS)
    return number if field.cpp_type == field.CPPTYPE_INT64 else max(-(2**31), min(2**31 - 1, number))


def draw_message(chance: random.Random, kind: Any, depth: int = 0) -> Any:
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if depth > 3 or chance.random() < 0.3:
            continue
        with contextlib.suppress(
            ValueError, TypeError
        ):  # a number that the field's type does not have, a second of a `oneof`
            _set(chance, message, field, depth)
    return message


def _set(chance: random.Random, message: Any, field: Any, depth: int) -> None:
    if not field.is_repeated:
        value = draw_value(chance, field, depth)
        if field.message_type is not None:
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)
        return
    count = chance.choice((1, 10, 1000, 5000)) if depth == 0 else 3
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entries = getattr(message, field.name)
        for number in range(min(count, 1000)):
            entries[f"k{number}"] = b"v"
    elif field.message_type is not None:
        getattr(message, field.name).extend(draw_value(chance, field, depth + 1) for _ in range(min(count, 100)))
    else:
        value = draw_value(chance, field, depth)
        getattr(message, field.name).extend([value] * count)


def attack_grpc(chance: random.Random, address: str) -> str:
    """One connection with many calls of one RPC. Return what was done, for the report of a failure."""
    path = chance.choice(list(METHODS))
    request = draw_message(chance, METHODS[path]).SerializeToString()
    more = {}
    compressed = b"\0"
    if chance.random() < 0.2:
        request, more, compressed = gzip.compress(request), {"grpc_encoding": "gzip"}, b"\1"
    framed = compressed + struct.pack(">I", len(request)) + request
    window = chance.choice((0, 0, 100, 65_535, 2**31 - 1))
    calls = min(chance.choice((1, 20, 300, 1500)), max(1, CONNECTION_BYTES_MAX // len(framed)))
    ends = chance.random() < 0.9
    with hostile(address, window) as client:
        for _ in range(calls):
            client.send_data(client.open(path, **more), framed, end=ends)
        end = time.monotonic() + chance.choice((0.0, 0.1, 0.5))
        while time.monotonic() < end:
            client.pump(0.05)
    return f"{calls} × {path}, {len(request)} bytes, window {window}, {more}"


def attack_http(chance: random.Random, address: str) -> str:
    """Pipelined requests whose answers are not read."""
    host, _, port = address.rpartition(":")
    path, count = chance.choice(HTTP_PATHS), chance.choice((1, 10, 100))
    connections = chance.choice((1, 20))
    made = []
    with contextlib.suppress(OSError):
        for _ in range(connections):
            made.append(socket.create_connection((host, int(port)), timeout=60))
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * count)
        time.sleep(chance.choice((0.0, 0.1, 0.5)))
    for one in made:
        one.close()
    return f"{connections} × {count} × GET {path[:40]}"


def attack_flight(chance: random.Random, address: str) -> str:
    """One call of Arrow Flight."""
    options = flight.FlightCallOptions(timeout=5)
    name, many = chance.choice(STREAMS), chance.choice((1, 1000, 5000))
    ticket = {"stream": name, "partition": 0, "batch_rows": chance.choice((1, 10, 1_000_000)), "batch_bytes": 1 << 28}
    command = {"stream": name, "partitions": [0] * many}
    pattern = chance.choice(("*", "([a-z]+)+!", "*a" * 100, "?" * 100))
    offsets = {"streams": [name] * many, "timestamps": {name: {"0": chance.choice(NUMBERS)}}}
    rows = pa.table({"value": pa.nulls(chance.choice((1, 1_000_000)), pa.binary())})

    def put(client: Any) -> None:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), rows.schema, options=options)
        with writer:
            writer.write_table(rows)

    calls: dict[str, Callable[[Any], object]] = {
        "list_flights": lambda client: list(client.list_flights(json.dumps({"pattern": pattern}).encode(), options)),
        "get_flight_info": lambda client: client.get_flight_info(
            flight.FlightDescriptor.for_command(json.dumps(command).encode()), options
        ),
        "get_schema": lambda client: client.get_schema(flight.FlightDescriptor.for_path(name), options),
        "do_get": lambda client: client.do_get(flight.Ticket(json.dumps(ticket).encode()), options).read_all(),
        "do_action": lambda client: list(
            client.do_action(flight.Action("offsets", json.dumps(offsets).encode()), options)
        ),
        "list_actions": lambda client: client.list_actions(options),
        "do_put": put,
    }
    chosen = chance.choice(list(calls))
    with flight.FlightClient(f"grpc://{address}") as client, contextlib.suppress(flight.FlightError, pa.ArrowException):
        for _ in range(chance.choice((1, 20))):
            calls[chosen](client)
    return f"{chosen} of {name}, {many}, {pattern[:20]}"
