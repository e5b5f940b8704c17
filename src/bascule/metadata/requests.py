"""Ops on behalf of a client: its deadline, and refusals in the statuses and words that clients know."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.errors import OutcomeUnknown, Unavailable
from bascule.net.grpc.status import GrpcError, Status

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.metadata.core.model.ops import Op
    from bascule.metadata.core.model.refusal import Refusal
    from bascule.metadata.server_directory import ServerDirectory, ServerInfo

SECONDS_DEFAULT: Final = 5.0
"""Time limit of a call without a deadline."""

LEADER_POLL_SECONDS: Final = 0.01
PLACEMENT_SURVEY_SECONDS: Final = 1.0
PLACEMENT_AGE_SECONDS_MAX: Final = 2.0
"""Maximum age of a server's last answer when it is given a replica or a group; with an older answer it is asked first."""

MARGIN: Final = 0.1
MARGIN_SECONDS_MAX: Final = 0.1
"""Part of a client's deadline that is kept for the answer to travel: a tenth, at most this."""

NO_LEADER: Final = "no known metadata leader"
"""Clients compare this text."""


@dataclass(frozen=True, slots=True)
class CallDeadline:
    """The time that a call may still take."""

    at: float | None
    """On the monotonic clock; None when the client set none."""

    @classmethod
    def after(cls, seconds: float | None) -> CallDeadline:
        if seconds is None:
            return cls(None)
        return cls(time.monotonic() + seconds - min(MARGIN * seconds, MARGIN_SECONDS_MAX))

    def left(self, default: float = SECONDS_DEFAULT) -> float:
        """Seconds; `default` when the client set no deadline."""
        return default if self.at is None else max(0.0, self.at - time.monotonic())


def refused(refusal: Refusal) -> GrpcError:
    return GrpcError(Status[refusal.code], refusal.text)


async def submit(controller: Controller, op: Op, deadline: CallDeadline) -> None:
    """Apply the op. Raises GrpcError, with the reason, when it was not applied."""
    await leader_known(controller, deadline)
    try:
        refusal = await controller.submit(op, timeout=deadline.left())
    except (Unavailable, OutcomeUnknown) as error:
        raise GrpcError(Status.INTERNAL, error.message) from None
    if refusal is not None:
        raise refused(refusal)


async def leader_known(controller: Controller, deadline: CallDeadline) -> None:
    """Wait for an election until the deadline; a call without a deadline fails at once when there is no leader."""
    while controller.leader is None:
        if deadline.at is None or deadline.left() == 0:
            raise GrpcError(Status.INTERNAL, NO_LEADER)
        await asyncio.sleep(LEADER_POLL_SECONDS)


async def reachable(controller: Controller, directory: ServerDirectory, deadline: CallDeadline) -> list[ServerInfo]:
    """Members that answer now and can be given replicas. Uses at most half of the time that is left; the op needs the rest."""
    timeout = min(PLACEMENT_SURVEY_SECONDS, deadline.left() / 2)
    return await directory.servers(controller.members, timeout=timeout, age_max_seconds=PLACEMENT_AGE_SECONDS_MAX)
