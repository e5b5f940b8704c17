"""Grants on NATS subjects: the lines `p, <user>, subject:<pattern>, <action>` of a policy.

A pattern has the wildcards of NATS: `*` is one part, `>` the rest. A grant covers a subject if every message of the subject is one of
the pattern, so `orders.*` covers neither `orders.eu.new` nor `orders.>`.

The matcher of a casbin model compares resources as it likes, often by prefix. Here it never sees a pattern: each pattern has a token
instead, and a line on all resources, `*`, stays what it is. So a grant on streams `s*` is none on subjects, and the matcher still
decides about users, roles and actions.
"""

from __future__ import annotations

from typing import Any, Final

from bascule.errors import InvalidConfig
from bascule.names import subject_covers, subject_fault
from bascule.security.policy.resources import EVERYTHING, SUBJECT_PREFIX

_ANY: Final = "subject-any"


class SubjectGrants:
    def __init__(self, enforcer: Any, policy: Any) -> None:
        """`enforcer` has the policy's model and no lines yet; `policy` is the model with all lines. Raises InvalidConfig."""
        self._enforcer = enforcer
        self._tokens: dict[str, str] = {}
        """Pattern → token."""
        for kind, assertion in policy.get("p", {}).items():
            if f"{kind}_obj" in assertion.tokens:
                place = list(assertion.tokens).index(f"{kind}_obj")
                for line in assertion.policy:
                    self._add(kind, list(line), place)
        for kind, assertion in policy.get("g", {}).items():
            for line in assertion.policy:
                enforcer.add_named_grouping_policy(kind, list(line))
        self.is_empty = not self._tokens

    def _add(self, kind: str, line: list[str], place: int) -> None:
        resource = line[place]
        if resource.startswith(SUBJECT_PREFIX):
            pattern = resource.removeprefix(SUBJECT_PREFIX)
            if (fault := subject_fault(pattern)) is not None:
                raise InvalidConfig(f"the policy has a line on `{resource}`: {fault}", hint="write `subject:orders.>`")
            if "deny" in line[place:]:
                raise InvalidConfig(f"the policy denies `{resource}`", hint="lines on subjects can only allow")
            line[place] = self._tokens.setdefault(pattern, f"subject-{len(self._tokens):06}")
        elif resource != EVERYTHING:
            return
        self._enforcer.add_named_policy(kind, line)

    def grant_of(self, user: str, subject: str, action: str) -> list[str] | None:
        """Return the line that allows this, None without one."""
        patterns = {token: pattern for pattern, token in self._tokens.items() if subject_covers(pattern, subject)}
        for token in [*patterns, _ANY]:
            line = self._enforcer.enforce_ex(user, token, action)[1]
            if line:
                return [SUBJECT_PREFIX + patterns[part] if part in patterns else part for part in line]
        return None

    def allows(self, user: str, subject: str, action: str) -> bool:
        found = [token for pattern, token in self._tokens.items() if subject_covers(pattern, subject)]
        return any(self._enforcer.enforce(user, token, action) for token in [*found, _ANY])
