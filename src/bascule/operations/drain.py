"""Hands the leaderships of a server over while it still serves: consumer groups, partitions, the role of controller.

Before a stop the server also announces its stop to the cluster, so that no other server waits for it. A partition with one replica
stays: no other server could lead it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError
from bascule.metadata.core.model.ops import ChangeCoordinator, Op, StopServer
from bascule.metadata.requests import CallDeadline

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.metadata.server_directory import ServerDirectory
    from bascule.partition.registry import Partitions

SURVEY_SECONDS: Final = 1.0
TRANSFER_SECONDS: Final = 2.0
"""Time limit for one candidate to become controller: an election takes less."""

ATTEMPTS_MAX: Final = 10
RETRY_SECONDS: Final = 0.5

LOOK_SECONDS: Final = 0.1
LEADERLESS_SECONDS_MAX: Final = 2.0
"""Longer than an election takes."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Handover:
    """The result of handing leaderships over."""

    moved: int = 0
    kept: list[tuple[str, int, str]] = field(default_factory=list)
    """Stream, partition, reason."""


class Drain:
    def __init__(self, controller: Controller, directory: ServerDirectory, partitions: Partitions) -> None:
        self._controller = controller
        self._directory = directory
        self._partitions = partitions

    @property
    def _server_id(self) -> str:
        return self._controller.server_id

    async def leave(self, *, timeout: float) -> None:
        """Before a stop: hand over as much as the timeout allows. Failures are logged, not raised.

        Gives up when no controller is elected: then the other servers are stopping as well.
        """
        working = asyncio.create_task(self._leave(CallDeadline.after(timeout)))
        try:
            silent = 0.0
            while not working.done():
                await asyncio.wait({working}, timeout=LOOK_SECONDS)
                silent = silent + LOOK_SECONDS if self._controller.leader is None else 0.0
                if silent >= LEADERLESS_SECONDS_MAX:
                    _logger.warning("there is no metadata leader: the remaining leaderships are not handed over")
                    return
            working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _leave(self, deadline: CallDeadline) -> None:
        others = await self.other_servers(deadline)
        if not others:
            return
        found = await self.hand_over_everything(others, deadline)
        if found.moved or found.kept:
            _logger.info("handed over %d partitions, kept %d", found.moved, len(found.kept))
        # A follower that still fetched would be taken back into the in-sync sets that it leaves now.
        await self._partitions.stop_following()
        await _submit(self._controller, StopServer(self._server_id), deadline)
        await hand_over_controller(self._controller, others, deadline)

    async def other_servers(self, deadline: CallDeadline) -> list[str]:
        """The other members that answer; those that are leaving only when there are no others."""
        members = self._controller.members
        if members == [self._server_id]:
            return []
        timeout = min(SURVEY_SECONDS, deadline.left())
        servers = await self._directory.servers(members, timeout=timeout, age_max_seconds=0)
        found = [server.id for server in servers if server.id != self._server_id]
        return self._controller.metadata.staying(found)

    async def hand_over_everything(self, others: list[str], deadline: CallDeadline) -> Handover:
        groups = asyncio.create_task(self._hand_over_groups(others, deadline))
        found = await self._hand_over_partitions(deadline)
        await groups
        for stream, number, why in found.kept:
            _logger.info("%s/%d stays here: %s", stream, number, why)
        return found

    async def _hand_over_partitions(self, deadline: CallDeadline) -> Handover:
        """All partitions that have other replicas. Retried, because a successor may be late for a moment."""
        found = Handover()
        for attempt in range(ATTEMPTS_MAX):
            report = await self._partitions.hand_over_all(timeout=deadline.left())
            found.moved += len(report.moved)
            found.kept = list(report.kept)
            can_move = any(self._has_other_replicas(stream, number) for stream, number, _ in found.kept)
            if not can_move or deadline.left() == 0:
                break
            if attempt + 1 < ATTEMPTS_MAX:
                await asyncio.sleep(min(RETRY_SECONDS, deadline.left()))
        return found

    def _has_other_replicas(self, stream: str, number: int) -> bool:
        partition = self._controller.metadata.find(stream, number)
        return partition is not None and partition.leader == self._server_id and len(partition.replicas) > 1

    async def _hand_over_groups(self, others: list[str], deadline: CallDeadline) -> None:
        """Members learn the new coordinator with their next answer and need not wait for a timeout."""
        groups = self._controller.metadata.groups.values()
        own = [group for group in groups if group.coordinator == self._server_id]
        ops = [ChangeCoordinator(group.id, group.coordinator, group.epoch, tuple(others)) for group in own]
        await asyncio.gather(*(_submit(self._controller, op, deadline) for op in ops))


async def hand_over_controller(controller: Controller, others: list[str], deadline: CallDeadline) -> bool:
    """Have another voter lead the metadata group, the most up-to-date one first. True when this server does not lead it."""
    node = controller.driver.node
    heirs = [server for server in others if server in node.membership.voters]
    for heir in sorted(heirs, key=lambda server: -(node.match_index(server) or 0)):
        if not controller.is_leader or deadline.left() == 0:
            break
        try:
            await controller.driver.transfer_leadership(heir, timeout=min(TRANSFER_SECONDS, deadline.left()))
            _logger.info("%s is controller now", heir)
        except BasculeError as error:
            _logger.warning("%s did not become controller: %s", heir, error.message)
    return not controller.is_leader


async def _submit(controller: Controller, op: Op, deadline: CallDeadline) -> None:
    if deadline.left() == 0:
        return
    try:
        refusal = await controller.submit(op, timeout=deadline.left())
        if refusal is not None:
            _logger.info("%s was refused: %s", type(op).__name__, refusal.text)
    except BasculeError as error:
        _logger.warning("%s was not done: %s", type(op).__name__, error.message)
