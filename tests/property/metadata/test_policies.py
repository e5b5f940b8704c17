"""Grants and revocations leave the lines that a set would have, on every server and after every snapshot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bascule import limits
from bascule.metadata.core.model.ops import GrantPolicies, Op, RevokePolicies, decode_op, encode_op
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.policy_ops import POLICIES_BYTES_MAX, POLICY_LINES_MAX
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from bascule.metadata.core.state import ClusterMetadata, PoliciesChanged

LINE = st.sampled_from([f"p, user{number}, stream:sé*, Publish" for number in range(6)])
LINES = st.lists(LINE, min_size=1, max_size=4).map(tuple)
CHANGES = st.lists(st.builds(GrantPolicies, LINES) | st.builds(RevokePolicies, LINES), max_size=30)


@given(CHANGES, st.integers(0, 30))
def test_lines_are_what_was_granted_and_not_revoked(changes: list[Op], restored_at: int) -> None:
    state, expected = ClusterMetadata(), set[str]()
    for index, op in enumerate(changes, start=1):
        before = set(expected)
        assert isinstance(op, GrantPolicies | RevokePolicies)
        expected = expected | set(op.lines) if isinstance(op, GrantPolicies) else expected - set(op.lines)
        outcome = state.apply(index, decode_op(encode_op(op)))
        assert outcome == (() if expected == before else (PoliciesChanged(),)), "a repeated change is none"
        assert state.policies == expected
        if index == restored_at:
            state = decode_snapshot(encode_snapshot(state))
            assert state.policies == expected


def test_an_op_of_the_largest_size_is_a_proposal() -> None:
    line = "é" * (limits.POLICY_LINE_BYTES_MAX // 2)
    op = GrantPolicies(tuple(f"{number:02}{line[1:]}" for number in range(limits.POLICY_CHANGE_LINES_MAX)))
    assert not isinstance(ClusterMetadata().apply(1, op), Refusal)
    assert len(encode_op(op)) < limits.RAFT_PROPOSAL_BYTES_MAX


def test_the_number_and_the_size_of_policies_are_bounded_and_a_refused_grant_changes_nothing() -> None:
    for width, most in ((20, POLICY_LINES_MAX), (1000, POLICIES_BYTES_MAX // 1000)):
        state, index = ClusterMetadata(), 0
        while True:
            index += 1
            lines = tuple(
                f"{index:06}-{number:02}".ljust(width, "x") for number in range(limits.POLICY_CHANGE_LINES_MAX)
            )
            before = set(state.policies)
            outcome = state.apply(index, GrantPolicies(lines))
            if isinstance(outcome, Refusal):
                break
        assert outcome.code == "FAILED_PRECONDITION" and "revoke" in outcome.text
        assert state.policies == before
        assert most - limits.POLICY_CHANGE_LINES_MAX < len(state.policies) <= most
        assert state.apply(index + 1, GrantPolicies(tuple(sorted(before)[:3]))) == (), "what is there is granted again"
        assert state.apply(index + 2, RevokePolicies(lines)) == ()
