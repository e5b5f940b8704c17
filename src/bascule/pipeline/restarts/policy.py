"""The restart policy of a job. Pure: failures come in, pauses come out.

A failure that may pass, such as a broker that is down, restarts the job after a pause, which doubles with each failure in a row. Any
other failure ends the job at once, and so does one failure too many in a row. A batch that was written ends the row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bascule.errors import BasculeError, OutcomeUnknown, PipelineFailed, Unavailable

ATTEMPTS_DEFAULT: Final = 20
"""With the default pauses, 15 minutes, and the time that each attempt waits for the brokers."""
PAUSE_SECONDS_DEFAULT: Final = 1.0
PAUSE_SECONDS_MAX_DEFAULT: Final = 60.0

_LOST_PROCESS: Final = re.compile(
    r"ExecutorLostFailure|Python worker (exited unexpectedly|failed to connect back)|Connection (reset|refused)|FetchFailed|"
    r"Could not connect to|TIMEOUT|timed out"
)
"""What Spark says about a process or a connection that it has lost. Its other errors would come again."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a job is restarted without a batch in between, and after which pauses."""

    attempts_max: int = ATTEMPTS_DEFAULT
    pause_seconds: float = PAUSE_SECONDS_DEFAULT
    pause_seconds_max: float = PAUSE_SECONDS_MAX_DEFAULT

    def pause_after(self, failures: int) -> float:
        """The pause after so many failures in a row, the first one being 1."""
        doubled = self.pause_seconds * 2.0 ** min(failures - 1, 60)
        return min(doubled, max(self.pause_seconds, self.pause_seconds_max))


@dataclass(slots=True)
class FailureCount:
    """The failures of one job."""

    policy: RestartPolicy
    in_a_row: int = 0
    restarts: int = 0

    def add(self, error: BasculeError, *, has_progressed: bool) -> float | None:
        """The pause before the next attempt; None if the job ends with this error."""
        if has_progressed:
            self.in_a_row = 0
        if not is_temporary(error) or self.in_a_row >= self.policy.attempts_max:
            return None
        self.in_a_row += 1
        self.restarts += 1
        return self.policy.pause_after(self.in_a_row)


def is_temporary(error: BasculeError) -> bool:
    """Whether the same job may succeed later, without anyone's doing."""
    if isinstance(error, PipelineFailed):
        return _LOST_PROCESS.search(error.message) is not None
    return isinstance(error, (Unavailable, OutcomeUnknown))
