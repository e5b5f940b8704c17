"""The same questions for as long as `BASCULE_SOAK_SECONDS` says (60), from a seed that is new in each run and printed."""

from __future__ import annotations

import os
import random
import time

import pytest

from .compare import agree_on_compaction, agree_on_everything
from .generate import any_bytes

SECONDS = float(os.environ.get("BASCULE_SOAK_SECONDS", "60"))


@pytest.mark.soak
def test_kernels_and_twins_agree_for_a_long_time() -> None:
    seed = int(os.environ.get("BASCULE_SOAK_SEED", str(random.SystemRandom().randrange(2**48))))
    stop = time.monotonic() + SECONDS
    inputs = 0
    while time.monotonic() < stop:
        print(f"BASCULE_SOAK_SEED={seed + inputs}")
        rng = random.Random(seed + inputs)
        data = any_bytes(rng)
        agree_on_everything(rng, data)
        agree_on_compaction(rng, data)
        inputs += 1
    assert inputs > 0
