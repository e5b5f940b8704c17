"""The members of the group, and their changes: one server at a time, first as a learner.

Majorities of two memberships that differ by one voter overlap, so a change needs no joint configuration (thesis §4.1). A server uses
the latest membership in its log, committed or not; if that entry is truncated, the previous membership holds again.
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
        """All members, sorted, so that the order of messages does not depend on hashing."""
        return sorted(self.voters | self.learners)

    def is_quorum(self, servers: Iterable[str]) -> bool:
        """Return whether the voters among `servers` are a majority. Learners do not count."""
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
    """Return the membership after the change."""
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
    """The membership at every index of the log, stored as the indexes where it changed."""

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
        raise AssertionError(f"the membership at {index} is compacted")

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
