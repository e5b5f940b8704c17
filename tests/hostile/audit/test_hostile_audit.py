"""The audit log of a real broker: refused calls leave records, a flood does not fill the disk, and a forged log is found."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Outcome, run, start
from tests.hostile.identity.guarded import GuardedBroker
from tests.support.api_client import Status, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.guarded_broker import PREFIX_MODEL, Policed
from tests.support.waiting import eventually

LINES = ["admin, *, *", "bob, bobs*, *"]
SECRET = "a cluster secret of the tests"
NEW_SECRET = "another cluster secret of the tests"


class Audited:
    def __init__(self, start_broker: StartBroker, directory: Path, more: dict[str, Any] | None = None) -> None:
        self.file = directory / "audit.jsonl"
        self.secret = directory / "secret"
        self.secret.write_text(SECRET)
        config = {"security.audit.file": str(self.file), "cluster.secret.file": str(self.secret), **(more or {})}
        self.policed = Policed(start_broker, directory / "policed", PREFIX_MODEL, LINES, config)
        self.broker = self.policed.broker

    def records(self, **wanted: str) -> list[dict[str, Any]]:
        whole = self.file.read_text().rpartition("\n")[0]
        found = [json.loads(line) for line in whole.splitlines()]
        return [one for one in found if all(one[name] == value for name, value in wanted.items())]

    def wait(self, count: int = 1, **wanted: str) -> list[dict[str, Any]]:
        def enough() -> list[dict[str, Any]] | None:
            found = self.records(**wanted)
            return found if len(found) >= count else None

        return eventually(enough, f"there are {count} records {wanted}")

    def verify(self, *arguments: str) -> Outcome:
        head, namespace = str(self.broker.data / "audit.head"), str(self.broker.config["clustering.namespace"])
        given = ("--secret-file", str(self.secret), "--namespace", namespace, "--head", head)
        return self.run("verify", str(self.file), *given, *arguments)

    def run(self, *arguments: str) -> Outcome:
        return run("audit", *arguments, home=self.file.parent)


@pytest.fixture
def audited(start_broker: StartBroker, tmp_path: Path) -> Audited:
    return Audited(start_broker, tmp_path)


def test_changes_and_refusals_have_principal_and_address(audited: Audited) -> None:
    admin, bob = audited.policed.admin_api, audited.policed.api("bob")
    admin.CreateStream(name="orders", subject="orders")
    with refused(Status.PERMISSION_DENIED):
        bob.DeleteStream(name="orders")
    with refused(Status.PERMISSION_DENIED):
        bob.publish("orders", b"a payload that is secret")
    with refused(Status.ALREADY_EXISTS):
        admin.CreateStream(name="orders", subject="orders")
    admin.publish("orders", b"a payload that is secret")
    admin.SetStreamReadonly(name="orders", readonly=True)
    admin.DeleteStream(name="orders")
    (created,) = audited.wait(action="CreateStream", result="OK")
    assert (created["principal"], created["resource"]) == ("admin", "orders")
    assert created["address"].startswith("127.0.0.1:")
    assert 'subject: "orders"' in created["detail"]
    (denied,) = audited.wait(action="DeleteStream", result="PERMISSION_DENIED")
    assert (denied["principal"], denied["resource"]) == ("bob", "orders")
    assert denied["address"].startswith("127.0.0.1:")
    audited.wait(action="Publish", result="PERMISSION_DENIED", principal="bob", resource="orders")
    audited.wait(action="CreateStream", result="ALREADY_EXISTS")
    audited.wait(action="SetStreamReadonly", result="OK")
    audited.wait(action="DeleteStream", result="OK", principal="admin")
    assert audited.records(action="Publish", result="OK") == []
    text = audited.file.read_text()
    assert "payload" not in text
    assert SECRET not in text


def test_operations_on_the_cluster_are_recorded_and_counted(start_broker: StartBroker, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    broker = start_broker({"security.audit.file": str(file)})
    for arguments in (("status",), ("throttle", "1MiB"), ("reassign", "nowhere", "--replication-factor", "1")):
        run("cluster", *arguments, "--server", broker.address, home=tmp_path)

    def found() -> dict[str, Any] | None:
        records = {one["action"]: one for one in map(json.loads, file.read_text().splitlines())}
        return records if {"SetThrottle", "Reassign"} <= records.keys() else None

    records = eventually(found, "both operations are recorded")
    assert records.keys() == {"StartServer", "SetThrottle", "Reassign"}
    assert (records["SetThrottle"]["result"], records["SetThrottle"]["resource"]) == ("OK", "*")
    assert records["SetThrottle"]["address"].startswith("127.0.0.1:")
    assert (records["Reassign"]["result"], records["Reassign"]["resource"]) == ("NOT_FOUND", "nowhere")
    page = urllib.request.urlopen(f"http://{broker.http_address}/metrics", timeout=60).read().decode()
    assert "bascule_audit_records_total 3" in page
    assert "bascule_audit_records_lost_total 0" in page


def test_refused_reads_of_tables_are_recorded(start_broker: StartBroker, tmp_path: Path) -> None:
    flight: Any = pytest.importorskip("pyarrow.flight")
    audited = Audited(start_broker, tmp_path, {"flight.enabled": True})
    bob = audited.policed.authority.issue("bob")
    client = flight.connect(
        f"grpc+tls://{json.loads(audited.broker.addresses_file.read_text())['flight']}",
        tls_root_certs=audited.policed.authority.file.read_bytes(),
        cert_chain=bob.cert.read_bytes(),
        private_key=bob.key.read_bytes(),
    )
    with pytest.raises(flight.FlightError, match="not authorized"):
        client.get_flight_info(flight.FlightDescriptor.for_path("orders"))
    client.close()
    (denied,) = audited.wait(action="FetchPartitionMetadata", result="PERMISSION_DENIED")
    assert (denied["principal"], denied["resource"]) == ("bob", "orders")
    assert denied["address"].startswith("127.0.0.1:")


def test_a_rotated_log_is_one_chain(audited: Audited) -> None:
    audited.wait(action="StartServer")
    old = audited.file.with_name("audit.old")
    audited.file.rename(old)
    os.kill(audited.broker.pid, signal.SIGHUP)
    eventually(audited.file.exists, "the broker has opened a new file")
    audited.wait(action="Reload")
    audited.broker.stop()
    namespace = str(audited.broker.config["clustering.namespace"])
    given = ("--secret-file", str(audited.secret), "--namespace", namespace)
    outcome = audited.run("verify", str(old), str(audited.file), *given).ok()
    assert "follows" not in outcome.out
    assert "follows a record that is not here" in audited.run("verify", str(audited.file), *given).ok().out
    assert audited.run("verify", str(audited.file), str(old), *given).code == 3


def test_a_new_cluster_secret_signs_from_sighup_on(audited: Audited) -> None:
    audited.wait(action="StartServer")
    old = audited.file.with_name("old-secret")
    old.write_text(SECRET)
    audited.secret.write_text(NEW_SECRET)
    os.kill(audited.broker.pid, signal.SIGHUP)
    audited.wait(action="Reload", result="OK")
    audited.policed.admin_api.CreateStream(name="after", subject="after")
    audited.wait(action="CreateStream", result="OK")
    audited.broker.stop()
    both = audited.verify("--secret-file", str(old)).ok()
    assert "Whole" in both.out
    late = json.loads(audited.verify("--json").out)["faults"]  # with the new secret alone: what the old one has signed
    assert late[0].startswith("line 1: the MAC is wrong")
    assert len(late) <= 2  # StartServer, and perhaps Reload


def test_tail_follows_new_records_also_after_a_rotation(audited: Audited) -> None:
    audited.wait(action="StartServer")
    following = start("audit", "tail", str(audited.file), "--follow", home=audited.file.parent)
    try:
        assert following.stdout is not None
        assert " StartServer * OK " in following.stdout.readline().decode()
        audited.policed.admin_api.CreateStream(name="one", subject="one")
        assert " CreateStream one OK " in following.stdout.readline().decode()
        audited.file.rename(audited.file.with_name("audit.old"))
        os.kill(audited.broker.pid, signal.SIGHUP)
        assert " Reload * OK" in following.stdout.readline().decode()
        audited.policed.admin_api.DeleteStream(name="one")
        assert " DeleteStream one OK " in following.stdout.readline().decode()
    finally:
        following.kill()
        following.wait()


def test_a_flood_of_refused_calls_leaves_few_records(audited: Audited) -> None:
    bob = audited.policed.api("bob")
    for _ in range(200):
        with refused(Status.PERMISSION_DENIED):
            bob.DeleteStream(name="orders")
    session = bob.publish_async()
    for _ in range(200):
        session.send("orders", b"x")
    for _ in range(200):
        assert "not authorized" in session.next().asyncError.message
    audited.broker.stop()
    assert len(audited.records(principal="bob", result="PERMISSION_DENIED")) <= 40  # at most two windows
    counted = sum(int(one["detail"].split()[0]) for one in audited.records(principal="bob", result="SUMMARY"))
    assert counted + len(audited.records(principal="bob", result="PERMISSION_DENIED")) == 400
    audited.verify().ok()


def test_the_chain_survives_kill_and_restart_and_a_changed_line_is_found(audited: Audited) -> None:
    audited.policed.admin_api.CreateStream(name="orders", subject="orders")
    audited.wait(action="CreateStream", result="OK")
    audited.broker.kill()
    audited.broker.launch()
    audited.wait(2, action="StartServer")
    eventually(audited.broker.addresses_file.exists, "the broker serves")
    os.kill(audited.broker.pid, signal.SIGHUP)
    (reload,) = audited.wait(action="Reload")
    assert reload["result"] == "OK"
    audited.broker.stop()
    audited.wait(action="StopServer")
    outcome = audited.verify().ok()
    assert "2 runs" in outcome.out
    assert "Whole" in outcome.out
    shown = audited.run("tail", str(audited.file)).ok().out
    assert "admin 127.0.0.1:" in shown
    assert "CreateStream orders OK" in shown

    whole = audited.file.read_text()
    lines = whole.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"CreateStream"' in line)
    audited.file.write_text("".join([*lines[:at], lines[at].replace('"admin"', '"bob"'), *lines[at + 1 :]]))
    outcome = audited.verify()
    assert outcome.code == 3
    assert f"line {at + 1}: the MAC is wrong" in outcome.out
    assert f"line {at + 2}: " in outcome.out
    audited.file.write_text("".join([*lines[:at], *lines[at + 1 :]]))
    assert audited.verify().code == 3
    audited.file.write_text("".join(lines[:-1]))
    outcome = audited.verify("--json")
    assert outcome.code == 3
    assert "the end is missing" in json.loads(outcome.out)["faults"][0]


def test_calls_without_valid_credentials_are_recorded_without_the_token(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    guarded = GuardedBroker(start_broker, tmp_path / "guarded", {"security.audit.file": str(file)})
    with refused(Status.UNAUTHENTICATED):
        guarded.api().FetchMetadata()
    with refused(Status.UNAUTHENTICATED):
        guarded.api("bascule_wrongtoken_hunter2hunter2").CreateStream(name="s", subject="s")
    assert guarded.get("/metrics")[0] == 401

    def found() -> list[str] | None:
        records = [json.loads(line) for line in file.read_text().splitlines()]
        actions = [one["action"] for one in records if one["result"] == "UNAUTHENTICATED"]
        return actions if len(actions) >= 3 else None

    assert set(eventually(found, "three refusals are recorded")) == {"FetchMetadata", "CreateStream", "HTTP"}
    assert "hunter2" not in file.read_text()


def test_a_broker_without_its_audit_file_does_not_start(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker({"security.audit.file": str(tmp_path / "missing" / "audit")}, launch_only=True)
    eventually(lambda: not broker.is_running, "the broker has ended")
    assert "security.audit.file" in broker.said()
