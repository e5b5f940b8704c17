"""A consumer group on a cluster that fails: members come and go, and every message is dealt with by one of them at least once.

Where a group goes on is a cursor. One that was forgotten costs a message that is dealt with twice, which is counted; one that is
ahead of what was dealt with costs a message that nobody ever sees, which is a violation.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Final

import bascule
from bascule.errors import BasculeError
from tests.chaos.cluster.cluster_history import EXAMPLES_MAX, PartitionHistory
from tests.support.cluster import Cluster
from tests.support.waiting import eventually

MEMBERS: Final = 2
STAY_SECONDS: Final = (4.0, 20.0)
CHECKPOINT_SECONDS: Final = 0.5
HANDOVER_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.1
FINISH_SECONDS: Final = 90.0
GROUP_CONFIG: Final = {
    "cursors.stream.partitions": 1,
    "cursors.stream.replication.factor": 3,
    "cursors.stream.auto.pause.time": 0,
    "groups.consumer.timeout": "3s",
    "groups.coordinator.timeout": "1s",
}


class GroupLoad:
    def __init__(self, cluster: Cluster, histories: list[PartitionHistory], seed: int) -> None:
        self._cluster = cluster
        self._histories = histories
        self._seed = seed
        self._seen = {history.name: bytearray() for history in histories}
        """How often each offset was dealt with, up to 255 times."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._faults: list[BaseException] = []
        self.joins = 0

    def start(self) -> None:
        self._thread.start()

    def finish(self, ends: dict[str, int]) -> None:
        """Until everything was dealt with, or it takes too long: then it is a violation, see `violations`."""
        try:
            eventually(lambda: not self._missing(ends), "the group sees everything", FINISH_SECONDS)
        except AssertionError:
            pass
        finally:
            self._stopping.set()
            self._thread.join(30)
        if self._faults:
            raise self._faults[0]

    def violations(self, ends: dict[str, int]) -> list[str]:
        return [f"{name}: no member of the group saw offset {offset}" for name, offset in self._missing(ends)]

    @property
    def dealt_with(self) -> int:
        return sum(len(counts) - counts.count(0) for counts in self._seen.values())

    @property
    def repeated(self) -> int:
        return sum(len(counts) - counts.count(0) - counts.count(1) for counts in self._seen.values())

    def _missing(self, ends: dict[str, int]) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for name, counts in self._seen.items():
            padded = counts + bytes(max(0, ends[name] - len(counts)))
            offset = padded.find(0)
            while 0 <= offset < ends[name] and len(found) < EXAMPLES_MAX:
                found.append((name, offset))
                offset = padded.find(0, offset + 1)
        return found

    # ── members ──────────────────────────────────────────────────────────────────────────────────

    def _guarded(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as fault:
            self._faults.append(fault)

    async def _run(self) -> None:
        rng = random.Random(self._seed)
        members = [asyncio.create_task(self._member(random.Random(rng.random()))) for _ in range(MEMBERS)]
        while not self._stopping.is_set():
            await asyncio.sleep(RETRY_SECONDS)
            for task in members:
                if task.done():
                    await task
        for task in members:
            task.cancel()
        await asyncio.gather(*members, return_exceptions=True)

    async def _member(self, rng: random.Random) -> None:
        """One that leaves after a while and comes back; when the cluster lets it."""
        streams = sorted({history.stream for history in self._histories})
        while True:
            try:
                async with (
                    bascule.connect(self._cluster.addresses, timeout=4.0, patience=60.0) as client,
                    client.consumer(
                        "readers", streams, auto_checkpoint=CHECKPOINT_SECONDS, handover_timeout=HANDOVER_SECONDS
                    ) as consumer,
                ):
                    self.joins += 1
                    leaves = time.monotonic() + rng.uniform(*STAY_SECONDS)
                    async for message in consumer:
                        self._note(f"{message.stream}/{message.partition}", message.offset)
                        if time.monotonic() > leaves:
                            break
            except BasculeError:
                await asyncio.sleep(RETRY_SECONDS)

    def _note(self, name: str, offset: int) -> None:
        counts = self._seen[name]
        if offset >= len(counts):
            counts.extend(bytes(offset + 1 - len(counts)))
        counts[offset] = min(255, counts[offset] + 1)
