"""The questions of the other parity tests for as long as a soak lasts, from seeds that are new in each run.

A failure names its seed; `BASCULE_SOAK_SEED=<seed>` begins with it. The file `seed` in the temporary directory of the test
holds the seed at work, for the failure after which nobody is left to name it.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.parity.arrow.test_arrow_parity import agree as agree_on_columns
from tests.parity.arrow.test_arrow_parity import random_columns
from tests.parity.inputs.compare import agree_on_building, agree_on_compaction, agree_on_everything
from tests.parity.inputs.generate import any_bytes


def fuzz(seed: int) -> None:
    rng = random.Random(seed)
    data = any_bytes(rng)
    agree_on_everything(rng, data)
    agree_on_compaction(rng, data)
    agree_on_building(rng)
    agree_on_columns(rng, data, data, random_columns(rng))


@pytest.mark.soak
def test_kernels_and_twins_agree_for_a_long_time(soak_seconds: float, tmp_path: Path) -> None:
    seed = int(os.environ.get("BASCULE_SOAK_SEED", str(random.SystemRandom().randrange(2**48))))
    stop = time.monotonic() + soak_seconds
    with (tmp_path / "seed").open("wb", buffering=0) as at_work:
        while time.monotonic() < stop:
            os.pwrite(at_work.fileno(), b"%20d\n" % seed, 0)
            try:
                fuzz(seed)
            except Exception as error:
                error.add_note(f"BASCULE_SOAK_SEED={seed}")
                raise
            seed += 1
