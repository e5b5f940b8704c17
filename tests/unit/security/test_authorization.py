"""What a policy grants, and what becomes of one that cannot be read."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from bascule.config.sections.listener import Tls
from bascule.config.sections.security import PolicySource, Security
from bascule.errors import InvalidConfig, PermissionDenied, Unavailable, grpc_status
from bascule.net.grpc.server import Peer
from bascule.security.authorization import Authorizer
from bascule.security.policy.builtin import BuiltinPolicy
from bascule.security.policy.lines import parse_line

MODEL = """\
[request_definition]
r = sub, obj, act

[policy_definition]
p = sub, obj, act

[policy_effect]
e = some(where (p.eft == allow))

[matchers]
m = r.sub == p.sub && r.obj == p.obj && r.act == p.act
"""

POLICY = """\
# who may do what
p, alice, orders, CreateStream
p, alice, *, FetchMetadata

p, bob, orders.eu, PublishToSubject
"""


@dataclass(frozen=True)
class Client:
    common_name: str | None


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    model, policy = tmp_path / "model.conf", tmp_path / "policy.csv"
    model.write_text(MODEL)
    policy.write_text(POLICY)
    return model, policy


@pytest.fixture
def authorizer(files: tuple[Path, Path]) -> Authorizer:
    return Authorizer.of_files(*files)


@pytest.mark.parametrize(
    ("client", "resource", "action", "expected"),
    [
        ("alice", "orders", "CreateStream", True),
        ("alice", "orders", "DeleteStream", False),
        ("alice", "other", "CreateStream", False),
        ("alice", "*", "FetchMetadata", True),
        ("bob", "*", "FetchMetadata", False),
        ("bob", "orders.eu", "PublishToSubject", True),
        ("mallory", "orders", "CreateStream", False),
        ("", "orders", "CreateStream", False),
        (None, "orders", "CreateStream", False),
    ],
)
def test_what_no_line_grants_is_denied(
    authorizer: Authorizer, client: str | None, resource: str, action: str, expected: bool
) -> None:
    for _ in range(2):  # the second answer is a remembered one
        assert authorizer.allows(Client(client), resource, action) is expected


def test_a_star_is_a_resource_and_no_wildcard(authorizer: Authorizer) -> None:
    assert not authorizer.allows(Client("alice"), "orders", "FetchMetadata")


def test_a_client_without_a_certificate_may_do_nothing(authorizer: Authorizer) -> None:
    with pytest.raises(PermissionDenied):
        authorizer.require(None, "orders", "CreateStream")


def test_a_denial_is_said_in_the_words_that_clients_know(authorizer: Authorizer) -> None:
    authorizer.require(Client("alice"), "orders", "CreateStream")
    with pytest.raises(PermissionDenied) as denied:
        authorizer.require(Client("bob"), "orders", "CreateStream")
    assert denied.value.message == "The client is not authorized to call CreateStream on resource orders"
    assert grpc_status(denied.value) == "PERMISSION_DENIED"


def test_without_a_policy_everybody_may_do_everything() -> None:
    authorizer = Authorizer.disabled()
    assert not authorizer.is_enabled
    authorizer.require(None, "orders", "DeleteStream")
    assert authorizer.reload()


def test_the_configuration_says_whether_there_is_a_policy(files: tuple[Path, Path]) -> None:
    named = Tls(client_authz_model=files[0], client_authz_policy=files[1])
    assert not Authorizer.from_config(named, Security()).is_enabled
    on = Tls(client_authz_enabled=True, client_authz_model=files[0], client_authz_policy=files[1])
    assert Authorizer.from_config(on, Security()).is_enabled


def test_a_reload_puts_the_new_policy_in_force(authorizer: Authorizer, files: tuple[Path, Path]) -> None:
    assert authorizer.allows(Client("alice"), "orders", "CreateStream")
    files[1].write_text("p, carol, orders, CreateStream\n")
    assert authorizer.reload()
    assert authorizer.generation == 1
    assert authorizer.allows(Client("carol"), "orders", "CreateStream")
    assert not authorizer.allows(Client("alice"), "orders", "CreateStream")


BAD_POLICIES = [
    b"p, carol, orders\n",
    b"garbage\n",
    b"\xff\xfe\x00",
    b"p, alice, orders, CreateStream\nq, a, b, c\n",
    b"p,,,\n",
]


@pytest.mark.parametrize("bad", BAD_POLICIES)
def test_a_bad_policy_stops_the_start_and_names_the_file(files: tuple[Path, Path], bad: bytes) -> None:
    files[1].write_bytes(bad)
    with pytest.raises(InvalidConfig, match=r"policy\.csv"):
        Authorizer.of_files(*files)


@pytest.mark.parametrize("bad", BAD_POLICIES)
def test_a_reload_of_a_bad_policy_keeps_the_old_one_and_says_so(
    authorizer: Authorizer, files: tuple[Path, Path], bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files[1].write_bytes(bad)
    with caplog.at_level(logging.ERROR):
        assert not authorizer.reload()
    assert "was not changed" in caplog.text
    assert authorizer.generation == 0
    assert authorizer.allows(Client("alice"), "orders", "CreateStream")


@pytest.mark.parametrize("bad", ["", "nonsense", "[request_definition]\nr = sub, obj, act\n"])
def test_a_bad_model_stops_the_start_and_names_the_file(files: tuple[Path, Path], bad: str) -> None:
    files[0].write_text(bad)
    with pytest.raises(InvalidConfig, match=r"model\.conf"):
        Authorizer.of_files(*files)


def test_a_missing_policy_is_named(files: tuple[Path, Path]) -> None:
    files[1].unlink()
    with pytest.raises(InvalidConfig, match=r"policy\.csv"):
        Authorizer.of_files(*files)


def test_roles_of_a_model_that_has_them_are_taken(files: tuple[Path, Path]) -> None:
    files[0].write_text(
        MODEL.replace("[policy_effect]", "[role_definition]\ng = _, _\n\n[policy_effect]").replace(
            "r.sub == p.sub", "g(r.sub, p.sub)"
        )
    )
    files[1].write_text("p, writers, orders, Publish\ng, alice, writers\n")
    assert Authorizer.of_files(*files).allows(Client("alice"), "orders", "Publish")


PREFIXES = MODEL.replace("r.obj == p.obj", "keyMatch(r.obj, p.obj)")


@pytest.mark.parametrize("model", [PREFIXES, None])
def test_a_stream_whose_name_looks_like_a_subject_grants_no_subject(
    files: tuple[Path, Path], model: str | None
) -> None:
    files[0].write_text(PREFIXES)
    files[1].write_text("p, alice, s*, CreateStream\n" if model else "p, alice, stream:s*, CreateStream\n")
    authorizer = Authorizer.of_files(files[0] if model else None, files[1])
    assert authorizer.allows(Client("alice"), "subject:orders", "CreateStream"), "a stream may have this name"
    assert not authorizer.allows_subject(Client("alice"), "orders", "CreateStream")


def test_until_the_policy_of_the_cluster_is_known_only_administrators_have_rights() -> None:
    refused: list[object] = []
    tls = Tls(client_authz_enabled=True)
    security = Security(policies_source=PolicySource.CLUSTER, policies_admins=("root", "role:ops"))
    authorizer = Authorizer.from_config(tls, security, None, lambda *call: refused.append(call))
    bob, root = Client("bob"), Client("root")
    assert authorizer.is_enabled
    authorizer.require(root, "orders", "Publish")
    authorizer.require(Peer("a:1", "eve", ("ops",)), "*", "GrantPolicies")
    for require in (authorizer.require, authorizer.require_subject):
        with pytest.raises(Unavailable, match="has not read the policies"):
            require(bob, "orders", "Publish")
    assert refused == [], "it is not known yet whether the call is allowed"
    authorizer.use(BuiltinPolicy([parse_line("p, bob, stream:orders, Publish")]))
    authorizer.require(bob, "orders", "Publish")
    with pytest.raises(PermissionDenied):
        authorizer.require(bob, "other", "Publish")
    assert len(refused) == 1
    assert authorizer.reload(), "there is no file"


def test_a_decision_by_an_old_policy_is_not_remembered_for_the_new_one() -> None:
    class Slow(BuiltinPolicy):
        """Decides after another policy has taken its place."""

        def allows(self, name: str, resource: str, action: str) -> bool:
            decision = super().allows(name, resource, action)
            slow.use(BuiltinPolicy([]))
            return decision

    slow = Authorizer(Slow([parse_line("p, bob, stream:orders, Publish")]))
    assert slow.allows(Client("bob"), "orders", "Publish")
    assert not slow.allows(Client("bob"), "orders", "Publish")
