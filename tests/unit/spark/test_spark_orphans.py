"""A process of Spark ends with its parent, whatever it waits for; others do not care."""

from __future__ import annotations

import os
import subprocess
import sys

from bascule.spark.orphans import end_with_parent
from tests.support.spark_processes import Process
from tests.support.waiting import eventually

CHILD = """
import os, sys, time
from types import SimpleNamespace
from bascule.spark.orphans import end_with_parent
sys.modules["__main__"].__spec__ = SimpleNamespace(name="pyspark.sql.streaming.python_streaming_source_runner")
is_watched = end_with_parent() and end_with_parent()
print(os.getpid(), is_watched, flush=True)
time.sleep(120)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
os.close(1)  # a child that fails is heard of
child.wait()
"""


def orphan() -> tuple[Process, str]:
    """A child whose parent has been killed, and what it said of being watched."""
    places = os.pathsep.join(place for place in sys.path if place)
    command, environ = [sys.executable, "-c", PARENT, CHILD], {**os.environ, "PYTHONPATH": places}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, is_watched = parent.stdout.readline().split()
        child = Process.of(int(pid))
        parent.kill()
    assert child is not None
    return child, is_watched


def test_a_process_of_spark_ends_with_its_parent() -> None:
    child, is_watched = orphan()
    assert is_watched == "True"
    eventually(lambda: not child.runs, "it is gone")


def test_a_driver_does_not() -> None:
    assert not end_with_parent(), "of pytest, or whatever runs this"
