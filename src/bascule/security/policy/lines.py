"""The lines of policies: one parser for files, calls and the command line.

p, <user or role:name>, <resource>, <action>        g, <user or role:name>, role:<name>        # comment
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from bascule import limits
from bascule.names import subject_fault
from bascule.security.policy.resources import EVERYTHING, ROLE_PREFIX, SUBJECT_PREFIX, action_fault, resource_fault

BUILTIN_FIELDS: Final = {"p": 3, "g": 2}
"""Number of values in each kind of line of the built-in model."""

_HINT: Final = "lines are `p, <user>, <resource>, <action>` and `g, <user>, role:<name>`"


class MalformedLine(ValueError):
    """A line that is not part of a policy."""

    def __init__(self, problem: str, hint: str = _HINT) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


class PolicyLine(NamedTuple):
    kind: str
    values: tuple[str, ...]

    @property
    def text(self) -> str:
        """The line in its canonical form."""
        return ", ".join((self.kind, *self.values))


def split_line(text: str) -> PolicyLine:
    """Return the line without a check of its values. Raises MalformedLine for a text that has no fields."""
    try:
        kind, *values = (value.strip() for value in next(csv.reader([text])))
    except (csv.Error, StopIteration, ValueError):
        raise MalformedLine(f"{_shown(text)} is not a policy") from None
    return PolicyLine(kind, tuple(values))


def parse_line(text: str) -> PolicyLine:
    """Return the line of a policy for the built-in model. Raises MalformedLine."""
    line = split_line(text)
    if BUILTIN_FIELDS.get(line.kind) != len(line.values) or not all(line.values):
        raise MalformedLine(f"{_shown(text)} is not a policy")
    if line.kind == "p":
        resource = line.values[1]
        if (fault := resource_fault(resource)) is not None:
            raise MalformedLine(f"{_shown(text)} has the resource {_shown(resource)}", fault)
        if resource.startswith(SUBJECT_PREFIX) and (fault := subject_fault(resource.removeprefix(SUBJECT_PREFIX))):
            raise MalformedLine(
                f"{_shown(text)} has the resource {_shown(resource)}: {fault}", "write `subject:orders.>`"
            )
    return line


def is_blank(text: str) -> bool:
    """Whether a line of a file has no policy: it is empty, or a comment."""
    stripped = text.strip()
    return not stripped or stripped.startswith("#")


def parse_file(text: str) -> list[PolicyLine]:
    """Return the lines of a file for the built-in model. Raises MalformedLine with the number of the first bad line."""
    return [_numbered(number, one) for number, one in enumerate(text.splitlines(), start=1) if not is_blank(one)]


def _numbered(number: int, text: str) -> PolicyLine:
    try:
        return parse_line(text)
    except MalformedLine as error:
        raise MalformedLine(f"line {number}: {error.problem}", error.hint) from None


def check_shapes(text: str, fields: Mapping[str, int], *, has_roles: bool) -> None:
    """Raise MalformedLine for a line of a file that does not fit a casbin model.

    casbin ignores lines that it does not know, and fails on short ones at the first request.
    """
    for number, one in enumerate(text.splitlines(), start=1):
        if is_blank(one):
            continue
        kind, values = split_line(one)
        is_policy = fields.get(kind) == len(values) and all(values)
        if not is_policy and not (has_roles and kind.startswith("g") and len(values) >= 2):
            raise MalformedLine(f"line {number}: {_shown(one)} is not a policy")


# ── lines that the cluster stores ────────────────────────────────────────────────────────────────


def parse_granted(text: str) -> PolicyLine:
    """Return a line that the cluster may store. Raises MalformedLine. Stricter than for a file: here an error stops no server."""
    line = parse_line(text)
    for value in line.values:
        if not value.isprintable() or any(char in value for char in ',"'):
            raise MalformedLine(
                f"{_shown(text)} has the value {_shown(value)}", "commas, quotes and line ends are not allowed"
            )
    user, last = line.values[0], line.values[-1]
    _check_name(text, user)
    if line.kind == "g":
        if not last.startswith(ROLE_PREFIX):
            raise MalformedLine(f"{_shown(text)} has the role {_shown(last)}", f"a role is `{ROLE_PREFIX}<name>`")
        _check_name(text, last)
    elif (fault := action_fault(line.values[1], last)) is not None:
        raise MalformedLine(f"{_shown(text)} has the action {_shown(last)}", fault)
    if (size := len(line.text.encode())) > limits.POLICY_LINE_BYTES_MAX:
        raise MalformedLine(
            f"{_shown(text)} has {size} bytes", f"a line has at most {limits.POLICY_LINE_BYTES_MAX} bytes"
        )
    return line


def _check_name(text: str, name: str) -> None:
    if name == EVERYTHING:
        raise MalformedLine(
            f"{_shown(text)} has the user `*`", "there is no wildcard for users: grant to a role, and put users into it"
        )
    bare = name.removeprefix(ROLE_PREFIX)
    if not bare or bare.startswith(ROLE_PREFIX):
        raise MalformedLine(f"{_shown(text)} has the name {_shown(name)}", f"a role is `{ROLE_PREFIX}<name>`")
    if len(bare.encode()) > limits.USER_NAME_BYTES_MAX:
        raise MalformedLine(
            f"{_shown(text)} has a name of {len(bare.encode())} bytes",
            f"a user or a role has at most {limits.USER_NAME_BYTES_MAX} bytes",
        )


def administrators(names: Iterable[str]) -> list[PolicyLine]:
    """Return the lines of users that may do everything."""
    return [PolicyLine("p", (name, EVERYTHING, EVERYTHING)) for name in names]


def _shown(text: str) -> str:
    shown = text.strip()
    return repr(shown if len(shown) <= 200 else shown[:200] + "…")
