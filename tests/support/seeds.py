"""Cases that are drawn from a seed. One that fails names it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable


def try_seeds(case: Callable[[int], object], seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            case(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def try_new_seeds(case: Callable[[int], object], seconds: float) -> None:
    """Others in every run."""
    end = time.monotonic() + seconds
    fresh = itertools.count(time.time_ns())
    try_seeds(case, itertools.takewhile(lambda _: time.monotonic() < end, fresh))
