"""The times at which a pipeline with a schedule runs, in UTC. Times that pass while a run is still going are left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

SLEEP_SECONDS_MAX: Final = 60.0
"""The clock is looked at again at least this often: it may be set while the process waits."""


def next_time(schedule: str, after: datetime) -> datetime:
    """The first time of a schedule after another time."""
    from cronsim import CronSim

    return next(CronSim(schedule, after.astimezone(UTC)))


def run_on_schedule(
    schedule: str,
    run: Callable[[], None],
    waits: Callable[[datetime], None],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run at each time of a schedule, until an error or Ctrl-C. `waits` gets the next time."""
    while True:
        due = next_time(schedule, now())
        waits(due)
        while (left := (due - now()).total_seconds()) > 0:
            sleep(min(left, SLEEP_SECONDS_MAX))
        run()
