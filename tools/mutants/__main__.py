"""`python -m tools.mutants`"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tools.mutants import MUTANTS, ROOT, Mutant, by_test, raft, run

RAFT_HUNT = "from tests.simulation.raft.raft_simulator import simulate\nfor seed in range({}): simulate(seed, 2000)"
CLUSTER_HUNT = (
    "from tests.simulation.cluster.cluster_simulator import simulate\nfor seed in range({}): simulate(seed, 6)"
)


def by_simulation(mutant: Mutant, copy: Path, seeds: int) -> bool:
    hunt = RAFT_HUNT if mutant in raft.MUTANTS else CLUSTER_HUNT
    return run(mutant, copy, [sys.executable, "-c", hunt.format(seeds)]).returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=sys.modules["tools.mutants"].__doc__)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument(
        "--simulate", type=int, default=0, metavar="N", help="hunt with N seeds of the simulators instead"
    )
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]
    survivors = []
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            is_killed = by_simulation(mutant, copy, options.simulate) if options.simulate else by_test(mutant, copy)
            if not is_killed:
                survivors.append(mutant)
            how = "by the simulator" if options.simulate else mutant.killer.partition("::")[2]
            print(f"{'killed  ' if is_killed else 'SURVIVED'}  {mutant.name}  ({how})", flush=True)
    print(f"{len(chosen) - len(survivors)}/{len(chosen)} killed")
    return 1 if survivors and not options.simulate else 0


if __name__ == "__main__":
    sys.exit(main())
