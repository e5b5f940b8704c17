"""`python -m tools.mutants`"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tools.mutants import MUTANTS, Mutant, raft, raft_log
from tools.mutants.workshop import Outcome, Verdict, Workshop

TEST_SECONDS_MAX: Final = 180.0
SOUND_SECONDS_MAX: Final = 1200.0

RAFT_HUNT: Final = (
    "from tests.simulation.raft.raft_simulator import simulate\nfor seed in range({}): simulate(seed, 2000)"
)
CLUSTER_HUNT: Final = (
    "from tests.simulation.cluster.cluster_simulator import simulate\nfor seed in range({}): simulate(seed, 6)"
)


def tried(
    chosen: Sequence[Mutant], attempt: Callable[[Workshop, Mutant], Outcome], workers: int
) -> Iterator[tuple[Mutant, Outcome]]:
    """Each mutant and what became of it, in the order in which they end. Every worker has a copy of the tree."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(workers) as pool:
        workshops: SimpleQueue[Workshop] = SimpleQueue()
        for number in range(workers):
            workshops.put(Workshop(Path(directory) / str(number)))

        def work(mutant: Mutant) -> Outcome:
            workshop = workshops.get()
            try:
                return attempt(workshop, mutant)
            finally:
                workshops.put(workshop)

        running = {pool.submit(work, mutant): mutant for mutant in chosen}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def sound(chosen: Sequence[Mutant], workers: int) -> bool:
    """Whether all tests pass while no bug is planted; prints those that fail."""
    tests = sorted({mutant.killer for mutant in chosen})
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        outcome = Workshop(Path(directory)).passes(tests, min(workers, len(tests)), SOUND_SECONDS_MAX)
    if outcome.verdict is Verdict.SURVIVED:
        print(f"{len(tests)} tests pass without a planted bug", flush=True)
        return True
    print(f"{outcome.output}\ntests fail although no bug is planted")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=sys.modules["tools.mutants"].__doc__)
    parser.add_argument("--only", default="", help="mutants whose name, file or test contains this")
    parser.add_argument("--workers", type=int, default=2 * len(os.sched_getaffinity(0)), help="mutants at a time")
    parser.add_argument(
        "--seconds", type=float, default=TEST_SECONDS_MAX, help=f"time limit of a test (default: {TEST_SECONDS_MAX:g})"
    )
    parser.add_argument(
        "--simulate", type=int, default=0, metavar="N", help="hunt with N seeds of the simulators instead"
    )
    options = parser.parse_args()
    chosen = [one for one in MUTANTS if any(options.only in text for text in (one.name, one.file, one.killer))]

    def attempt(workshop: Workshop, mutant: Mutant) -> Outcome:
        if options.simulate:
            hunt = RAFT_HUNT if mutant in (*raft.MUTANTS, *raft_log.MUTANTS) else CLUSTER_HUNT
            return workshop.by_script(mutant, hunt.format(options.simulate), options.seconds)
        return workshop.by_test(mutant, options.seconds)

    began = time.monotonic()
    workers = max(1, min(options.workers, len(chosen)))
    if not options.simulate and not sound(chosen, workers):
        return 1
    counts: Counter[Verdict] = Counter()
    for mutant, outcome in tried(chosen, attempt, workers):
        counts[outcome.verdict] += 1
        how = "by the simulator" if options.simulate else mutant.killer
        print(f"{outcome.verdict.value:9}  {mutant.name}  ({mutant.file}; {how})", flush=True)
        if outcome.verdict is Verdict.BROKEN:
            print(outcome.output, flush=True)
    told = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)
    print(f"{len(chosen)} planted bugs: {told}; {time.monotonic() - began:.0f} seconds")
    return 0 if options.simulate or counts[Verdict.KILLED] == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
