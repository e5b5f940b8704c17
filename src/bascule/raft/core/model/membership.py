"""Who belongs to the group, and how that may change: one server at a time, learner first.

Two majorities that differ by one voter overlap, so a single change needs no joint configuration (thesis §4.1). A server uses the
latest membership in its log, committed or not; when that entry is cut from the log, the one before it holds again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftMembership:
    voters: frozenset[str] = frozenset()
    learners: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        assert not self.voters & self.learners, "a server votes or learns"

    def __contains__(self, server: str) -> bool:
        return server in self.voters or server in self.learners

    @property
    def members(self) -> list[str]:
        """Sorted: the order of messages must not depend on how strings happen to hash."""
        return sorted(self.voters | self.learners)

    def is_quorum(self, servers: Iterable[str]) -> bool:
        """Whether those among `servers` that vote are a majority. Learners count for nothing."""
        return 2 * len(self.voters.intersection(servers)) > len(self.voters)


# ── changes ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AddLearner:
    server: str


@dataclass(frozen=True, slots=True)
class PromoteLearner:
    server: str


@dataclass(frozen=True, slots=True)
class RemoveServer:
    server: str


MembershipChange = AddLearner | PromoteLearner | RemoveServer


def changed(membership: RaftMembership, change: MembershipChange) -> RaftMembership:
    """The membership after the change; the same one when there is nothing to do."""
    server, voters, learners = change.server, membership.voters, membership.learners
    match change:
        case AddLearner():
            return membership if server in voters else RaftMembership(voters, learners | {server})
        case PromoteLearner():
            return RaftMembership(voters | {server}, learners - {server}) if server in learners else membership
        case RemoveServer():
            return RaftMembership(voters - {server}, learners - {server})


# ── the memberships of a log ─────────────────────────────────────────────────────────────────────


class MembershipHistory:
    """The membership at every index of the log, as the few indexes where it changed."""

    __slots__ = ("_changes", "latest")

    def __init__(self, index: int, membership: RaftMembership) -> None:
        self._changes = [(index, membership)]
        self.latest = membership

    @property
    def latest_index(self) -> int:
        return self._changes[-1][0]

    def at(self, index: int) -> RaftMembership:
        for start, membership in reversed(self._changes):
            if start <= index:
                return membership
        raise AssertionError(f"the membership at {index} is compacted away")

    def append(self, index: int, membership: RaftMembership) -> None:
        assert index > self.latest_index
        self._changes.append((index, membership))
        self.latest = membership

    def truncate_from(self, index: int) -> None:
        while self._changes[-1][0] >= index:
            self._changes.pop()
        self.latest = self._changes[-1][1]

    def compact_to(self, index: int) -> None:
        base = self.at(index)
        self._changes = [(index, base), *(change for change in self._changes if change[0] > index)]
