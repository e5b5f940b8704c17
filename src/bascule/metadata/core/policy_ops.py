"""The ops that grant and revoke lines of the policy. Rules: docs/internals/policies.md.

The state stores lines as texts and does not know their meaning: a server parses a line before it proposes it, and again when it uses
it. These checks never change, because all servers apply an op with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bascule import limits
from bascule.metadata.core.model import ops
from bascule.metadata.core.model.changes import PoliciesChanged
from bascule.metadata.core.model.contents import Contents, Outcome
from bascule.metadata.core.model.refusal import Refusal, invalid, precondition

POLICY_LINES_MAX: Final = 10_000
"""Lines of policies that the cluster stores; then it refuses grants."""
POLICIES_BYTES_MAX: Final = 1 << 20
"""Bytes of all these lines; then it refuses grants."""


def grant_policies(contents: Contents, _index: int, op: ops.GrantPolicies) -> Outcome:
    """Add the lines; all of them, or none. Lines that are there already stay."""
    if (fault := _fault(op.lines)) is not None:
        return fault
    added = set(op.lines) - contents.policies
    if len(contents.policies) + len(added) > POLICY_LINES_MAX:
        return precondition(
            f"the cluster stores {len(contents.policies)} policies, and {len(added)} more would exceed {POLICY_LINES_MAX}: "
            "revoke some, or grant to roles"
        )
    if _size(contents.policies) + _size(added) > POLICIES_BYTES_MAX:
        return precondition(f"the policies of the cluster would exceed {POLICIES_BYTES_MAX} bytes: revoke some")
    if not added:
        return ()
    contents.policies |= added
    return (PoliciesChanged(),)


def revoke_policies(contents: Contents, _index: int, op: ops.RevokePolicies) -> Outcome:
    """Remove the lines. Lines that are not there change nothing."""
    if (fault := _fault(op.lines)) is not None:
        return fault
    if contents.policies.isdisjoint(op.lines):
        return ()
    contents.policies -= set(op.lines)
    return (PoliciesChanged(),)


def _fault(lines: Sequence[str]) -> Refusal | None:
    if not 1 <= len(lines) <= limits.POLICY_CHANGE_LINES_MAX:
        return invalid(f"a change of policies has {len(lines)} lines: give 1 to {limits.POLICY_CHANGE_LINES_MAX}")
    for line in lines:
        if not line or not _is_text(line):
            return invalid("a policy is empty, or is not text")
        if len(line.encode()) > limits.POLICY_LINE_BYTES_MAX:
            return invalid(
                f"a policy has {len(line.encode())} bytes: at most {limits.POLICY_LINE_BYTES_MAX} are allowed"
            )
    return None


def _is_text(line: str) -> bool:
    """Whether the line can be encoded: JSON can have half of a surrogate pair."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _size(lines: set[str]) -> int:
    return sum(len(line.encode()) for line in lines)
