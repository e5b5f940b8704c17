"""A real process, real files, SIGKILL at any moment, again and again on the same directory: what was acknowledged is there."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from bascule.log import PartitionLog
from tests.chaos.log.log_writer import drafts_of, options_from
from tests.support.logs import KEYS, Draft, ManualSyncer, Stored, epoch_of, read_all

ROOT: Final = Path(__file__).parents[3]
PATIENCE_SECONDS: Final = 60.0
KILLS: Final = 60
RETAINED: Final = 300

SEED: Final = int(os.environ.get("BASCULE_KILL_SEED", "1"))
"""The same in every run but a soak's, so that a red one means a change that broke something."""

VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "ack": {"segment_bytes_max": 3000},
    "always": {"segment_bytes_max": 3000, "sync": "always"},
    "interval": {"segment_bytes_max": 3000, "sync": "interval", "compression": "zstd"},
    "compacted": {"segment_bytes_max": 2000, "compact": True},
    "retained": {"segment_bytes_max": 2000, "retention_records_max": RETAINED},
    "everything": {
        "segment_bytes_max": 2000,
        "retention_records_max": RETAINED,
        "compact": True,
        "compression": "zstd",
        "encryption": True,
    },
}


class Writers:
    """The fork server, and the one writer it runs at a time."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.log.log_writer"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._unread = b""
        self._pid = 0

    def order(self, **what: Any) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(what).encode() + b"\n")

    def line(self) -> list[str]:
        """The next thing that was said."""
        assert self._server.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._server.stdout], [], [], PATIENCE_SECONDS)
            assert ready, "the writer says nothing any more"
            more = os.read(self._server.stdout.fileno(), 1 << 16)
            assert more, "the fork server is gone"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        words = line.decode().split()
        if words[0] == "pid":
            self._pid = int(words[1])
        return words

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def reap(self) -> Iterator[list[str]]:
        """What was said up to the end of the writer; the last line tells how it ended."""
        self.order(reap=True)
        while True:
            words = self.line()
            yield words
            if words[0] == "gone":
                return

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        assert self._server.wait(PATIENCE_SECONDS) == 0
        self._server.stdout.close()


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    server = Writers()
    yield server
    server.close()


@dataclass
class Witness:
    """What the log must hold, as far as the writers have told."""

    options: dict[str, Any]
    expected: dict[int, tuple[Draft, int]] = field(default_factory=dict)
    """Record and epoch for every offset that was given out."""

    end_offset: int = 0
    run: int = 0
    trying: list[Draft] = field(default_factory=list)
    acknowledged: int = 0
    undecided: int = 0

    def hear(self, words: list[str]) -> None:
        if words[0] == "open":
            assert int(words[1]) == self.end_offset, "the writer's recovery found another end than ours"
        elif words[0] == "try":
            self.trying = drafts_of(self.run, int(words[1]))
        elif words[0] == "ack":
            assert int(words[2]) == self.end_offset
            self._take()
            self.acknowledged += 1

    def _take(self) -> None:
        for draft in self.trying:
            self.expected[self.end_offset] = (draft, self.run + 1)
            self.end_offset += 1
        self.trying = []

    def check(self, directory: str) -> None:
        """Open a copy of the directory: what the next writer finds is the same."""
        copy = f"{directory}.copy"
        shutil.copytree(directory, copy)
        log = PartitionLog(copy, options_from({"options": self.options}), keys=KEYS, syncer=ManualSyncer())
        try:
            report = log.open()
            assert not report.damage and not report.missing, report.lines()
            self._check_end(log.log_end_offset)
            found = read_all(log)
            self._check_content(log, found)
        finally:
            log.close()
            shutil.rmtree(copy)

    def _check_end(self, end_offset: int) -> None:
        if self.trying and end_offset == self.end_offset + len(self.trying):
            self.undecided += 1
            self._take()  # written, but the writer did not live to say so
        self.trying = []
        assert end_offset == self.end_offset

    def _check_content(self, log: PartitionLog, found: list[Stored]) -> None:
        offsets = [stored.offset for stored in found]
        assert offsets == sorted(set(offsets))
        entries = log.epoch_entries
        for before, behind in pairwise(found):
            assert before.timestamp <= behind.timestamp
        for stored in found:
            draft, epoch = self.expected[stored.offset]
            assert (stored.key, stored.value, stored.headers) == (draft.key, draft.value, draft.headers)
            assert (stored.subject, stored.reply) == (draft.subject, draft.reply)
            assert stored.leader_epoch == epoch == epoch_of(entries, stored.offset)
        self._check_absent(set(offsets))

    def _check_absent(self, found: set[int]) -> None:
        superseded: set[bytes] = set()
        for offset in range(self.end_offset - 1, -1, -1):
            key = self.expected[offset][0].key
            if offset not in found:
                compacted = self.options.get("compact", False) and key in superseded
                expired = "retention_records_max" in self.options and offset < self.end_offset - RETAINED // 2
                assert compacted or expired, f"offset {offset} of {self.end_offset} is lost"
            if key is not None:
                superseded.add(key)


def spin(seconds: float) -> None:
    """Let the writer come to any point at all. Nothing depends on how far it gets."""
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        pass


def one_run(writers: Writers, witness: Witness, directory: str, rng: random.Random) -> None:
    """Start a writer, listen to it for a while, kill it or let it kill itself, and hear what else it had said."""
    dies_at = rng.randint(1, 150) if rng.random() < 0.4 else 0
    writers.order(
        directory=directory,
        options=witness.options,
        run=witness.run,
        seed=rng.randrange(1 << 32),
        batches=rng.choice((5, 40, 40)),
        dies_at=dies_at,
        sync_interval_ms=rng.choice((1, 5, 1000)),
    )
    assert writers.line()[0] == "pid"
    if not dies_at:
        for _ in range(rng.choice((0, 0, 1, rng.randrange(80)))):
            words = writers.line()
            witness.hear(words)
            if words[0] == "done":
                break
        spin(rng.choice((0.0, 0.0005, 0.003)) * rng.random())
        writers.kill()
    for words in writers.reap():
        witness.hear(words)
        if words[0] == "gone":
            assert int(words[1]) in (0, signal.SIGKILL), f"the writer failed: status {words[1]}, see its stderr"


@pytest.mark.parametrize("variant", VARIANTS)
def test_whatever_was_acknowledged_survives_kill_9(variant: str, writers: Writers, tmp_path: Path) -> None:
    print(f"BASCULE_KILL_SEED={SEED}")
    rng = random.Random(f"{SEED} {variant}")
    witness = Witness(VARIANTS[variant])
    for kill in range(KILLS):
        directory = str(tmp_path / f"log-{kill // 30}")
        if kill % 30 == 0:
            witness = Witness(VARIANTS[variant])
        witness.run += 1
        one_run(writers, witness, directory, rng)
        if Path(directory).exists():
            witness.check(directory)
    assert witness.acknowledged > 50


@pytest.mark.soak
def test_whatever_was_acknowledged_survives_kill_9_for_a_long_time(
    writers: Writers, tmp_path: Path, soak_seconds: float
) -> None:
    seed = int(os.environ.get("BASCULE_KILL_SEED", str(random.SystemRandom().randrange(1 << 32))))
    print(f"BASCULE_KILL_SEED={seed}")
    rng = random.Random(seed)
    stop = time.monotonic() + soak_seconds
    life = 0
    while time.monotonic() < stop:
        life += 1
        directory = str(tmp_path / f"log-{life}")
        witness = Witness(VARIANTS[rng.choice(list(VARIANTS))])
        for _ in range(100):
            witness.run += 1
            one_run(writers, witness, directory, rng)
            if Path(directory).exists():
                witness.check(directory)
        shutil.rmtree(directory)
