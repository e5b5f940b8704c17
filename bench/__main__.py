"""Run the benchmarks: all of them, or those whose name is given."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import (
    client,
    controller,
    flight,
    load_acked,
    load_ingest,
    load_latency,
    load_subscribe,
    log_append,
    log_compact,
    log_open,
    log_read,
    nats_link,
    replication,
    spark,
)
from bench.report import LoadRow, Row, publish
from bench.systems import Systems

SUITES: dict[str, Callable[[Path], Iterator[Row]]] = {
    "log-append": log_append.rows,
    "log-read": log_read.rows,
    "log-open": log_open.rows,
    "log-compact": log_compact.rows,
    "controller": controller.rows,
    "nats-link": nats_link.rows,
}
LOAD_SUITES: dict[str, Callable[[Systems], Iterator[Row | LoadRow]]] = {
    "ingest": load_ingest.rows,
    "envelopes": load_acked.envelope_rows,
    "publish-async": load_acked.async_rows,
    "latency": load_latency.rows,
    "subscribe": load_subscribe.rows,
    "client": client.rows,
    "flight": flight.rows,
    "spark": spark.rows,
}
"""Those that need servers: a broker, nats-server and JetStream are started for all of them together."""
CLUSTER_SUITES: dict[str, Callable[[Path, bool], Iterator[Row | LoadRow]]] = {"replication": replication.rows}
"""Those that need several brokers, and start them; told whether a smoke run is wanted."""


def main() -> None:
    names = [*SUITES, *LOAD_SUITES, *CLUSTER_SUITES]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suite", nargs="*", help=f"which ones, of {', '.join(names)}; all by default")
    parser.add_argument("--directory", help="where to put the logs; a temporary folder by default")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of the load suites: few messages, rough numbers"
    )
    parser.add_argument("--liftbridge", metavar="PATH", help="a Liftbridge binary to measure beside the broker")
    chosen = parser.parse_args()
    if unknown := set(chosen.suite) - set(names):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    rows: list[Row | LoadRow] = []
    with (
        tempfile.TemporaryDirectory(prefix="bascule-bench-", dir=chosen.directory) as directory,
        contextlib.ExitStack() as stack,
    ):
        systems: Systems | None = None
        for name in chosen.suite or names:
            print(f"measuring {name} …", flush=True)
            if name in SUITES:
                rows.extend(SUITES[name](Path(directory)))
                continue
            if name in CLUSTER_SUITES:
                rows.extend(CLUSTER_SUITES[name](Path(directory) / name, chosen.quick))
                continue
            if systems is None:
                systems = Systems(Path(directory) / "servers", liftbridge=chosen.liftbridge, quick=chosen.quick)
                stack.callback(systems.close)
            try:
                rows.extend(LOAD_SUITES[name](systems))
            except RuntimeError:
                print(systems.complaints(), file=sys.stderr)
                raise
    publish(rows)


if __name__ == "__main__":
    main()
