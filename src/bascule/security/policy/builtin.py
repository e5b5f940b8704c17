"""The built-in model: decides by the lines of a user and its roles, so that a decision does not depend on the number of users.

It is the casbin model with the matcher `g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && (r.act == p.act || p.act == "*")`, and
`some(where (p.eft == allow))`; a property test compares them. Patterns of subjects have the wildcards of NATS instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bascule.names import subject_covers
from bascule.security.policy.lines import PolicyLine
from bascule.security.policy.resources import EVERYTHING, SUBJECT_PREFIX, typed


class BuiltinPolicy:
    """Immutable: threads may ask while another policy takes its place."""

    names_subjects = True
    """Lines on subjects are always needed, also by a policy that has none."""
    names_plain_subjects = False

    def __init__(self, lines: Iterable[PolicyLine]) -> None:
        self._grants: dict[str, list[PolicyLine]] = {}
        self._roles: dict[str, list[str]] = {}
        for line in lines:
            if line.kind == "g":
                self._roles.setdefault(line.values[0], []).append(line.values[1])
            else:
                self._grants.setdefault(line.values[0], []).append(line)

    def allows(self, name: str, resource: str, action: str) -> bool:
        """Whether a user or a role may do this; the resource has no type."""
        return self.line(name, typed(resource, action), action) is not None

    def allows_subject(self, name: str, subject: str, action: str) -> bool:
        return self.subject_line(name, subject, action) is not None

    def line(self, name: str, resource: str, action: str) -> PolicyLine | None:
        """Return a line that allows this, None without one. The resource has its type."""
        return next((line for line in self._lines(name, action) if _matches(line.values[1], resource)), None)

    def subject_line(self, name: str, subject: str, action: str) -> PolicyLine | None:
        return next((line for line in self._lines(name, action) if _covers(line.values[1], subject)), None)

    def _lines(self, name: str, action: str) -> Iterator[PolicyLine]:
        for one in (name, *self.roles_of(name)):
            for line in self._grants.get(one, ()):
                if line.values[2] in (action, EVERYTHING):
                    yield line

    def roles_of(self, name: str) -> list[str]:
        """Return the roles of a user or a role, also those of its roles."""
        found: dict[str, None] = {name: None}
        waiting = [name]
        while waiting:
            for role in self._roles.get(waiting.pop(), ()):
                if role not in found:
                    found[role] = None
                    waiting.append(role)
        return list(found)[1:]


def _matches(pattern: str, resource: str) -> bool:
    if pattern.endswith(EVERYTHING):
        return resource.startswith(pattern[:-1])
    return pattern == resource


def _covers(pattern: str, subject: str) -> bool:
    if pattern == EVERYTHING:
        return True
    return pattern.startswith(SUBJECT_PREFIX) and subject_covers(pattern.removeprefix(SUBJECT_PREFIX), subject)
