"""Time and CPU of a piece of work. CPU is what counts here: on a shared machine wall time says more about the neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    cpu_seconds: float


def cost_of(work: Callable[[], object]) -> Cost:
    """Wall time and CPU time of all threads of this process, system calls included."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - started, time.process_time() - cpu)


def best_of(times: int, work: Callable[[], object]) -> Cost:
    """The cheapest of several runs: noise only ever adds."""
    return min((cost_of(work) for _ in range(times)), key=lambda cost: cost.cpu_seconds)
