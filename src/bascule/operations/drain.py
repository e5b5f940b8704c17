"""A server gives away what it leads: consumer groups, partitions, the controller's role. In good order, while it still serves.

To stop, it also tells the cluster that it goes, so that nobody waits for it. What has nobody to go to stays: a partition with one
replica is led by its server or by nobody.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bascule.broker.api.calls import Deadline
from bascule.errors import BasculeError
from bascule.metadata.core.model.ops import ChangeCoordinator, Op, StopServer

if TYPE_CHECKING:
    from bascule.broker.services import Services
    from bascule.metadata.controller import Controller

SURVEY_SECONDS: Final = 1.0
TRANSFER_SECONDS: Final = 2.0
"""For one heir of the controller's role: an election takes less."""

ATTEMPTS_MAX: Final = 10
RETRY_SECONDS: Final = 0.5

LOOK_SECONDS: Final = 0.1
LEADERLESS_SECONDS_MAX: Final = 2.0
"""Longer than an election takes."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Handover:
    """What became of a server's leaderships."""

    moved: int = 0
    kept: list[tuple[str, int, str]] = field(default_factory=list)
    """Stream, partition, why."""


async def leave(services: Services, *, timeout: float) -> None:
    """Before a stop: everything is handed over that can be, within the time there is. Never raises for what could not.

    Given up when nobody can be found who decides: the other servers are stopping as well.
    """
    working = asyncio.create_task(_leave(services, Deadline.after(timeout)))
    try:
        silent = 0.0
        while not working.done():
            await asyncio.wait({working}, timeout=LOOK_SECONDS)
            silent = silent + LOOK_SECONDS if services.controller.leader is None else 0.0
            if silent >= LEADERLESS_SECONDS_MAX:
                _logger.warning("there is no metadata leader: what was not handed over stays")
                return
        working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _leave(services: Services, deadline: Deadline) -> None:
    others = await other_servers(services, deadline)
    if not others:
        return
    found = await hand_over_everything(services, others, deadline)
    if found.moved or found.kept:
        _logger.info("handed over %d partitions, kept %d", found.moved, len(found.kept))
    # A follower that still fetched would be taken back into the in-sync sets that it leaves now.
    await services.partitions.stop_following()
    await _submit(services.controller, StopServer(services.server_id), deadline)
    await hand_over_controller(services.controller, others, deadline)


async def other_servers(services: Services, deadline: Deadline) -> list[str]:
    """Those that answer, without those that are leaving themselves unless there are no others."""
    members = services.controller.members
    if members == [services.server_id]:
        return []
    timeout = min(SURVEY_SECONDS, deadline.left())
    servers = await services.directory.servers(members, timeout=timeout, age_max_seconds=0)
    found = [server.id for server in servers if server.id != services.server_id]
    return services.controller.metadata.staying(found)


async def hand_over_everything(services: Services, others: list[str], deadline: Deadline) -> Handover:
    groups = asyncio.create_task(_hand_over_groups(services, others, deadline))
    found = await _hand_over_partitions(services, deadline)
    await groups
    for stream, number, why in found.kept:
        _logger.info("%s/%d stays here: %s", stream, number, why)
    return found


async def _hand_over_partitions(services: Services, deadline: Deadline) -> Handover:
    """All that others have too. Tried again while that helps: a successor may have been late for a moment."""
    found = Handover()
    for attempt in range(ATTEMPTS_MAX):
        report = await services.partitions.hand_over_all(timeout=deadline.left())
        found.moved += len(report.moved)
        found.kept = list(report.kept)
        if (
            not any(_has_other_replicas(services, stream, number) for stream, number, _ in found.kept)
            or deadline.left() == 0
        ):
            break
        if attempt + 1 < ATTEMPTS_MAX:
            await asyncio.sleep(min(RETRY_SECONDS, deadline.left()))
    return found


def _has_other_replicas(services: Services, stream: str, number: int) -> bool:
    partition = services.controller.metadata.find(stream, number)
    return partition is not None and partition.leader == services.server_id and len(partition.replicas) > 1


async def _hand_over_groups(services: Services, others: list[str], deadline: Deadline) -> None:
    """Members are told by the next answer they get, and need not find out by waiting."""
    own = [group for group in services.controller.metadata.groups.values() if group.coordinator == services.server_id]
    ops = [ChangeCoordinator(group.id, group.coordinator, group.epoch, tuple(others)) for group in own]
    await asyncio.gather(*(_submit(services.controller, op, deadline) for op in ops))


async def hand_over_controller(controller: Controller, others: list[str], deadline: Deadline) -> bool:
    """Have another voter lead the metadata group, the one that lacks least first. True when this server does not lead it."""
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


async def _submit(controller: Controller, op: Op, deadline: Deadline) -> None:
    if deadline.left() == 0:
        return
    try:
        refusal = await controller.submit(op, timeout=deadline.left())
        if refusal is not None:
            _logger.info("%s was refused: %s", type(op).__name__, refusal.text)
    except BasculeError as error:
        _logger.warning("%s was not done: %s", type(op).__name__, error.message)
