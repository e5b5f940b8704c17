"""Run the benchmarks: all of them, or those whose name is given."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import controller, log_append, log_compact, log_open, log_read
from bench.report import Row, publish

SUITES: dict[str, Callable[[Path], Iterator[Row]]] = {
    "log-append": log_append.rows,
    "log-read": log_read.rows,
    "log-open": log_open.rows,
    "log-compact": log_compact.rows,
    "controller": controller.rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suite", nargs="*", help=f"which ones, of {', '.join(SUITES)}; all by default")
    parser.add_argument("--directory", help="where to put the logs; a temporary folder by default")
    chosen = parser.parse_args()
    if unknown := set(chosen.suite) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bascule-bench-", dir=chosen.directory) as directory:
        for name in chosen.suite or SUITES:
            print(f"measuring {name} …", flush=True)
            rows.extend(SUITES[name](Path(directory)))
    publish(rows)


if __name__ == "__main__":
    main()
