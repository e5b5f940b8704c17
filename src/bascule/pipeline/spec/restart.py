"""`restart`: what happens when a running pipeline loses a broker or an executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from bascule.config.values.duration import MINUTE_NS, SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import Duration, Integer
from bascule.pipeline.restarts.policy import ATTEMPTS_DEFAULT, RestartPolicy
from bascule.pipeline.spec.document import KeyGroup

ATTEMPTS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RestartSpec(KeyGroup):
    """Restarts"""

    short: ClassVar = "attempts"

    attempts: int = setting(
        "attempts",
        Integer(minimum=0, maximum=ATTEMPTS_MAX),
        ATTEMPTS_DEFAULT,
        meaning="How many times in a row the pipeline is restarted after a failure that may pass, such as a broker that is down; 0 for "
        "never. A batch that is written begins the row anew.",
        consequence="A failure that would come again, such as lost data or a wrong step, ends the pipeline at once.",
    )
    pause_ns: int = setting(
        "pause",
        Duration(minimum_ns=1),
        SECOND_NS,
        meaning="The pause before the first restart; it doubles with each one in a row.",
    )
    pause_max_ns: int = setting("pause_max", Duration(minimum_ns=1), MINUTE_NS, meaning="The longest pause.")

    @property
    def policy(self) -> RestartPolicy:
        return RestartPolicy(self.attempts, self.pause_ns / SECOND_NS, self.pause_max_ns / SECOND_NS)
