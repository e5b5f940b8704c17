"""The built-in model of policies: types, roles, prefixes and wildcards, and why a decision is as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.errors import InvalidConfig
from bascule.net.grpc.server import Peer
from bascule.security.authorization import Authorizer, explain, read_policy

POLICY = """\
p, root, *, *
p, shop, stream:orders, Publish
p, role:readers, stream:orders*, Subscribe
p, role:readers, cluster:*, FetchMetadata
p, role:readers, cursor:orders*, *
p, role:readers, group:billing, *
p, shop, subject:orders.>, PublishToSubject
p, clerk, subject:notes.*, PublishToSubject
p, auditor, cluster:*, ReadAudit
p, all-streams, stream:*, *
g, billing, role:readers
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy"
    file.write_text(POLICY)
    return file


@pytest.mark.parametrize(
    ("user", "resource", "action", "expected"),
    [
        ("root", "anything", "DeleteStream", True),
        ("root", "*", "Drain", True),
        ("shop", "orders", "Publish", True),
        ("shop", "orders-eu", "Publish", False),
        ("shop", "orders", "Subscribe", False),
        ("billing", "orders-eu", "Subscribe", True),
        ("billing", "order", "Subscribe", False),
        ("billing", "orders", "SetCursor", True),
        ("billing", "orders", "JoinConsumerGroup", False),
        ("billing", "billing", "JoinConsumerGroup", True),
        ("billing", "billing", "Subscribe", False),
        ("billing", "*", "FetchMetadata", True),
        ("billing", "*", "Drain", False),
        ("role:readers", "orders", "Subscribe", False),
        ("stream:orders", "orders", "Subscribe", False),
        ("", "orders", "Subscribe", False),
        ("auditor", "__audit", "Subscribe", True),
        ("auditor", "__audit", "FetchPartitionMetadata", True),
        ("auditor", "orders", "Subscribe", False),
        ("all-streams", "__cursors", "Subscribe", True),
        ("all-streams", "__audit", "FetchPartitionMetadata", True),
        ("all-streams", "__audit", "Subscribe", False),
        ("root", "__audit", "Subscribe", True),
        ("root", "__audit", "Publish", False),
        ("root", "__audit", "CreateStream", False),
        ("root", "__audit", "DeleteStream", False),
        ("root", "__audit", "PauseStream", False),
        ("root", "__audit", "SetStreamReadonly", False),
    ],
)
def test_a_policy_grants_what_it_says_and_nothing_else(
    policy: Path, user: str, resource: str, action: str, expected: bool
) -> None:
    authorizer = Authorizer.of_files(None, policy)
    assert authorizer.is_enabled
    assert authorizer.allows(Peer("a:1", user), resource, action) is expected


def test_roles_of_a_token_and_subjects_count(policy: Path) -> None:
    authorizer = Authorizer.of_files(None, policy)
    assert authorizer.allows(Peer("a:1", "eve", ("readers",)), "orders", "Subscribe")
    assert not authorizer.allows(Peer("a:1", "eve", ("writers",)), "orders", "Subscribe")
    assert authorizer.allows_subject(Peer("a:1", "shop"), "orders.eu", "PublishToSubject")
    assert authorizer.allows_subject(Peer("a:1", "root"), "x", "PublishToSubject")
    assert not authorizer.allows_subject(Peer("a:1", "shop"), "orders", "PublishToSubject")
    assert authorizer.allows_subject(Peer("a:1", "clerk"), "notes.a", "PublishToSubject")
    assert not authorizer.allows_subject(Peer("a:1", "clerk"), "notes.a.b", "PublishToSubject"), "`*` is one part"
    assert authorizer.names_subjects
    assert not authorizer.allows_subject(Peer("a:1", "billing"), "orders.eu", "PublishToSubject")


@pytest.mark.parametrize("resource", ["orders", "streams:x", "stream:", "stream:a*b", ":x"])
def test_a_resource_without_a_type_is_refused(tmp_path: Path, resource: str) -> None:
    file = tmp_path / "policy"
    file.write_text(f"p, root, *, *\np, shop, {resource}, Publish\n")
    with pytest.raises(InvalidConfig, match="line 2"):
        Authorizer.of_files(None, file)


def test_a_decision_is_explained_by_its_line(policy: Path) -> None:
    def why(user: str, action: str, resource: str, *roles: str) -> str | None:
        return explain(read_policy(None, policy), user, roles, action, resource).line

    assert why("shop", "Publish", "stream:orders") == "p, shop, stream:orders, Publish"
    assert why("billing", "Subscribe", "stream:orders-eu") == "p, role:readers, stream:orders*, Subscribe"
    assert why("eve", "Subscribe", "stream:orders", "readers") == "p, role:readers, stream:orders*, Subscribe"
    assert why("shop", "PublishToSubject", "subject:orders.eu") == "p, shop, subject:orders.>, PublishToSubject"
    assert why("root", "PublishToSubject", "subject:x") == "p, root, *, *"
    assert why("shop", "PublishToSubject", "subject:x") is None
    denied = explain(read_policy(None, policy), "billing", ("x",), "Drain", "cluster:*")
    assert (denied.is_allowed, denied.names) == (False, ("billing", "role:x", "role:readers"))


@pytest.mark.parametrize("action", ["Publish", "DeleteStream", "PauseStream", "SetStreamReadonly"])
def test_the_audit_stream_cannot_be_written_without_a_policy_either(action: str) -> None:
    authorizer = Authorizer.disabled()
    assert not authorizer.allows(None, "__audit", action)
    assert authorizer.allows(None, "__audit", "Subscribe")
    assert authorizer.allows(None, "orders", action)
