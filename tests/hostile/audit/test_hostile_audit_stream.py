"""The stream `__audit` of real brokers: no client can write it, few can read it, and its chains survive kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bascule.names import AUDIT_STREAM
from bascule.security.audit.records import canonical, parse_record
from tests.cli.command_line import Outcome, run, start
from tests.support.api_client import Api, Status, grpc, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.cluster import Cluster
from tests.support.guarded_broker import PREFIX_MODEL, Policed
from tests.support.monitoring import scrape
from tests.support.nats_client import NatsClient
from tests.support.waiting import eventually

SECRET: Final = "a cluster secret of the tests"
STREAM: Final = {"cluster.secret": SECRET, "security.audit.stream.enabled": True}
LINES: Final = [
    "admin, *, *",
    "reader, *, Subscribe",
    "reader, *, FetchMetadata",
    "auditor, *, ReadAudit",
    "auditor, *, FetchMetadata",
]


def found_in(source: Api | Cluster, **wanted: str) -> list[dict[str, Any]]:
    """The records of the stream with these fields; of a cluster, those of the present leader."""
    try:
        api = source.api(source.leader_of(AUDIT_STREAM)) if isinstance(source, Cluster) else source
        messages = api.read(AUDIT_STREAM)
    except grpc.RpcError:
        return []
    records = [parse_record(message.value) or {} for message in messages]
    return [one for one in records if all(one.get(name) == value for name, value in wanted.items())]


def wait(source: Api | Cluster, count: int = 1, **wanted: str) -> list[dict[str, Any]]:
    def enough() -> list[dict[str, Any]] | None:
        found = found_in(source, **wanted)
        return found if len(found) >= count else None

    return eventually(enough, f"the stream has {count} records {wanted}")


# ── one broker with a policy ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def policed(start_broker: StartBroker, tmp_path: Path) -> Policed:
    return Policed(start_broker, tmp_path / "policed", PREFIX_MODEL, LINES, STREAM)


def test_no_policy_allows_a_client_to_write_or_change_the_stream(policed: Policed) -> None:
    admin, subject = policed.admin_api, f"{policed.broker.config['clustering.namespace']}.audit"
    wait(admin, action="StartServer")
    for call, fields in (
        ("DeleteStream", {"name": AUDIT_STREAM}),
        ("PauseStream", {"name": AUDIT_STREAM}),
        ("SetStreamReadonly", {"name": AUDIT_STREAM, "readonly": True}),
        ("Publish", {"stream": AUDIT_STREAM, "value": b"forged", "ackPolicy": "LEADER"}),
    ):
        with refused(Status.PERMISSION_DENIED):
            getattr(admin, call)(**fields)
        assert wait(admin, action=call, result="PERMISSION_DENIED")[0]["principal"] == "admin"
    session = admin.publish_async()
    session.send(AUDIT_STREAM, b"forged")
    assert "not authorized" in session.next().asyncError.message
    session.cancel()
    with refused(Status.INVALID_ARGUMENT, "reserved"):
        admin.CreateStream(name=AUDIT_STREAM, subject="elsewhere")
    with refused(Status.INVALID_ARGUMENT, "belongs to the servers"):
        admin.CreateStream(name="tap", subject=subject)
    with refused(Status.INVALID_ARGUMENT, "belongs to the servers"):
        admin.PublishToSubject(subject=subject, value=b"forged")
    admin.CreateStream(name="own", subject="own")
    with refused(Status.INVALID_ARGUMENT, "belongs to the servers"):
        admin.publish("own", b"x", ackInbox=subject)
    wait(admin, action="CreateStream", resource="own", result="OK")
    assert b"forged" not in [message.value for message in admin.read(AUDIT_STREAM)]


def test_reading_the_stream_is_a_right_of_its_own_and_makes_no_records(policed: Policed) -> None:
    wait(policed.admin_api, action="StartServer")
    auditor, reader = policed.api("auditor"), policed.api("reader")
    following = auditor.subscribe(AUDIT_STREAM, startPosition="EARLIEST")
    following.next()
    before = len(auditor.read(AUDIT_STREAM))
    for _ in range(30):
        auditor.read(AUDIT_STREAM)
    assert len(auditor.read(AUDIT_STREAM)) == before
    for _ in range(100):
        with refused(Status.PERMISSION_DENIED):
            reader.read(AUDIT_STREAM)
    policed.admin_api.CreateStream(name="last", subject="last")
    wait(auditor, action="CreateStream", resource="last")
    records = found_in(auditor, principal="reader", action="Subscribe", result="PERMISSION_DENIED")
    assert 20 <= len(records) <= 40  # at most two windows
    following.cancel()


def test_a_stop_is_in_the_stream_and_the_next_run_follows_it(policed: Policed, tmp_path: Path) -> None:
    wait(policed.admin_api, action="StartServer")
    policed.broker.stop()
    pending = (policed.broker.data / "audit.pending").read_text().splitlines()
    assert len(pending) == 1, "a stop is published before partitions stop"
    policed.broker.launch()
    again = eventually(policed._ready, "the broker serves again")
    wait(again, 2, action="StartServer")
    assert [one["action"] for one in found_in(again)] == ["StartServer", "StopServer", "StartServer"]
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    auditor = policed.authority.issue("auditor")
    connection = ("--server", policed.broker.address, "--tls-ca", str(policed.authority.file))
    identity = ("--tls-cert", str(auditor.cert), "--tls-key", str(auditor.key))
    namespace = str(policed.broker.config["clustering.namespace"])
    given = ("--stream", "--secret-file", str(secret), "--namespace", namespace, *connection, *identity)
    head = ("--head", str(policed.broker.data / "audit.pending"))
    assert "3 records, 2 runs" in run("audit", "verify", *given, *head, home=tmp_path).ok().out


def test_what_is_forged_while_the_secret_is_switched_off_is_named(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(STREAM)
    namespace = str(broker.config["clustering.namespace"])
    api = broker.api()
    genuine = wait(api, action="StartServer")[0]
    api.close()
    broker.stop()
    for key in STREAM:
        del broker.config[key]
    broker.start()
    api = broker.api()
    with refused(Status.FAILED_PRECONDITION, "readonly"):
        api.publish(AUDIT_STREAM, b"forged")
    with NatsClient(broker.nats_url) as nats:
        nats.publish(f"{namespace}.audit", canonical({**genuine, "principal": "mallory"}))
        nats.publish(f"{namespace}.audit", canonical({name: genuine[name] for name in genuine if name != "mac"}))
        nats.publish(f"{namespace}.audit", b"no record\x1b[2J")
    wait(api, principal="mallory")
    api.close()
    broker.stop()
    broker.config.update(STREAM)
    broker.start()
    api = broker.api()
    wait(api, 2, action="StartServer", principal="")
    api.close()
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    given = ("--stream", "--server", broker.address, "--secret-file", str(secret), "--namespace", namespace)
    outcome = run("audit", "verify", "--json", *given, home=tmp_path)
    assert outcome.code == 3, outcome
    offsets = outcome.json["forged"]
    assert len(offsets) == len(outcome.json["faults"]) == 3
    reasons = ("the MAC is wrong", "no MAC", "no audit record")
    for offset, fault, reason in zip(offsets, outcome.json["faults"], reasons, strict=True):
        assert fault.startswith(f"offset {offset}: ")
        assert reason in fault
    assert run("audit", "verify", "--from", str(offsets[-1] + 1), *given, home=tmp_path).code == 0
    shown = run("audit", "tail", *given, home=tmp_path).ok().lines
    assert [line.startswith("FORGED") for line in shown] == [False, False, True, True, True, False]
    assert "\x1b" not in "".join(shown)


# ── three brokers ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("audited"), config=STREAM) as found:
        (found.directory / "secret").write_text(SECRET)
        yield found


def audit(cluster: Cluster, command: str, *arguments: str) -> Outcome:
    secret = ("--secret-file", str(cluster.directory / "secret"), "--namespace", cluster.namespace)
    servers = ",".join(cluster.brokers[name].address for name in cluster.servers)
    given = ("--stream", "--server", servers, *secret, *arguments)
    return run("audit", command, *given, home=cluster.directory)


def test_each_broker_has_a_chain_that_kill_9_does_not_break(cluster: Cluster) -> None:
    for name in cluster.servers:
        wait(cluster, action="StartServer", server=name)
    cluster.wait_until_in_sync(AUDIT_STREAM)
    killed = cluster.leader_of(AUDIT_STREAM)
    for number, name in enumerate(cluster.servers):
        cluster.api(name).CreateStream(name=f"before-{number}", subject=f"before.{number}")
    eventually(lambda: is_kept(cluster, killed), "the record of the last call is on disk")
    cluster.kill(killed)  # it is perhaps not published
    staying = [name for name in cluster.servers if name != killed]
    for name in staying:
        eventually(lambda name=name: created(cluster.api(name), f"away-{name}"), f"{name} creates a stream")  # type: ignore[misc]
    cluster.restart(killed)
    eventually(lambda: created(cluster.api(killed), "after"), "the restarted server creates a stream")
    wait(cluster, 2, action="StartServer", server=killed)
    wait(cluster, action="CreateStream", resource="after", server=killed)
    for name in staying:
        wait(cluster, action="CreateStream", resource=f"away-{name}", server=name, result="OK")
    for number, name in enumerate(cluster.servers):
        wait(cluster, action="CreateStream", resource=f"before-{number}", server=name)
    outcome = audit(cluster, "verify", "--json")
    assert outcome.code == 0, outcome
    report = outcome.json
    assert report["whole"], report
    assert {one["server"]: one["runs"] for one in report["servers"]} == {
        name: 2 if name == killed else 1 for name in cluster.servers
    }
    assert all(one["follows"] == "" and one["lost"] == 0 for one in report["servers"])
    for name in cluster.servers:
        samples = scrape(cluster.brokers[name])
        assert samples.value("bascule_audit_stream_records_total") >= 2
        assert samples.value("bascule_audit_stream_records_lost_total") == 0


def is_kept(cluster: Cluster, name: str) -> bool:
    """Whether the server has written the record of its call to its data directory, or published it."""
    resource = f"before-{cluster.servers.index(name)}"
    pending = cluster.brokers[name].data / "audit.pending"
    return resource in pending.read_text() or bool(found_in(cluster.api(name), server=name, resource=resource))


def created(api: Api, name: str) -> bool:
    try:
        api.CreateStream(name=name, subject=name, timeout=10)
    except grpc.RpcError as error:
        return bool(error.code() == Status.ALREADY_EXISTS)
    return True


def test_records_of_a_time_without_a_quorum_are_published_later(cluster: Cluster) -> None:
    for name in cluster.servers:
        wait(cluster, action="StartServer", server=name)
    alone, *others = cluster.servers
    for name in others:
        cluster.pause(name)
    for number in range(3):
        with pytest.raises(grpc.RpcError):  # no call waits for the audit log: this one waits for the metadata
            cluster.api(alone).CreateStream(name=f"alone-{number}", subject=f"alone.{number}", timeout=0.5)
    pending = cluster.brokers[alone].data / "audit.pending"
    eventually(lambda: "alone-2" in pending.read_text(), "the records wait in the data directory")
    for name in others:
        cluster.resume(name)
    for number in range(3):
        wait(cluster, action="CreateStream", resource=f"alone-{number}", server=alone)
    assert audit(cluster, "verify").code == 0


def test_a_message_of_an_attacker_on_nats_is_not_stored(cluster: Cluster) -> None:
    genuine = wait(cluster, action="StartServer")[0]
    with NatsClient(cluster.nats[0].url) as nats:
        for forged in (canonical({**genuine, "principal": "mallory"}), canonical(genuine), b"no record"):
            nats.publish(f"{cluster.namespace}.audit", forged)
    for name in cluster.servers:
        with refused(Status.INVALID_ARGUMENT, "only brokers publish"):
            cluster.api(name).publish(AUDIT_STREAM, b"forged")
    cluster.api("a").CreateStream(name="witness", subject="witness")
    wait(cluster, action="CreateStream", resource="witness")
    assert found_in(cluster, principal="mallory") == []
    assert "no record" not in audit(cluster, "tail", "--count", "10").ok().out
    assert audit(cluster, "verify", "--json").json["forged"] == []


def test_tail_follows_the_stream(cluster: Cluster) -> None:
    wait(cluster, action="StartServer")
    given = ("--stream", "--follow", "--count", "1", "--server", cluster.brokers["a"].address)
    following = start("audit", "tail", *given, home=cluster.directory)
    try:
        assert following.stdout is not None
        assert following.stdout.readline()
        cluster.api("b").CreateStream(name="followed", subject="followed")
        assert " CreateStream followed OK " in following.stdout.readline().decode()
    finally:
        following.kill()
        following.wait()
