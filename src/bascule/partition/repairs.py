"""Repairs of replicas that cannot be relied on: they leave the in-sync set and copy their leader's log again.

A leader whose log is damaged, or whose disk fails, steps down for another in-sync replica; if it is the only one, it continues with the
readable part. A log is removed only after this server has left the in-sync set: an empty replica must not be elected. A damaged log,
and one with committed records that the leader lacks, is moved aside; a log whose records the cluster has deleted is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import LeaveIsr
from bascule.metadata.core.model.streams import Partition
from bascule.partition.core.codec import PartitionKey
from bascule.partition.core.follower_events import Flaw
from bascule.partition.replication.following import Following
from bascule.partition.replication.leading import Leading

_logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 30.0
"""Delay before the last in-sync replica tries to leave again: another one may have joined by then."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The state of a log when it was opened."""

    flaw: str = ""
    """Records that this server has lost; empty if there are none."""
    is_damaged: bool = False
    """Some of its bytes cannot be read."""


@dataclass(frozen=True, slots=True)
class _Finding:
    flaw: Flaw
    leader_epoch: int
    """The leader with whose log this one was compared; 0 if the log is damaged, which holds for every leader."""
    replica_epoch: int
    """The replica epoch in which the log was used. A leader may be about to propose the replica in this epoch, because of this log."""

    def holds(self, partition: Partition) -> bool:
        return self.leader_epoch in (0, partition.leader_epoch)


class Repairs:
    def __init__(self, server_id: str, controller: Controller, restart: Callable[[str, int], None]) -> None:
        """`restart` stops the replica, removes its log if that cannot be used, and starts it again."""
        self._server_id = server_id
        self._controller = controller
        self._restart = restart
        self._tasks: dict[PartitionKey, asyncio.Task[None]] = {}
        self._findings: dict[PartitionKey, _Finding] = {}

    def on_broken(self, role: Leading | Following, reason: str, flaw: Flaw | None) -> None:
        """Start the repair. `flaw` is None for a leader that steps down and keeps its log."""
        known = self._findings.get(role.key)
        if flaw is not None and (flaw is Flaw.DAMAGED or known is None or known.flaw is not Flaw.DAMAGED):
            leader_epoch = 0 if flaw is Flaw.DAMAGED else role.core.leader_epoch
            self._findings[role.key] = _Finding(flaw, leader_epoch, self._replica_epoch(role.stream, role.key))
        if role.key in self._tasks:
            return
        level = logging.WARNING if flaw is Flaw.OUTDATED else logging.ERROR
        _logger.log(level, "%s: this replica cannot be relied on: %s", role.name, reason)
        self._tasks[role.key] = asyncio.create_task(self._leave(role.stream, role.key), name="repair")

    def leaves_first(self, stream: str, key: PartitionKey, partition: Partition, log: Opened) -> bool:
        """Whether this replica has to leave the in-sync set before it starts, because of the state of its log.

        Otherwise it could be elected, or lead, without the records that it has lost. The last in-sync replica starts as it is.
        """
        reason = log.flaw
        if not reason or not self._can_leave(partition):
            return False
        if key not in self._tasks:
            level = logging.ERROR if log.is_damaged else logging.WARNING
            _logger.log(
                level, "%s/%d: this replica leaves the in-sync set before it starts: %s", stream, key[1], reason
            )
            if log.is_damaged:
                self._findings[key] = _Finding(Flaw.DAMAGED, 0, self._replica_epoch(stream, key))
            self._tasks[key] = asyncio.create_task(self._leave(stream, key, is_idle=True), name="repair")
        return True

    def _can_leave(self, partition: Partition) -> bool:
        return self._server_id in partition.in_sync_replicas and len(partition.in_sync_replicas) > 1

    def flaw_of(self, key: PartitionKey, partition: Partition) -> Flaw | None:
        """The flaw for which the log has to be removed now; None if there is none, or this replica has not left the in-sync set."""
        finding = self._findings.get(key)
        if finding is None or not finding.holds(partition) or not self._has_left_since(finding, partition):
            return None
        return finding.flaw

    def _has_left_since(self, finding: _Finding, partition: Partition) -> bool:
        replica_epoch = self._controller.metadata.replica_epoch(partition, self._server_id)
        return replica_epoch > finding.replica_epoch and self._server_id not in partition.in_sync_replicas

    def _replica_epoch(self, stream: str, key: PartitionKey) -> int:
        partition = self._known(stream, key)
        return 0 if partition is None else self._controller.metadata.replica_epoch(partition, self._server_id)

    def was_removed(self, key: PartitionKey) -> None:
        self._findings.pop(key, None)

    async def _leave(self, stream: str, key: PartitionKey, *, is_idle: bool = False) -> None:
        """`is_idle`: the replica has not been started, and starts after this."""
        try:
            while (partition := self._known(stream, key)) is not None:
                finding = self._findings.get(key)
                if finding is not None and not finding.holds(partition):
                    del self._findings[key]  # another leader leads, whose follower compares the logs again
                    return
                if is_idle and not self._can_leave(partition):
                    self._restart(stream, key[1])
                    return
                if partition.in_sync_replicas == [self._server_id]:
                    _logger.error(
                        "%s/%d: no other replica is in sync: this one continues with the readable part", stream, key[1]
                    )
                    await asyncio.sleep(LAST_RETRY_SECONDS)
                    if key not in self._findings:
                        return
                elif await self._has_left(stream, key, partition.leader_epoch):
                    self._restart(stream, key[1])
                    return
                else:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._tasks.pop(key, None)

    def _known(self, stream: str, key: PartitionKey) -> Partition | None:
        """The partition, while this server has a replica of it."""
        found = self._controller.metadata.streams.get(stream)
        partition = None if found is None or found.id != key[0] else found.partition(key[1])
        return partition if partition is not None and self._server_id in partition.replicas else None

    async def _has_left(self, stream: str, key: PartitionKey, leader_epoch: int) -> bool:
        number = key[1]
        try:
            refusal = await self._controller.submit(LeaveIsr(stream, number, self._server_id, leader_epoch))
        except BasculeError as error:
            _logger.warning("%s/%d: cannot leave the in-sync replicas yet: %s", stream, number, error.message)
            return False
        if refusal is not None:
            _logger.info("%s/%d: cannot leave the in-sync replicas yet: %s", stream, number, refusal.text)
            return False
        # A flaw that was found meanwhile, in the new replica epoch, needs another one.
        finding, partition = self._findings.get(key), self._known(stream, key)
        return finding is None or partition is None or self._has_left_since(finding, partition)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
