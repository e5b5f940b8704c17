"""Which messages are sent again. It is decided here and nowhere else, by what the failure says about the message.

| Failure | The message | Sent again |
|---|---|---|
| Unavailable | is not stored | with `not_stored` |
| DiskFull | is not stored | with `unknown`: there may be space again before the message's deadline |
| OutcomeUnknown | may be stored | with `unknown`, unless it expects an offset: the second copy would be refused |
| any other | was refused | never |
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from bascule.errors import BasculeError, DiskFull, OutcomeUnknown, Unavailable


@dataclass(frozen=True, slots=True)
class ResendRule:
    not_stored: bool = True
    unknown: bool = False
    try_seconds: float = inf
    """How long one attempt waits for its ack. The message's own deadline always counts too."""

    def resends(self, error: BasculeError, expected_offset: int = -1) -> bool:
        if isinstance(error, Unavailable):
            return self.not_stored
        if isinstance(error, DiskFull):
            return self.unknown
        return self.unknown and isinstance(error, OutcomeUnknown) and expected_offset < 0


NEVER = ResendRule(not_stored=False)
