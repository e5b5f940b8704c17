"""Record batches that end where the readable memory ends, made into columns: who reads one byte too far dies here.

    python -X faulthandler -m tests.parity.guards.guard_arrow <seed> <inputs>

prints the seed of every input before it is used, so that the last line names the one that killed the process.
"""

from __future__ import annotations

import random
import sys

from tests.parity.arrow.test_arrow_parity import agree, random_columns
from tests.parity.guards.guard_pages import ROOM, Guarded
from tests.parity.inputs.generate import any_bytes


def main(arguments: list[str]) -> None:
    guarded = Guarded()
    first, count = map(int, arguments)
    for seed in range(first, first + count):
        print(seed, flush=True)
        rng = random.Random(seed)
        data = any_bytes(rng)
        columns = random_columns(rng)
        if len(data) <= ROOM:
            for place in (guarded.at_end, guarded.at_start):
                agree(random.Random(seed), data, place(data), columns)


if __name__ == "__main__":
    main(sys.argv[1:])
