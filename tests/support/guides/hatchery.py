"""Runs Python and `bascule` commands for a reader of the guides, on the reader's machine, with the installed package only.

    python hatchery.py SOCKET fork     each command runs in a copy of this process, which has imported the package already
    python hatchery.py SOCKET stay     each runs in this process, so that all of them share one Spark

A request is a JSON document with the descriptors 0, 1 and 2; the answer is the exit code. This file imports nothing of the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from typing import Any

REQUEST_BYTES_MAX = 1 << 20
PATIENCE_SECONDS = 60.0
"""Timeout of a call: a machine that runs tests is busier than a reader's."""


def prepare(*, shares_spark: bool) -> None:
    import bascule
    import bascule.cli.main
    from bascule.cli.target import target

    target.TIMEOUT_DEFAULT = PATIENCE_SECONDS  # type: ignore[misc]
    for make in (bascule.connect, bascule.blocking.connect):
        make.__kwdefaults__ = {**(make.__kwdefaults__ or {}), "timeout": PATIENCE_SECONDS}
    if shares_spark:
        from pyspark.sql import SparkSession

        SparkSession.stop = lambda _: None  # type: ignore[method-assign, assignment]


def serve(path: str, *, is_copied: bool) -> None:
    prepare(shares_spark=not is_copied and "SPARK_SUBMIT_OPTS" in os.environ)
    names: dict[str, Any] = {}
    page = ""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN if is_copied else signal.SIG_DFL)
    while True:
        line, _ = listening.accept()
        data, descriptors, _, _ = socket.recv_fds(line, REQUEST_BYTES_MAX, 3)
        if not data:
            line.close()
            continue
        request = json.loads(data)
        if is_copied:
            if os.fork():
                line.close()
                for one in descriptors:
                    os.close(one)
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            answer(line, outcome(request, descriptors, {}))
            os._exit(0)
        if request["page"] != page:
            stop_queries()
            page, names = request["page"], {"__name__": "__main__"}
        answer(line, outcome(request, descriptors, names))


def answer(line: socket.socket, code: int) -> None:
    with line, contextlib.suppress(BrokenPipeError):
        line.sendall(b"%d" % code)


def outcome(request: dict[str, Any], descriptors: list[int], names: dict[str, Any]) -> int:
    """The exit code of a request that is carried out with these descriptors as 0, 1 and 2."""
    kept = [os.dup(number) for number in range(3)]
    for number, one in enumerate(descriptors):
        os.dup2(one, number)
        os.close(one)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    try:
        if "code" in request:
            # Spark and py4j leave sockets to the garbage collector.
            with warnings.catch_warnings():
                warnings.simplefilter("default" if "pyspark" in sys.modules else "error")
                exec(compile(request["code"], request["file"], "exec"), names)
        else:
            from bascule.cli.main import main

            sys.argv[:] = ["bascule", *request["arguments"]]
            main()
        code: Any = 0
    except SystemExit as ending:
        code = ending.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(BrokenPipeError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    for number, one in enumerate(kept):
        os.dup2(one, number)
        os.close(one)
    return code if isinstance(code, int) else 1


def stop_queries() -> None:
    """A page that ends leaves no query of Spark behind."""
    if "pyspark.sql" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is not None:
        for query in spark.streams.active:
            query.stop()


if __name__ == "__main__":
    serve(sys.argv[1], is_copied=sys.argv[2] == "fork")
