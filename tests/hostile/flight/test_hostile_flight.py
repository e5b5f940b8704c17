"""Arrow Flight under attack: patterns that never end, record batches that expand, and callers that pretend to be others."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from bascule import TlsOptions, errors
from bascule.broker.flight.relay import CONNECTIONS_PER_ADDRESS_MAX
from bascule.client.arrow.reader import FlightConnection
from bascule.flight.tickets import ReadTicket
from tests.support.api_client import Api
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.guarded_broker import MODEL, Guarded
from tests.support.nats_server import NatsServer
from tests.support.tables import (
    SERVING,
    handles_of,
    numbers,
    read_rows,
    stream,
    tables,
    tables_api,
    tables_broker,
)
from tests.support.waiting import eventually

__all__ = ["stream", "tables", "tables_api", "tables_broker"]

MIB = 1 << 20


@pytest.fixture
def client(tables_broker: BrokerProcess) -> Iterator[Any]:
    with flight.FlightClient(f"grpc://{tables_broker.flight_address}") as found:
        yield found


def cpu_seconds(broker: BrokerProcess) -> float:
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# ── patterns ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pattern", ["([a-z]+)+!", "(a|a?)+$" * 20, "a*" * 128, "*a" * 127 + "*!"])
def test_no_pattern_of_a_client_costs_time(
    tables_broker: BrokerProcess, tables_api: Api, client: Any, pattern: str
) -> None:
    name = "a" * 60
    if not list(client.list_flights(json.dumps({"pattern": name}).encode())):
        tables_api.CreateStream(name=name, subject="evil.name")
    before = cpu_seconds(tables_broker)
    for _ in range(20):
        list(client.list_flights(json.dumps({"pattern": pattern}).encode()))
    assert cpu_seconds(tables_broker) - before < 5, "a regular expression would have taken hours"


def test_a_stream_named_often_is_described_once(
    tables_broker: BrokerProcess, tables_api: Api, client: Any, stream: str
) -> None:
    command = json.dumps({"stream": stream, "partitions": [0, 1] * 9_000}).encode()
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    assert len(info.endpoints) == 2
    tables_api.CreateStream(name="wide", subject="wide", partitions=200)
    before = cpu_seconds(tables_broker)
    (answer,) = client.do_action(flight.Action("offsets", json.dumps({"streams": ["wide"] * 6_000}).encode()))
    assert len(json.loads(answer.body.to_pybytes())["streams"]["wide"]["partitions"]) == 200
    assert cpu_seconds(tables_broker) - before < 10, "1.2 million lookups take longer"


# ── record batches ───────────────────────────────────────────────────────────────────────────────


def bombs() -> Iterator[tuple[str, pa.Table, Any]]:
    rows = 30_000_000
    yield "nulls", pa.table({"value": pa.nulls(rows)}), None
    large = pa.DictionaryArray.from_arrays(pa.array([0] * 2_000, pa.int32()), pa.array([b"x" * (MIB // 2)]))
    yield "dictionary", pa.table({"value": large}), None
    zeros = pa.array([bytes(64 * MIB)], pa.binary())
    yield "zstd", pa.table({"value": zeros}), pa.ipc.IpcWriteOptions(compression="zstd")


@pytest.mark.parametrize("method", ["put", "exchange"])
def test_record_batches_that_expand_are_not_read(
    tables_broker: BrokerProcess, tables_api: Api, client: Any, stream: str, method: str
) -> None:
    descriptor = flight.FlightDescriptor.for_path(stream)
    before = tables_broker.rss_bytes()
    for name, table, options in bombs():
        with pytest.raises((flight.FlightError, pa.ArrowException), match="not served here"):
            if method == "put":
                writer, _ = client.do_put(descriptor, table.schema, flight.FlightCallOptions(write_options=options))
            else:
                writer, _ = client.do_exchange(descriptor, flight.FlightCallOptions(write_options=options))
                writer.begin(table.schema)
            try:
                for _ in range(8):
                    writer.write_table(table)
            finally:
                writer.close()
        assert tables_broker.rss_bytes() - before < 100 * MIB, name
    assert tables_api.publish(stream, b"good").offset == 0, "no row was stored"


# ── callers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def policed(start_broker: StartBroker, tmp_path: Path) -> Guarded:
    """`admin` may do everything with `s`; `outsider` may ask about nothing but the servers."""
    model, policy = tmp_path / "model.conf", tmp_path / "policy.csv"
    model.write_text(MODEL)
    actions = ("CreateStream", "FetchPartitionMetadata", "Subscribe", "Publish")
    lines = [f"p, admin, s, {action}" for action in actions]
    lines += [f"p, {who}, *, FetchMetadata" for who in ("admin", "outsider")]
    policy.write_text("\n".join(lines) + "\n")
    config: dict[str, Any] = {
        **SERVING,
        "tls.client.auth.enabled": True,
        "tls.client.auth.ca": "the authority",
        "tls.client.authz.enabled": True,
        "tls.client.authz.model": str(model),
        "tls.client.authz.policy": str(policy),
    }
    guarded = Guarded(start_broker, tmp_path / "tls", config)
    guarded.admin_api.CreateStream(name="s", subject="s")
    with FlightConnection(guarded.broker.address, tls=options(guarded)) as tables:
        tables.put("s", numbers(10))
    return guarded


def options(guarded: Guarded) -> TlsOptions:
    return TlsOptions(ca=guarded.authority.file, cert=guarded.admin.cert, key=guarded.admin.key)


def inner_socket(broker: BrokerProcess) -> Path:
    """The Unix socket on which Flight listens behind TLS, from the kernel's table."""
    inodes = handles_of(broker.pid)
    found = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and f"socket:[{fields[6]}]" in inodes and fields[7].endswith("/flight"):
            found.append(Path(fields[7].replace("/proc/self/", f"/proc/{broker.pid}/", 1)))
    return found[0]


