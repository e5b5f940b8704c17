"""Spark's Pythons without the wait for their imports.

Spark starts a new Python for the source of each streaming query, which needs half a second of CPU to import Spark, Arrow and Bascule: more
than the rest of a small query. In sessions of tests that process begins as a copy of one that has imported them: see fork_server.py.
The program that Spark starts in its place asks for the copy and lives as long as it does. All other Pythons of Spark are started as ever,
and so are those of the drivers that tests start as processes of their own.
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

from tests.support.fork_server import ForkServer

PRELOADED: Final = (
    "pyspark.sql.datasource_internal",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.plan_data_source_read",
    "bascule.spark.source",
    "bascule.client.arrow.reader",
)
"""What the process imports, but for the module that it runs."""
WITHOUT_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""For NumPy and Arrow: a process with threads cannot be copied."""
ENVIRON: Final = {**WITHOUT_THREADS, "PYTHONHASHSEED": "0"}
"""Spark's Pythons all have this hash."""

_PROGRAM: Final = """#!{python} -IS
import os, sys

if sys.argv[1:] != ["-m", "pyspark.sql.streaming.python_streaming_source_runner"]:
    os.execv("{python}", ["{python}", *sys.argv[1:]])

import json, signal, socket, struct

java = os.getppid()
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect("\\0{address}")
request = dict(module=sys.argv[2], arguments=[], environ=dict(os.environ), directory=os.getcwd(), handles=None, is_script=True)
socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2])
assert line.recv(8), "the fork server has died"
line.settimeout(1)
answer = None
while answer is None:
    try:
        answer = line.recv(8)
    except TimeoutError:
        if os.getppid() != java:
            sys.exit(1)
(code,) = struct.unpack("<q", answer)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@functools.cache
def quick_python(directory: Path) -> Path:
    """A Python for `PYSPARK_PYTHON`, as a program in this directory."""
    address = f"bascule-tests-{os.getpid()}-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen()
        server = ForkServer(ENVIRON, PRELOADED, listener)
    atexit.register(server.stop)
    program = directory / "python"
    program.write_text(_PROGRAM.format(python=sys.executable, address=address))
    program.chmod(0o755)
    return program
