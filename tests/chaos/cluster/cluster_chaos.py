"""A cluster of three brokers under load while everything happens to it: `python -m tests.chaos.cluster.cluster_chaos --minutes 10`.

A seed draws faults from cluster_faults.py; sometimes the next one strikes before the cluster has recovered from the last. At the end
every fault is undone, and every message that was acked or delivered is looked up on every replica. Counts are printed; the exit code
is 1 when a guarantee was violated, and then the directory with logs and data is kept.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.chaos.cluster.cluster_faults import DISK_FAULTS, FAULTS, Fault, Scene
from tests.chaos.cluster.cluster_groups import GROUP_CONFIG, GroupLoad
from tests.chaos.cluster.cluster_history import PartitionHistory
from tests.chaos.cluster.cluster_load import ClusterLoad, Pace
from tests.chaos.cluster.cluster_verdict import Verdict, judge
from tests.support.cluster import Cluster
from tests.support.small_disk import is_permitted

STREAMS: Final[dict[str, dict[str, Any]]] = {
    "one": {"partitions": 2, "segmentMaxBytes": 256 << 10},
    "two": {"partitions": 1, "minIsr": 2},
}
DISK_BYTES_PER_MINUTE: Final = 96 << 20
DISK_BYTES_MIN: Final = 128 << 20
IMPATIENT: Final = 0.3
"""How often the next fault does not wait until all replicas are in sync again."""
SYNCS: Final = ("ack", "interval", "always")


class Chaos:
    def __init__(self, directory: Path, seed: int, seconds: float, nats_servers: int) -> None:
        self.seed = seed
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._started = time.monotonic()
        self.strikes: Counter[str] = Counter()
        self.groups: GroupLoad | None = None
        self.faults: dict[str, Fault] = dict(FAULTS)
        disks: dict[str, int] = {}
        if is_permitted(directory / "probe"):
            size = max(DISK_BYTES_MIN, int(DISK_BYTES_PER_MINUTE * seconds / 60))
            disks = {"b": size, "c": size}  # the third is on the disk of this machine, with its slow syncs
            self.faults |= DISK_FAULTS
        self.sync = self._rng.choice(SYNCS)
        self.cluster = Cluster(
            directory / "cluster",
            nats_servers=nats_servers,
            proxied=True,
            disks=disks,
            config={"streams.sync": self.sync, "streams.sync.interval": "200ms", **GROUP_CONFIG},
        )
        self.histories = [
            PartitionHistory(stream, partition)
            for stream, settings in STREAMS.items()
            for partition in range(settings["partitions"])
        ]

    def run(self) -> Verdict:
        with self.cluster as cluster:
            for name, settings in STREAMS.items():
                cluster.create_stream(name, **settings)
            load = ClusterLoad(cluster, self.histories, Pace(windowed=150, unary=30))
            load.start()
            self.groups = GroupLoad(cluster, self.histories, self.seed)
            self.groups.start()
            load.wait_for_progress()
            self._say("everybody writes and reads")
            while time.monotonic() - self._started < self._seconds:
                self._strike(load)
            self._recover(load)
            self._say("everything is put right; looking at every message")
            return judge(cluster, load, self.groups, through_api=False)

    def _strike(self, load: ClusterLoad) -> None:
        name = self._rng.choice(list(self.faults))
        history = self._rng.choice(self.histories)
        began = time.monotonic()
        self.faults[name](Scene(self.cluster, history, self._rng))
        self.strikes[name] += 1
        lasted = time.monotonic() - began
        if self._rng.random() >= IMPATIENT:
            self._recover(load)
        self._say(f"{history.name}: {name} for {lasted:.1f} s, {time.monotonic() - began - lasted:.1f} s to recover")

    def _recover(self, load: ClusterLoad) -> None:
        """A broker whose disk was full may leave a moment after it has room again."""
        for one in self.histories:
            self.cluster.wait_until_in_sync(one.stream, one.partition, revive=True)
        load.wait_for_progress()

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._started:8.1f} s  {what}", flush=True)


def report(chaos: Chaos, verdict: Verdict) -> None:
    print(f"\nseed {chaos.seed}, sync `{chaos.sync}`, {len(chaos.cluster.nats)} NATS servers")
    for name, count in sorted(chaos.strikes.items()):
        print(f"{name:<35} {count:>4}")
    print(f"{'faults':<35} {sum(chaos.strikes.values()):>4}\n")
    groups = chaos.groups
    assert groups is not None
    print(f"dealt with by the group     {groups.dealt_with:>12,}   again {groups.repeated:,}; {groups.joins:,} joins")
    print("\n".join(verdict.lines()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster.cluster_chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--nats", type=int, choices=(1, 3), help="NATS servers; the seed decides by default")
    options = parser.parse_args()
    nats_servers = options.nats or (1, 3)[options.seed % 2]
    directory = Path(tempfile.mkdtemp(prefix="bascule-chaos-"))
    print(f"seed {options.seed}; repeat with --seed {options.seed}; data in {directory}", flush=True)
    chaos = Chaos(directory, options.seed, options.minutes * 60, nats_servers)
    try:
        verdict = chaos.run()
    except BaseException:
        print(f"the run did not come to its end; everything is in {directory}", flush=True)
        raise
    report(chaos, verdict)
    sys.stdout.flush()
    if verdict.violations:
        sys.exit(f"something that was promised did not hold; everything is in {directory}")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