def tcp_listeners(broker: BrokerProcess) -> set[int]:
    inodes = handles_of(broker.pid)
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def test_behind_tls_nothing_listens_that_another_user_can_reach(policed: Guarded) -> None:
    addresses = json.loads(policed.broker.addresses_file.read_text())
    known = {int(addresses[name].rpartition(":")[2]) for name in ("grpc", "flight", "http")}
    assert tcp_listeners(policed.broker) <= known
    folder = inner_socket(policed.broker).parent
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_process_without_a_certificate_cannot_take_the_name_of_a_reader(policed: Guarded) -> None:
    """It connects to the inner socket itself, under names that look like those of the relay, while a reader is connected."""
    path = inner_socket(policed.broker)
    with FlightConnection(policed.broker.address, tls=options(policed)) as reader:
        assert len(read_rows(reader, "s", 0)) == 10
        for name in (None, "0" * 32, "admin", "flight2"):
            with Relayed(path, name) as port, flight.FlightClient(f"grpc://127.0.0.1:{port}") as client:
                ticket = flight.Ticket(ReadTicket(stream="s", partition=0).encode())
                for call in (
                    lambda client=client: list(client.list_flights()),
                    lambda client=client: client.get_flight_info(flight.FlightDescriptor.for_path("s")),
                    lambda client=client, ticket=ticket: client.do_get(ticket).read_all(),
                    lambda client=client: list(client.do_action(flight.Action("offsets", b"{}"))),
                ):
                    with pytest.raises(flight.FlightUnauthenticatedError):
                        call()
                with pytest.raises(
                    pa.ArrowException, match="PERMISSION_DENIED"
                ):  # pyarrow loses the kind of this error
                    client.get_schema(flight.FlightDescriptor.for_path("s"))
        assert len(read_rows(reader, "s", 0)) == 10


def test_a_certificate_without_rights_reads_nothing_on_any_source_port(policed: Guarded) -> None:
    """The source port of a former connection says nothing: after the admin has gone, its ports are free for others."""
    own = policed.authority.issue("outsider")
    outsider = TlsOptions(ca=policed.authority.file, cert=own.cert, key=own.key)
    for _ in range(3):
        with FlightConnection(policed.broker.address, tls=options(policed)) as admin:
            assert len(read_rows(admin, "s", 0)) == 10
        with (
            FlightConnection(policed.broker.address, tls=outsider) as tables,
            pytest.raises(errors.PermissionDenied, match="on resource s"),
        ):
            read_rows(tables, "s", 0, 0, 10)


def test_requests_of_many_megabytes_are_not_assembled(policed: Guarded) -> None:
    address = json.loads(policed.broker.addresses_file.read_text())["flight"]
    own = policed.admin
    certificates = {
        "tls_root_certs": policed.authority.file.read_bytes(),
        "cert_chain": own.cert.read_bytes(),
        "private_key": own.key.read_bytes(),
    }
    before = policed.broker.rss_bytes()
    with FlightConnection(policed.broker.address, tls=options(policed)) as reader:
        assert len(read_rows(reader, "s", 0)) == 10
        for _ in range(3):
            with (
                flight.FlightClient(f"grpc+tls://{address}", **certificates) as client,
                pytest.raises(pa.ArrowException),
            ):
                list(client.do_action(flight.Action("offsets", bytes(200 * MIB))))
        with (
            flight.FlightClient(f"grpc+tls://{address}", **certificates) as client,
            pytest.raises(pa.ArrowException, match="INVALID_ARGUMENT"),
        ):
            list(client.do_action(flight.Action("offsets", bytes(60_000))))
        assert len(read_rows(reader, "s", 0)) == 10
    assert policed.broker.rss_bytes() - before < 100 * MIB


