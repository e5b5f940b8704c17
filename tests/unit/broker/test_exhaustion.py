"""A broker without memory ends at once, with an exit code and a hint; other failures do not end it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, threading
from bascule.broker.exhaustion import end_when_exhausted

def fail():
    raise {error}

async def fail_later():
    fail()

async def main():
    loop = asyncio.get_running_loop()
    end_when_exhausted(loop)
    {how}
    await asyncio.sleep(0.01)
    import gc; gc.collect()
    await asyncio.sleep(0.01)
    print("goes on")

asyncio.run(main())
"""
WAYS = {
    "callback": "loop.call_soon(fail)",
    "task": "loop.create_task(fail_later())",
    "thread": "thread = threading.Thread(target=fail); thread.start(); thread.join()",
}


def outcome(how: str, error: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(how=WAYS[how], error=error)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("error", ["MemoryError()", 'RuntimeError("can\'t start new thread")'])
def test_a_broker_without_memory_ends(how: str, error: str) -> None:
    found = outcome(how, error)
    assert found.returncode == 4
    assert "the broker gets no memory" in found.stderr
    assert "hint: give it more memory" in found.stderr


@pytest.mark.parametrize("how", WAYS)
def test_another_failure_does_not_end_it(how: str) -> None:
    found = outcome(how, 'ValueError("wrong")')
    assert (found.returncode, found.stdout) == (0, "goes on\n")
    assert "wrong" in found.stderr
