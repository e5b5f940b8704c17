"""Reads tables, or writes one, as a process of its own: `python -m bench.flight_load read|read-columns|put --location … --stream …`.

`put` takes the gRPC address of a broker as its location.

Batches are counted and dropped: what is measured is the server and the way to the client's memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.flight as flight

from bascule.client.arrow.reader import FlightConnection
from bascule.flight.tickets import ReadTicket

PUT_ROWS_AT_ONCE = 10_000


def read(location: str, stream: str, partitions: int, columns: tuple[str, ...] | None) -> int:
    """Each partition on a thread and a connection of its own."""

    def rows_of(partition: int) -> int:
        ticket = ReadTicket(stream=stream, partition=partition)
        if columns is not None:
            ticket = ReadTicket(stream=stream, partition=partition, columns=columns)
        with flight.FlightClient(location) as client:
            return sum(chunk.data.num_rows for chunk in client.do_get(flight.Ticket(ticket.encode())))

    with ThreadPoolExecutor(partitions) as pool:
        return sum(pool.map(rows_of, range(partitions)))


def put(address: str, stream: str, messages: int, size: int) -> int:
    batch = pa.record_batch({"value": [b"x" * size] * PUT_ROWS_AT_ONCE})
    count = max(1, messages // PUT_ROWS_AT_ONCE)
    with FlightConnection(address) as tables:
        return sum(answer["rows"] for answer in tables.put(stream, [batch] * count))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flight_load")
    parser.add_argument("mode", choices=["read", "read-columns", "put"])
    parser.add_argument("--location", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--size", type=int, default=128)
    chosen = parser.parse_args()
    began = time.monotonic()
    if chosen.mode == "put":
        rows = put(chosen.location, chosen.stream, chosen.messages, chosen.size)
        failed = 0
    else:
        columns = ("offset", "value") if chosen.mode == "read-columns" else None
        rows = read(chosen.location, chosen.stream, chosen.partitions, columns)
        failed = chosen.messages - rows
    ended = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_SELF)
    said = {"began": began, "ended": ended, "messages": rows, "failed": failed}
    print(json.dumps({**said, "client_cpu": used.ru_utime + used.ru_stime, "p50_us": 0.0, "p99_us": 0.0}))


if __name__ == "__main__":
    main()
