"""ListPolicies, GrantPolicies, RevokePolicies: the policy that the cluster stores. Rules: docs/internals/policies.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from bascule import limits
from bascule.metadata.core.model.ops import GrantPolicies, RevokePolicies
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.requests import CallDeadline
from bascule.net.grpc.status import Status
from bascule.operations.members import Members
from bascule.operations.switchboard import refusal
from bascule.proto import extensions_pb2 as extensions
from bascule.security.policy.lines import MalformedLine, parse_granted, split_line

_NOT_STORED: Final = (
    "the policy of this server is not stored in the cluster",
    "it is `tls.client.authz.policy` of each server; to store it in the cluster, set `security.policies.source: cluster`",
)


class PolicyCalls:
    def __init__(self, members: Members, admins: Sequence[str], put_in_force: Callable[[], None] | None) -> None:
        """`put_in_force` makes this server decide by the lines that it has applied; None if policies come from elsewhere."""
        self._members = members
        self._admins = admins
        self._put_in_force = put_in_force

    async def list_policies(
        self, _request: extensions.ListPoliciesRequest, deadline: CallDeadline
    ) -> extensions.ListPoliciesResponse:
        self._must_be_stored()
        metadata = await self._fresh(deadline)
        return extensions.ListPoliciesResponse(lines=sorted(metadata.policies), admins=self._admins)

    async def grant(
        self, request: extensions.GrantPoliciesRequest, deadline: CallDeadline
    ) -> extensions.ChangePoliciesResponse:
        put_in_force = self._must_be_stored()
        lines = _parsed(request.lines)
        before = (await self._fresh(deadline)).policies.intersection(lines)
        await self._members.submit(GrantPolicies(lines), deadline)
        put_in_force()
        return extensions.ChangePoliciesResponse(unchanged=[line for line in lines if line in before])

    async def revoke(
        self, request: extensions.RevokePoliciesRequest, deadline: CallDeadline
    ) -> extensions.ChangePoliciesResponse:
        put_in_force = self._must_be_stored()
        stored = set((await self._fresh(deadline)).policies)
        lines = _parsed(request.lines, stored)
        await self._members.submit(RevokePolicies(lines), deadline)
        put_in_force()
        return extensions.ChangePoliciesResponse(unchanged=[line for line in lines if line not in stored])

    def _must_be_stored(self) -> Callable[[], None]:
        if self._put_in_force is None:
            raise refusal(Status.FAILED_PRECONDITION, *_NOT_STORED)
        return self._put_in_force

    async def _fresh(self, deadline: CallDeadline) -> ClusterMetadata:
        return await self._members.controller.fresh_metadata(timeout=deadline.left())


def _parsed(texts: Sequence[str], stored: Collection[str] = ()) -> tuple[str, ...]:
    """Return the lines in canonical form, each once. A stored line is never refused: it can be revoked, whatever wrote it."""
    if not 1 <= len(texts) <= limits.POLICY_CHANGE_LINES_MAX:
        raise refusal(
            Status.INVALID_ARGUMENT,
            f"`lines` has {len(texts)} policies",
            f"give 1 to {limits.POLICY_CHANGE_LINES_MAX} in one call",
        )
    try:
        return tuple(dict.fromkeys(_canonical(text, stored) for text in texts))
    except MalformedLine as error:
        raise refusal(Status.INVALID_ARGUMENT, f"`lines`: {error.problem}", error.hint) from None


def _canonical(text: str, stored: Collection[str]) -> str:
    canonical = split_line(text).text
    return canonical if canonical in stored else parse_granted(text).text
