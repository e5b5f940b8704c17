"""Counts reports of failed leaders and coordinators. They are in the memory of the controller only and are lost when it changes.

A report counts if its sender is a follower (or member) and it names the present leader (or coordinator) and epoch. When enough of them
have arrived within the timeout, the answer is the op to propose, and the count starts again: the next election needs new reports.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from bascule.metadata.core.model.ops import ChangeCoordinator, ChangeLeader
from bascule.metadata.core.model.refusal import Refusal, precondition
from bascule.metadata.core.state import ClusterMetadata


@dataclass(frozen=True, slots=True)
class Noted:
    """The report counts; more are needed."""

    reporters: int
    needed: int


@dataclass(slots=True)
class _Tally:
    reporters: set[str] = field(default_factory=set)
    expires_ns: int = 0


class _Tallies:
    """Reporters by failure; an entry expires when its reporter does not repeat it."""

    def __init__(self, timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self._tallies: dict[Hashable, _Tally] = {}

    def _note(self, what: Hashable, reporter: str, needed: int, now_ns: int) -> Noted | None:
        """Count the report. Returns None, and clears the count, when there are enough."""
        tally = self._tallies.setdefault(what, _Tally())
        if tally.expires_ns <= now_ns:
            tally.reporters.clear()
        tally.reporters.add(reporter)
        tally.expires_ns = now_ns + self._timeout_ns
        if len(tally.reporters) < needed:
            return Noted(len(tally.reporters), needed)
        del self._tallies[what]
        return None

    def expire(self, now_ns: int) -> None:
        self._tallies = {what: tally for what, tally in self._tallies.items() if tally.expires_ns > now_ns}

    def clear(self) -> None:
        """Forget all reports: this server is no longer the controller."""
        self._tallies.clear()

    def __len__(self) -> int:
        return len(self._tallies)


class LeaderFailures(_Tallies):
    """Reports of in-sync followers that their leader is silent."""

    def report(
        self,
        state: ClusterMetadata,
        stream: str,
        partition: int,
        reporter: str,
        leader: str,
        leader_epoch: int,
        now_ns: int,
    ) -> Noted | ChangeLeader | Refusal:
        found = state.streams.get(stream)
        known = None if found is None else found.partition(partition)
        if found is None or known is None:
            return precondition(f"No such partition [stream={stream}, partition={partition}]")
        if (known.leader, known.leader_epoch) != (leader, leader_epoch):
            return precondition(
                f"Leader generation mismatch, current leader: {known.leader} epoch: {known.leader_epoch}, "
                f"got leader: {leader} epoch: {leader_epoch}"
            )
        if reporter not in known.in_sync_replicas or reporter == leader:
            return precondition(f"{reporter} is not an in-sync follower of the partition")
        needed = (len(known.in_sync_replicas) - 1) // 2 + 1
        # The stream's id and the epoch are part of the key: reports about an earlier leader never count for this one.
        noted = self._note((found.id, partition, leader_epoch), reporter, needed, now_ns)
        return noted or ChangeLeader(stream, partition, leader, leader_epoch)


class CoordinatorFailures(_Tallies):
    """Reports of group members that their coordinator is silent."""

    def report(
        self,
        state: ClusterMetadata,
        group: str,
        consumer: str,
        coordinator: str,
        epoch: int,
        brokers: tuple[str, ...],
        now_ns: int,
    ) -> Noted | ChangeCoordinator | Refusal:
        known = state.groups.get(group)
        if known is None:
            return precondition(f"No such consumer group [group={group}]")
        if (known.coordinator, known.epoch) != (coordinator, epoch):
            return precondition(
                f"Coordinator mismatch, current coordinator: {known.coordinator} epoch: {known.epoch}, "
                f"got coordinator: {coordinator} epoch: {epoch}"
            )
        if consumer not in known.members:
            return precondition(f"{consumer} is not a member of group {group}")
        noted = self._note((group, epoch, coordinator), consumer, len(known.members) // 2 + 1, now_ns)
        return noted or ChangeCoordinator(group, coordinator, epoch, brokers)
