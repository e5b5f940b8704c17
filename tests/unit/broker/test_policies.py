"""How a broker follows the policy of its cluster, and what it answers without one."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.broker.api.policies import PolicyCalls
from bascule.broker.policies import ClusterPolicies
from bascule.config.sections.listener import Tls
from bascule.config.sections.security import PolicySource, Security
from bascule.errors import Unavailable
from bascule.metadata.core.model.ops import GrantPolicies, RevokePolicies
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.requests import CallDeadline
from bascule.net.grpc.server import Peer
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import extensions_pb2 as extensions
from bascule.security.authorization import Authorizer
from bascule.security.running_calls import RunningCalls

BOB = Peer("a:1", "bob")
LINES = ("p, bob, stream:orders, Subscribe", "p, bob, stream:other, Subscribe")


class Server:
    """A controller that applies ops at once; its quorum answers when a test lets it."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()
        self.feed = MetadataFeed()
        self.has_quorum = False
        security = Security(policies_source=PolicySource.CLUSTER, policies_admins=("root",))
        self.authorizer = Authorizer.from_config(Tls(client_authz_enabled=True), security)
        self.running = RunningCalls(self.authorizer)
        self.policies = ClusterPolicies(cast(Any, self), self.feed, self.authorizer, self.running, ("root",))

    async def fresh_metadata(self) -> ClusterMetadata:
        if not self.has_quorum:
            raise Unavailable("no quorum")
        return self.metadata

    def apply(self, op: GrantPolicies | RevokePolicies) -> None:
        index = self.metadata.applied_index + 1
        outcome = self.metadata.apply(index, op)
        assert isinstance(outcome, tuple)
        if outcome:
            self.feed.publish(index, outcome)

    def restore(self, data: bytes) -> None:
        self.metadata = decode_snapshot(data)
        self.feed.reload()

    def may(self, stream: str) -> bool:
        return self.authorizer.allows(BOB, stream, "Subscribe")

    async def start(self) -> None:
        self.has_quorum = True
        self.policies.start()
        await self.policies.known(timeout=60)


def test_changes_are_in_force_after_the_ops_that_are_applied_together() -> None:
    async def scenario() -> None:
        server = Server()
        await server.start()
        server.apply(GrantPolicies(LINES[:1]))
        server.apply(GrantPolicies(LINES[1:]))
        before = server.authorizer.generation
        await asyncio.sleep(0)
        assert (server.may("orders"), server.may("other"), server.authorizer.generation) == (True, True, before + 1)
        ended: list[str] = []
        for stream in ("orders", "other"):
            server.running.begin(BOB, stream, "Subscribe", ended.append)
        server.apply(RevokePolicies(LINES[:1]))
        server.policies.put_in_force()
        assert [text.split()[-1] for text in ended] == ["orders"]
        before = server.authorizer.generation
        await asyncio.sleep(0)
        assert server.authorizer.generation == before, "nothing has changed since"
        server.restore(encode_snapshot(ClusterMetadata()))
        await asyncio.sleep(0)
        assert [text.split()[-1] for text in ended] == ["orders", "other"], "a snapshot may revoke, too"
        await server.policies.stop()

    asyncio.run(scenario())


def test_lines_of_a_snapshot_do_not_count_before_a_quorum_has_answered() -> None:
    async def scenario() -> None:
        server = Server()
        server.apply(GrantPolicies(LINES))
        server.policies.start()
        await server.policies.known(timeout=0.05)
        server.policies.put_in_force()
        assert not server.may("orders")
        with pytest.raises(Unavailable):
            server.authorizer.require(BOB, "orders", "Subscribe")
        server.apply(RevokePolicies(LINES[:1]))
        server.has_quorum = True
        await server.policies.known(timeout=60)
        assert (server.may("orders"), server.may("other")) == (False, True)

    asyncio.run(scenario())


def test_a_line_that_this_version_does_not_know_grants_nothing_and_hides_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        server = Server()
        server.apply(GrantPolicies((*LINES, "deny, bob, stream:orders, Subscribe", "p, eve, lake:x, Read")))
        with caplog.at_level(logging.ERROR):
            await server.start()
        assert server.may("orders")
        assert caplog.text.count("grants nothing on this server") == 2

    asyncio.run(scenario())


def calls_of(metadata: ClusterMetadata, *, is_stored: bool = True) -> PolicyCalls:
    async def fresh(*, timeout: float) -> ClusterMetadata:
        assert timeout > 0
        return metadata

    async def submit(op: Any, _deadline: CallDeadline) -> None:
        metadata.apply(metadata.applied_index + 1, op)

    members: Any = SimpleNamespace(submit=submit, controller=SimpleNamespace(fresh_metadata=fresh))
    return PolicyCalls(members, ("root",), (lambda: None) if is_stored else None)


NOW = CallDeadline(None)


def test_a_server_with_a_policy_file_refuses_the_calls() -> None:
    calls = calls_of(ClusterMetadata(), is_stored=False)
    for call in (
        calls.list_policies(extensions.ListPoliciesRequest(), NOW),
        calls.grant(extensions.GrantPoliciesRequest(lines=LINES), NOW),
        calls.revoke(extensions.RevokePoliciesRequest(lines=LINES), NOW),
    ):
        with pytest.raises(GrpcError, match="not stored in the cluster") as refused:
            asyncio.run(cast(Any, call))
        assert refused.value.status is Status.FAILED_PRECONDITION


def test_calls_store_lines_in_one_form_and_name_those_that_changed_nothing() -> None:
    async def scenario() -> None:
        metadata = ClusterMetadata()
        calls = calls_of(metadata)
        granted = await calls.grant(
            extensions.GrantPoliciesRequest(lines=["p,bob ,stream:orders,  Subscribe", *LINES]), NOW
        )
        assert (list(granted.unchanged), metadata.policies) == ([], set(LINES))
        again = await calls.grant(extensions.GrantPoliciesRequest(lines=LINES[:1]), NOW)
        assert list(again.unchanged) == [LINES[0]]
        listed = await calls.list_policies(extensions.ListPoliciesRequest(), NOW)
        assert (list(listed.lines), list(listed.admins)) == (sorted(LINES), ["root"])
        revoked = await calls.revoke(extensions.RevokePoliciesRequest(lines=["p, eve, *, *", LINES[0]]), NOW)
        assert (list(revoked.unchanged), metadata.policies) == (["p, eve, *, *"], {LINES[1]})

    asyncio.run(scenario())


def test_a_line_of_another_version_can_be_revoked() -> None:
    async def scenario() -> None:
        metadata = ClusterMetadata()
        calls = calls_of(metadata)
        metadata.apply(1, GrantPolicies(("p, eve, lake:x, Read",)))
        with pytest.raises(GrpcError, match="has the resource 'lake:y'"):
            await calls.revoke(extensions.RevokePoliciesRequest(lines=["p, eve, lake:y, Read"]), NOW)
        await calls.revoke(extensions.RevokePoliciesRequest(lines=["p, eve, lake:x, Read"]), NOW)
        assert metadata.policies == set()

    asyncio.run(scenario())
