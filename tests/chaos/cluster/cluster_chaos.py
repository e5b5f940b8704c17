"""A cluster of three brokers under load while everything fails: `python -m tests.chaos.cluster.cluster_chaos --minutes 10`.

A seed draws faults; sometimes the next one strikes before the cluster has recovered from the last. At the end every fault is undone,
and every message that was acked or delivered is looked up on every replica. Counts are printed; the exit code is 1 when a guarantee
was violated, and then the directory with logs and data is kept. See docs/internals/chaos.md.
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

from tests.chaos.cluster.cluster_faults import DISK_FAULTS, FAULTS, ROUTE_FAULTS, Fault, Scene
from tests.chaos.cluster.cluster_groups import GROUP_CONFIG, GroupLoad
from tests.chaos.cluster.cluster_history import KEEPS_ALL, Cleaning, PartitionHistory
from tests.chaos.cluster.cluster_load import ClusterLoad, Pace
from tests.chaos.cluster.cluster_verdict import Verdict, judge
from tests.chaos.cluster.machine_faults import MACHINE_FAULTS
from tests.chaos.cluster.operators import MOVED, OPERATIONS, wait_for_moves
from tests.support.broker_faults import COUNTS
from tests.support.cluster import Cluster
from tests.support.small_disk import is_permitted

SEGMENT_BYTES: Final = 64 << 10
RETAINED: Final = 4_000
CLEANED: Final = {"segmentMaxBytes": SEGMENT_BYTES, "cleanerInterval": 300}
STREAMS: Final[dict[str, dict[str, Any]]] = {
    "one": {"partitions": 2, "segmentMaxBytes": 4 * SEGMENT_BYTES},
    "two": {"minIsr": 2},
    "retained": {**CLEANED, "retentionMaxMessages": RETAINED},
    "compacted": {**CLEANED, "compactEnabled": True, "compactMinLag": 0},
    MOVED: {"factor": 2},
}
CLEANINGS: Final = {
    "retained": Cleaning(
        retained_min=RETAINED // 2
    ),  # retention removes whole segments, and may keep less by one of them
    "compacted": Cleaning(is_compacted=True),
}
PACE: Final = Pace(windowed=40, unary=10, more=True)
DISK_BYTES_PER_MINUTE: Final = 96 << 20
DISK_BYTES_MIN: Final = 192 << 20
HANDLES: Final = 1024
MEMORY_BYTES: Final = 512 << 20
"""Of each broker: a broker that needs more ends."""
COPY_SECONDS: Final = 600.0
"""Time in which a cluster recovers. After an EIO a replica copies its log anew, and after an hour that is a quarter of a gigabyte."""
IMPATIENT: Final = 0.3
"""How often the next fault does not wait until all replicas are in sync again."""
SYNCS: Final = ("ack", "interval", "always")


class Chaos:
    """`only`: faults whose names contain it; all by default."""

    def __init__(self, directory: Path, seed: int, seconds: float, nats_servers: int, only: str = "") -> None:
        self.seed = seed
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._started = time.monotonic()
        self.strikes: Counter[str] = Counter()
        self.machine_counts: Counter[str] = Counter()
        self.groups: GroupLoad | None = None
        faults: dict[str, Fault] = FAULTS | MACHINE_FAULTS | OPERATIONS
        if nats_servers > 1:
            faults = faults | ROUTE_FAULTS
        disks: dict[str, int] = {}
        if is_permitted(directory / "probe"):
            size = max(DISK_BYTES_MIN, int(DISK_BYTES_PER_MINUTE * seconds / 60))
            disks = {"b": size, "c": size}  # the third is on the disk of this machine, with its slow syncs
            faults = faults | DISK_FAULTS
        self.faults = {name: fault for name, fault in faults.items() if only in name}
        assert self.faults, f"no fault has `{only}` in its name"
        self.sync = self._rng.choice(SYNCS)
        self.cluster = Cluster(
            directory / "cluster",
            nats_servers=nats_servers,
            proxied=True,
            disks=disks,
            machines=True,
            handles=HANDLES,
            memory_bytes=MEMORY_BYTES,
            config={"streams.sync": self.sync, "streams.sync.interval": "200ms", **GROUP_CONFIG},
        )
        self.histories = [
            PartitionHistory(stream, partition, CLEANINGS.get(stream, KEEPS_ALL))
            for stream, settings in STREAMS.items()
            for partition in range(settings.get("partitions", 1))
        ]

    def run(self) -> Verdict:
        with self.cluster as cluster:
            for name, settings in STREAMS.items():
                cluster.create_stream(name, **settings)
            load = ClusterLoad(cluster, self.histories, PACE)
            load.start()
            self.groups = GroupLoad(cluster, [one for one in self.histories if one.cleaning == KEEPS_ALL], self.seed)
            self.groups.start()
            load.wait_for_progress()
            self._say("all writers and readers work")
            while time.monotonic() - self._started < self._seconds:
                self._strike(load)
            self._recover(load)
            wait_for_moves(cluster)
            self._recover(load)
            for machine in cluster.machines.values():
                self.machine_counts.update(machine.counts)
            self._say("every fault is undone; every message is looked up")
            return judge(cluster, load, self.groups, through_api=False)

    def _strike(self, load: ClusterLoad) -> None:
        name = self._rng.choice(list(self.faults))
        history = self._rng.choice(self.histories)
        began = time.monotonic()
        self.faults[name](Scene(self.cluster, history, random.Random(self._rng.random())))
        self.strikes[name] += 1
        lasted = time.monotonic() - began
        if self._rng.random() >= IMPATIENT:
            self._recover(load)
        self._say(f"{history.name}: {name} for {lasted:.1f} s, {time.monotonic() - began - lasted:.1f} s to recover")

    def _recover(self, load: ClusterLoad) -> None:
        """A broker whose disk was full may leave a moment after it has room again."""
        for one in self.histories:
            self.cluster.wait_until_in_sync(one.stream, one.partition, COPY_SECONDS, revive=True)
        load.wait_for_progress(timeout=COPY_SECONDS)

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._started:8.1f} s  {what}", flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started


def report(chaos: Chaos, verdict: Verdict) -> None:
    print(f"\nseed {chaos.seed}, {chaos.seconds:.0f} s, sync `{chaos.sync}`, {len(chaos.cluster.nats)} NATS servers")
    for title, kinds in (("operations", OPERATIONS.keys()), ("faults", chaos.strikes.keys() - OPERATIONS.keys())):
        counts = {name: chaos.strikes[name] for name in sorted(kinds) if chaos.strikes[name]}
        print(f"{title:<35} {sum(counts.values()):>6}")
        for name, count in counts.items():
            print(f"  {name:<33} {count:>6}")
    for name in COUNTS:
        print(f"{'disk: ' + name:<35} {chaos.machine_counts[name]:>6,}")
    groups = chaos.groups
    assert groups is not None
    print(
        f"\nread by the group           {groups.dealt_with:>12,}   of which twice {groups.repeated:,}; {groups.joins:,} joins"
    )
    print("\n".join(verdict.lines()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster.cluster_chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--nats", type=int, choices=(1, 3), help="NATS servers; the seed decides by default")
    parser.add_argument("--only", default="", help="only faults with this in their names")
    options = parser.parse_args()
    nats_servers = options.nats or (1, 3)[options.seed % 2]
    directory = Path(tempfile.mkdtemp(prefix="bascule-chaos-"))
    print(f"seed {options.seed}; repeat with --seed {options.seed}; data in {directory}", flush=True)
    chaos = Chaos(directory, options.seed, options.minutes * 60, nats_servers, options.only)
    try:
        verdict = chaos.run()
    except BaseException:
        print(f"the run ended early; everything is in {directory}", flush=True)
        raise
    report(chaos, verdict)
    sys.stdout.flush()
    if verdict.violations:
        sys.exit(f"a guarantee was violated; everything is in {directory}")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
