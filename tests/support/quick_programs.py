"""Programs that begin as a copy of a process that has their imports: see fork_server.py. For what tests do not start themselves:
shells of guides start `bascule`, and Spark starts Pythons.

    bascule_command(directory)     # writes `directory/bascule`
    spark_python(directory)        # a Python for `PYSPARK_PYTHON`

A program asks for the copy, passes signals on to it, and ends as it does. When the program is killed, so is the copy.

Spark starts a new Python for the source of each streaming query, which needs half a second of CPU for its imports: more than the rest
of a small query. Its other Pythons are started as ever.
"""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Final

from tests.support.fork_server import PRELOADED, ForkServer

_SOURCE_OF_A_QUERY: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_SPARK_PRELOADED: Final = (
    "pyspark.sql.datasource_internal",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.plan_data_source_read",
    "bascule.spark.source",
    "bascule.client.arrow.reader",
)
"""What that process imports, but for the module that it runs."""
_SPARK_ENVIRON: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # a process with threads cannot be copied
    "PYTHONHASHSEED": "0",  # of all Pythons that Spark starts
}

_BEGINNING: Final = """#!{python} -IS
import os, sys
"""
_SPARK_CASE: Final = """
if sys.argv[1:] != ["-m", "{module}"]:
    os.execv("{python}", ["{python}", *sys.argv[1:]])
"""
_REST: Final = """
import json, signal, socket, struct

starter = os.getppid()
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect("\\0{address}")
request = dict(module="{module}", arguments=sys.argv[1:], is_script={is_script}, handles=None)
request.update(environ=dict(os.environ), directory=os.getcwd())
socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2])
(pid,) = struct.unpack("<q", line.recv(8))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
line.settimeout(1)
answer = None
while answer is None:
    try:
        answer = line.recv(8)
    except TimeoutError:
        if {ends_with_starter} and os.getppid() != starter:
            sys.exit(1)
(code,) = struct.unpack("<q", answer)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def bascule_command(directory: Path) -> Path:
    text = _BEGINNING + _REST
    return _write(
        directory / "bascule",
        text.format(
            python=sys.executable,
            address=_serve_commands(),
            module="bascule.cli.main",
            is_script=False,
            ends_with_starter=False,
        ),
    )


def spark_python(directory: Path) -> Path:
    text = _BEGINNING + _SPARK_CASE + _REST
    return _write(
        directory / "python",
        text.format(
            python=sys.executable,
            address=_serve_sources(),
            module=_SOURCE_OF_A_QUERY,
            is_script=True,
            ends_with_starter=True,
        ),
    )


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@functools.cache
def _serve_commands() -> str:
    return _serve({}, PRELOADED)


@functools.cache
def _serve_sources() -> str:
    return _serve(_SPARK_ENVIRON, _SPARK_PRELOADED)


def _serve(environ: dict[str, str], preloaded: tuple[str, ...]) -> str:
    """Start a server that ends with this process. Returns its address."""
    address = f"bascule-tests-{os.getpid()}-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen()
        atexit.register(ForkServer(environ, preloaded, listener).stop)
    return address
