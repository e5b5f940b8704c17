"""A client of good manners in a process of its own, whose latency shows what an attack does to others.

    python -m tests.support.bystander ADDRESS STREAM

publishes a message every few milliseconds, waits for its ack, and prints one line for each: when it began, and how long it took, in
seconds. It ends when its standard input is closed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.support.api_client import Api, grpc, pb
from tests.support.broker_process import ROOT, BrokerProcess, clean_environ
from tests.support.waiting import eventually

PAUSE_SECONDS: Final = 0.01
CALL_SECONDS: Final = 60.0
BASELINE_CALLS: Final = 50
RSS_SECONDS: Final = 0.02
"""Interval between two looks at the broker's memory."""


@dataclass
class Observed:
    """What the bystander and the broker's memory looked like. Times in seconds."""

    baseline: list[float] = field(default_factory=list)
    """Latencies before the attack."""
    during: list[float] = field(default_factory=list)
    rss_bytes_max: int = 0

    def p99(self) -> float:
        return percentile(self.during, 0.99)

    def check(self, *, p99_seconds: float, rss_bytes: int) -> None:
        """Latency against an absolute bound, or one derived from the same client before the attack: the machine may be busy."""
        print(f"p99 {self.p99():.3f} s, before {percentile(self.baseline, 0.99):.3f} s; {self.rss_bytes_max >> 20} MiB")
        assert len(self.during) >= 3, "the bystander was not served during the attack"
        allowed = max(p99_seconds, 20 * percentile(self.baseline, 0.99))
        assert self.p99() < allowed, f"others waited {self.p99():.3f} s, allowed are {allowed:.3f} s: {self.slowest()}"
        assert self.rss_bytes_max < rss_bytes, f"the broker used {self.rss_bytes_max >> 20} MiB"

    def slowest(self) -> list[float]:
        return sorted(self.during)[-5:]


def percentile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * fraction))]


class Bystander:
    def __init__(self, broker: BrokerProcess, stream: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.bystander", broker.address, stream],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_environ(),
        )
        self._lines: list[tuple[float, float]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            began, took = map(float, line.split())
            self._lines.append((began, took))

    def calls(self, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Latencies of the calls that began in this time, on the monotonic clock of the machine."""
        return [took for began, took in list(self._lines) if since <= began <= until]

    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(2 * CALL_SECONDS) == 0, "the bystander failed: its calls were refused"
        self._reader.join()


@contextmanager
def watched(broker: BrokerProcess, api: Api, stream: str, least: float = 0.0) -> Iterator[Observed]:
    """Watch the latency of another client, and the broker's memory, while the block attacks, for `least` seconds at least."""
    api.CreateStream(name=stream, subject=f"subject.{stream}")
    found, bystander = Observed(), Bystander(broker, stream)
    attacking = threading.Event()
    attacking.set()
    try:
        eventually(lambda: len(bystander.calls()) >= BASELINE_CALLS, "the bystander is served before the attack")
        found.baseline = bystander.calls()
        watcher = threading.Thread(target=_watch_memory, args=(broker, found, attacking.is_set), daemon=True)
        watcher.start()
        began = time.monotonic()
        yield found
        time.sleep(max(0.0, began + least - time.monotonic()))
        until = time.monotonic()
        attacking.clear()
        watcher.join()
        # A call that began during the attack counts, however long it takes.
        eventually(
            lambda: bystander.calls(since=until) or not bystander.is_running(), "others are served after the attack"
        )
        found.during = bystander.calls(began, until)
    finally:
        attacking.clear()
        bystander.close()


def _watch_memory(broker: BrokerProcess, found: Observed, goes_on: Callable[[], bool]) -> None:
    while goes_on():
        found.rss_bytes_max = max(found.rss_bytes_max, broker.rss_bytes())
        time.sleep(RSS_SECONDS)


def _main(address: str, stream: str) -> None:
    over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    api = Api(address)
    while not over.is_set():
        began = time.monotonic()
        try:
            api.Publish(stream=stream, value=b"x" * 100, ackPolicy=pb.LEADER, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            sys.exit(f"a call of the bystander failed after {time.monotonic() - began:.1f} s: {error}")
        print(began, time.monotonic() - began, flush=True)
        time.sleep(PAUSE_SECONDS)
    api.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