@pytest.fixture(scope="module")
def exposed(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Listens beyond loopback in the clear, which an operator has to allow."""
    config = {
        "clustering.namespace": "exposed",
        "flight.listen": "0.0.0.0:0",
        "security.insecure": True,
        "http.listen": "127.0.0.1:0",
        **SERVING,
    }
    with BrokerProcess(tmp_path_factory.mktemp("exposed"), nats_url=nats_server.url, config=config) as broker:
        with closing(broker.api()) as api:
            api.CreateStream(name="s", subject="tables-in-the-clear")
            for number in range(10):
                api.publish("s", b"%d" % number)
        yield broker


def exposed_port(broker: BrokerProcess) -> int:
    return int(json.loads(broker.addresses_file.read_text())["flight"].rpartition(":")[2])


def test_large_requests_in_the_clear_are_not_assembled_either(exposed: BrokerProcess) -> None:
    before = exposed.rss_bytes()
    with FlightConnection(exposed.address, local=False) as reader:
        for _ in range(3):
            with (
                flight.FlightClient(f"grpc://127.0.0.1:{exposed_port(exposed)}") as client,
                pytest.raises(pa.ArrowException),
            ):
                list(client.do_action(flight.Action("offsets", bytes(200 * MIB))))
        assert len(read_rows(reader, "s", 0)) == 10
    assert exposed.rss_bytes() - before < 100 * MIB


def test_one_address_takes_no_more_than_its_share_of_connections(exposed: BrokerProcess) -> None:
    wanted = CONNECTIONS_PER_ADDRESS_MAX + 50
    opened = [socket.create_connection(("127.0.0.1", exposed_port(exposed)), 60) for _ in range(wanted)]
    try:
        eventually(lambda: sum(is_closed(one) for one in opened) >= 50, "the connections beyond the bound are closed")
        assert sum(is_closed(one) for one in opened) == 50
    finally:
        for one in opened:
            one.close()

    def is_served() -> bool:
        try:
            with FlightConnection(exposed.address, local=False) as reader:
                return len(read_rows(reader, "s", 0)) == 10
        except errors.BasculeError:
            return False

    eventually(is_served, "readers are served again")


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


RELAY = """
import os, socket, sys, threading
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for one in (source, target):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
number = 0
while True:
    outside, _ = listening.accept()
    inside = socket.socket(socket.AF_UNIX)
    if sys.argv[2]:
        inside.bind(sys.argv[3] + "/" + sys.argv[2])
        sys.argv[2] = ""
    inside.connect(sys.argv[1])
    threading.Thread(target=pump, args=(outside, inside), daemon=True).start()
    threading.Thread(target=pump, args=(inside, outside), daemon=True).start()
"""


class Relayed:
    """A process of the attacker that connects TCP clients to the inner socket, bound to a name of its own."""

    def __init__(self, path: Path, name: str | None) -> None:
        self._path = path
        self._name = name or ""

    def __enter__(self) -> int:
        arguments = [str(self._path), self._name, str(self._path.parent)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", RELAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


# ── clients that do not read ─────────────────────────────────────────────────────────────────────


def test_lists_that_are_not_read_are_counted_and_bounded(tables_broker: BrokerProcess, tables_api: Api) -> None:
    """200 calls of 20 clients, none of which reads its answer. Publishing goes on."""
    location = f"grpc://{tables_broker.flight_address}"
    clients = [flight.FlightClient(location) for _ in range(20)]
    before = tables_broker.rss_bytes()
    try:
        waiting = [threading.Thread(target=client.list_flights, daemon=True) for client in clients for _ in range(10)]
        for one in waiting:
            one.start()
        began = time.monotonic()
        tables_api.CreateStream(name="beside", subject="beside")
        for _ in range(20):
            tables_api.publish("beside", b"x")
        assert time.monotonic() - began < 60
        assert tables_broker.rss_bytes() - before < 200 * MIB
        for one in waiting:
            one.join(60)
    finally:
        for client in clients:
            client.close()


def test_garbage_on_the_port_ends_its_connection_alone(tables_broker: BrokerProcess, client: Any) -> None:
    host, _, port = tables_broker.flight_address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 4096)
        raw.settimeout(60)
        while raw.recv(4096):
            pass
    assert list(client.list_actions())
