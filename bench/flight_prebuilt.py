"""The baseline of Arrow Flight reads: a server of nothing but record batches that lie ready in memory.

    python -m bench.flight_prebuilt --location grpc://127.0.0.1:9294 --stream orders --partitions 1 --addresses file

Takes the same tables from a broker, then serves them; writes its port into `file`.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from bascule.flight.tickets import ReadTicket, parse_ticket


class Prebuilt(flight.FlightServerBase):  # type: ignore[misc] # pyarrow has no types
    def __init__(self, tables: dict[int, pa.Table]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._tables = tables

    def do_get(self, _context: Any, ticket: Any) -> Any:
        return flight.RecordBatchStream(self._tables[parse_ticket(ticket.ticket).partition])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flight_prebuilt")
    parser.add_argument("--location", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--addresses", type=Path, required=True)
    chosen = parser.parse_args()
    with flight.FlightClient(chosen.location) as client:
        tables = {
            number: client.do_get(flight.Ticket(ReadTicket(stream=chosen.stream, partition=number).encode())).read_all()
            for number in range(chosen.partitions)
        }
    server = Prebuilt(tables)
    chosen.addresses.with_suffix(".new").write_text(json.dumps({"flight": server.port}))
    chosen.addresses.with_suffix(".new").rename(chosen.addresses)
    threading.Event().wait()


if __name__ == "__main__":
    main()
