"""`bascule acl` on three real brokers that store their policy in the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from bascule.cli.server.doctor_policies import judge
from bascule.cli.terminal.finding import OK
from bascule.client.admin.cluster import ClusterPolicy
from tests.cli.command_line import Outcome, Run
from tests.support.api_client import Api, Status, grpc, refused
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Certificate
from tests.support.cluster import LONG_TIMEOUTS
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually

SERVERS: Final = ("a", "b", "c")
DENIED: Final = "The client is not authorized to call"


class PolicedCluster:
    """Three brokers behind TLS. Clients have certificates; `root` is the administrator."""

    def __init__(self, directory: Path, nats: NatsServer) -> None:
        directory.mkdir()
        self.authority = Authority(directory)
        self.users: dict[str, Certificate] = {
            name: self.authority.issue(name) for name in ("root", "bob", "eve", "server")
        }
        self.audits = {server: directory / f"{server}.jsonl" for server in SERVERS}
        shared = {
            **LONG_TIMEOUTS,
            "clustering.namespace": directory.name,
            "clustering.raft.bootstrap.peers": list(SERVERS),
            "tls.cert": str(self.users["server"].cert),
            "tls.key": str(self.users["server"].key),
            "tls.client.auth.enabled": True,
            "tls.client.auth.ca": str(self.authority.file),
            "tls.client.authz.enabled": True,
            "security.policies.source": "cluster",
            "security.policies.admins": "root",
        }
        self.brokers = {
            server: BrokerProcess(
                directory / server,
                nats_url=nats.url,
                config={**shared, "clustering.server.id": server, "security.audit.file": str(self.audits[server])},
                seed=False,
            )
            for server in SERVERS
        }
        self._apis = ExitStack()

    def launch(self, *servers: str) -> None:
        for server in servers:
            self.brokers[server].launch()
        for server in servers:
            eventually(lambda server=server: self._serves(server), f"{server} serves")  # type: ignore[misc]

    def _serves(self, server: str) -> bool:
        broker = self.brokers[server]
        assert broker.is_running, broker.tail()
        with suppress(FileNotFoundError):
            broker.address = json.loads(broker.addresses_file.read_text())["grpc"]
            return True
        return False

    def kill(self, *servers: str) -> None:
        for server in servers:
            self.brokers[server].kill()

    def close(self) -> None:
        self._apis.close()
        self.kill(*SERVERS)

    def api(self, user: str, server: str) -> Api:
        own = self.authority.credentials(self.users[user])
        return self._apis.enter_context(closing(Api(self.brokers[server].address, own)))

    def as_user(self, call: Run, user: str, server: str, *arguments: str) -> Outcome:
        return self.bascule(call, user, server, "acl", *arguments)

    def bascule(self, call: Run, user: str, server: str, *arguments: str) -> Outcome:
        own = self.users[user]
        where = ("--server", self.brokers[server].address, "--timeout", "60s", "--tls-ca", str(self.authority.file))
        return call(*arguments, *where, "--tls-cert", str(own.cert), "--tls-key", str(own.key))

    def records(self, server: str, action: str) -> list[dict[str, Any]]:
        written = [json.loads(line) for line in self.audits[server].read_text().splitlines()]
        return [one for one in written if one["action"] == action]

    def refused_users(self, server: str, action: str) -> set[str]:
        return {one["principal"] for one in self.records(server, action) if one["result"] == "PERMISSION_DENIED"}


def test_the_doctor_compares_the_servers() -> None:
    stored, other = ClusterPolicy(("p, a, *, *",), ("root", "eve")), ClusterPolicy((), ("root",))
    good = judge({"a": stored, "b": stored}, [])
    assert (good.state, good.found) == (OK, "the cluster stores 1 line; administrators: eve, root")
    assert judge({"a": stored}, ["c", "b"]).found == "a use the policy of the cluster, b, c another one or none"
    assert judge({"b": other, "a": stored}, []).found == "servers name different administrators: a eve, root; b root"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[PolicedCluster]:
    found = PolicedCluster(tmp_path_factory.mktemp("acl") / unique_name("acl"), nats_server)
    try:
        found.launch(*SERVERS)
        eventually(lambda: controller_of(found) is not None, "there is a controller")
        yield found
    finally:
        found.close()


def controller_of(cluster: PolicedCluster) -> str | None:
    from bascule.client.connection import wire

    answer = cluster.api("root", "a").channel.unary_unary("/bascule.Cluster/Status")(b"", timeout=60)
    return wire.decode("StatusResponse", answer)["controller"] or None


def may(api: Api, method: str, **fields: Any) -> bool:
    """Whether the policy of the server allows the call."""
    try:
        getattr(api, method)(**fields)
    except grpc.RpcError as error:
        if error.code() is Status.PERMISSION_DENIED:
            return False
        raise
    return True


def test_rights_are_granted_through_any_server_and_revoked_from_running_calls(
    cluster: PolicedCluster, call: Run
) -> None:
    root = cluster.api("root", "a")
    root.CreateStream(name="orders", subject="orders", replicationFactor=3)
    leader = root.stream("orders").partitions[0].leader
    follower = next(server for server in SERVERS if server != controller_of(cluster))
    bob = {server: cluster.api("bob", server) for server in SERVERS}
    for api in bob.values():
        with refused(Status.PERMISSION_DENIED, f"{DENIED} FetchMetadata on resource *"):
            api.FetchMetadata()

    lines = ["p, bob, stream:orders, Publish", "p, bob, stream:orders, Subscribe"]
    granted = cluster.as_user(call, "root", follower, "grant", "bob", "Publish,Subscribe", "stream:orders").ok()
    assert granted.lines == [f"Granted: {line}" for line in lines]
    cluster.as_user(call, "root", follower, "grant", "role:readers", "FetchMetadata", "cluster:*").ok()
    cluster.as_user(call, "root", follower, "grant", "bob", "--role", "readers").ok()
    assert may(bob[follower], "FetchMetadata"), "the change is in force when the command ends"
    for server, api in bob.items():
        eventually(lambda api=api: may(api, "FetchMetadata"), f"{server} has applied the change")  # type: ignore[misc]
    again = cluster.as_user(call, "root", follower, "grant", "bob", "Publish", "stream:orders", "--json").ok().json
    assert again == {"changed": [], "unchanged": [lines[0]]}

    idle, kept, session = (
        bob[leader].subscribe("orders"),
        cluster.api("root", leader).subscribe("orders"),
        bob[leader].publish_async(),
    )
    session.send("orders", b"0", correlationId="0")
    assert session.next().ack.correlationId == "0"
    assert idle.next().value == kept.next().value == b"0"
    cluster.as_user(call, "root", follower, "grant", "eve", "Publish", "stream:other").ok()
    session.send("orders", b"1")
    assert idle.next().value == kept.next().value == b"1", "a grant ends nothing"

    revoked = cluster.as_user(call, "root", follower, "revoke", "bob", "--all").ok()
    assert revoked.lines == [f"Revoked: {line}" for line in ["g, bob, role:readers", *lines]]
    assert idle.end() == (Status.PERMISSION_DENIED, f"{DENIED} Subscribe on resource orders")
    with pytest.raises(grpc.RpcError, match=DENIED):
        session.take(3)
    with refused(Status.PERMISSION_DENIED, DENIED):
        bob[leader].publish("orders", b"never")
    root.publish("orders", b"2")
    assert kept.next().value == b"2"
    kept.cancel()
    none = cluster.as_user(call, "root", follower, "revoke", "bob", "Publish", "stream:orders").ok()
    assert none.out == "No change: p, bob, stream:orders, Publish was not granted\n"

    expected = [
        *(("root", line) for line in lines),
        ("root", "p, role:readers, cluster:*, FetchMetadata"),
        ("root", "g, bob, role:readers"),
        ("root", lines[0]),
        ("root", "p, eve, stream:other, Publish"),
    ]
    eventually(lambda: len(cluster.records(follower, "RevokePolicies")) == 4, "all changes are recorded")
    granted_lines = [(one["principal"], one["detail"]) for one in cluster.records(follower, "GrantPolicies")]
    assert granted_lines == expected
    assert cluster.records(follower, "ListPolicies") == [], "reading changes nothing"


def test_a_user_without_the_right_changes_and_reads_nothing(cluster: PolicedCluster, call: Run) -> None:
    cluster.as_user(call, "root", "b", "grant", "eve", "FetchMetadata", "cluster:*").ok()  # every client needs it
    before = cluster.as_user(call, "root", "b", "list").ok().lines
    for arguments, action in (
        (("grant", "eve", "*", "*"), "GrantPolicies"),
        (("revoke", "role:readers", "FetchMetadata", "cluster:*"), "RevokePolicies"),
        (("list",), "ListPolicies"),
        (("explain", "eve", "Publish", "stream:orders"), "ListPolicies"),
    ):
        cluster.as_user(call, "eve", "b", *arguments).failed(2, f"{DENIED} {action} on resource *")
        eventually(lambda action=action: "eve" in cluster.refused_users("b", action), "the refusal is recorded")  # type: ignore[misc]
    assert cluster.as_user(call, "root", "b", "list").ok().lines == before


def test_an_administrator_keeps_its_rights_whatever_is_revoked(cluster: PolicedCluster, call: Run) -> None:
    checks = {one["check"]: one for one in cluster.bascule(call, "root", "c", "doctor", "--json").json}
    assert checks["policies"]["state"] == OK and checks["policies"]["found"].endswith("administrators: root")
    cluster.as_user(call, "root", "c", "grant", "root", "*", "*").ok()
    assert "p, root, *, *" in cluster.as_user(call, "root", "c", "list").ok().lines
    cluster.as_user(call, "root", "c", "revoke", "root", "--all").ok()
    again = cluster.as_user(call, "root", "c", "revoke", "root", "*", "*").ok()
    assert again.out == "No change: p, root, *, * was not granted\n"
    listed = cluster.as_user(call, "root", "c", "list", "--json").ok().json
    assert listed["admins"] == ["root"]
    why = cluster.as_user(call, "root", "c", "explain", "root", "GrantPolicies", "cluster:*").ok()
    assert why.out == "Allowed: GrantPolicies on cluster:*, by the line `p, root, *, *`.\n"


BAD: Final[list[tuple[tuple[str, ...], str]]] = [
    (("eve", "Publsh", "stream:orders"), "actions on `stream:orders` are `*`, `CreateStream`"),
    (("eve", "Publish", "orders"), "a resource is `*`, or begins with `stream:`"),
    (("eve", "Publish", "stream:o*s"), "`*` stands at the end of a name only"),
    (("eve", "PublishToSubject", "subject:a..b"), "empty part between dots"),
    (("*", "Publish", "stream:orders"), "there is no wildcard for users"),
    (("role:", "Publish", "stream:orders"), "a role is `role:<name>`"),
    (("x" * 257, "Publish", "stream:orders"), "at most 256 bytes"),
    (("eve", "Publish", "stream:" + "x" * 1020), "at most 1024 bytes"),
    (("eve,bob", "Publish", "stream:orders"), "is not a policy"),
    (("eve", "Publish"), "it is not clear what to grant"),
    (("eve",), "it is not clear what to grant"),
    ((), "it is not clear what to grant"),
    (("eve", "--role", ""), "a role is `role:<name>`"),
]


def test_a_bad_line_is_refused_by_name_and_nothing_changes(cluster: PolicedCluster, call: Run) -> None:
    before = cluster.as_user(call, "root", "a", "list").ok().lines
    for arguments, words in BAD:
        cluster.as_user(call, "root", "a", "grant", *arguments).failed(2, words)
    assert cluster.as_user(call, "root", "a", "list").ok().lines == before


def test_a_policy_file_is_stored_and_printed_and_explained(cluster: PolicedCluster, call: Run, tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    lines = [f"p, user{number}, stream:s{number}*, Publish" for number in range(150)] + ["g, user7, role:readers"]
    file.write_text("# all users\n\n" + "\n".join(lines) + "\n")
    granted = cluster.as_user(call, "root", "a", "grant", "--file", str(file), "--json").ok().json
    assert granted == {"changed": lines, "unchanged": []}
    stored = cluster.as_user(call, "root", "b", "list").ok()
    assert set(lines) <= set(stored.lines)
    why = cluster.as_user(call, "root", "b", "explain", "user7", "Publish", "stream:s77").ok()
    assert "by the line `p, user7, stream:s7*, Publish`" in why.out
    denied = cluster.as_user(call, "root", "b", "explain", "user7", "Publish", "stream:t", "--json")
    assert (denied.code, denied.json["names"]) == (3, ["user7", "role:readers"])
    exported = tmp_path / "exported.csv"
    exported.write_text(stored.out)
    assert call("acl", "explain", "user7", "Publish", "stream:s7", "--policy", str(exported)).ok()
    cluster.as_user(call, "root", "a", "revoke", "--file", str(file)).ok()
    assert not set(lines) & set(cluster.as_user(call, "root", "b", "list").ok().lines)
    file.write_text("p, a, stream:x, Publish\np, a, x, Publish\n")
    cluster.as_user(call, "root", "a", "grant", "--file", str(file)).failed(
        2, "policy.csv, line 2", "'p, a, x, Publish'"
    )
    cluster.as_user(call, "root", "a", "grant", "eve", "--file", str(file)).failed(
        2, "`--file` has the lines of all users"
    )


def test_a_raw_call_is_bounded(cluster: PolicedCluster) -> None:
    from bascule.client.connection import wire

    channel = cluster.api("root", "a").channel
    grant = channel.unary_unary("/bascule.Cluster/GrantPolicies")
    for lines, text in (
        ([], "`lines` has 0 policies"),
        ([f"p, u{number}, stream:s, Publish" for number in range(65)], "`lines` has 65 policies"),
        (["p, eve, stream:s, Publish", "p, eve\n, stream:s, Publish"], "`lines`"),
        (['p, "eve", stream:s, Publish'], "quotes"),
        (["g, eve, readers"], "a role is `role:<name>`"),
        (["g, eve, role:a, role:b"], "is not a policy"),
        (["#"], "is not a policy"),
        ([""], "is not a policy"),
    ):
        with refused(Status.INVALID_ARGUMENT, text):
            grant(wire.encode("GrantPoliciesRequest", lines=lines), timeout=60)


def test_policies_outlive_restarts_and_a_server_without_a_quorum_does_not_use_old_ones(
    cluster: PolicedCluster, call: Run
) -> None:
    cluster.as_user(call, "root", "a", "grant", "bob", "FetchMetadata", "cluster:*").ok()
    before = cluster.as_user(call, "root", "a", "list").ok().lines
    cluster.kill(*SERVERS)
    cluster.launch("a")
    with refused(Status.UNAVAILABLE, "has not read the policies of the cluster yet"):
        cluster.api("bob", "a").FetchMetadata()
    assert cluster.api("root", "a").FetchMetadata().brokers, "an administrator needs no quorum"
    cluster.launch("b", "c")
    for server in SERVERS:
        api = cluster.api("bob", server)

        def has_read(api: Api = api) -> bool:
            try:
                return bool(api.FetchMetadata().brokers)
            except grpc.RpcError as error:
                assert error.code() is not Status.PERMISSION_DENIED
                return False

        eventually(has_read, f"{server} has read the policies")
    assert cluster.as_user(call, "root", "c", "list").ok().lines == before
