"""The process: its command line, its environment, its signals, and how it refuses to start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.api_client import Api, Health, Status, pb
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import COMMAND, BrokerProcess, clean_environ
from tests.support.nats_client import NatsClient
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env=clean_environ(env), check=False
    )


@contextmanager
def dead_port() -> Iterator[int]:
    """Nobody listens there, and nobody else can: it is taken."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]


# ── words ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_flag(flag: str) -> None:
    answer = run(flag)
    assert answer.returncode == 0
    flags = "--config -c --server-id --id --namespace --ns --nats-servers -n --embedded-nats -e --embedded-nats-config"
    flags += " --nc --data-dir -d --port -p --tls-cert --tls-key --level -l --raft-bootstrap-seed"
    flags += " --raft-bootstrap-peers --help --version"
    missing = [one for one in flags.split() if one not in answer.stdout]
    assert not missing, answer.stdout


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version_is_told(flag: str) -> None:
    answer = run(flag)
    assert answer.returncode == 0
    assert any(letter.isdigit() for letter in answer.stdout)


def test_an_unknown_flag_is_refused() -> None:
    answer = run("--no-such-flag")
    assert answer.returncode == 2
    assert "--no-such-flag" in answer.stderr


def test_the_command_line_of_gufo_works(tmp_path: Path) -> None:
    """`<binary> -c <file> -d <dir> --embedded-nats --raft-bootstrap-seed`, the file inside of the directory."""
    data = tmp_path / "liftbridge-data"
    data.mkdir()
    config = data / ".liftbridge.yml"
    config.write_text(
        "\nlisten: 127.0.0.1:0\ncursors:\n    stream.auto.pause.time: 0\n    stream.partitions: 1\n", "utf-8"
    )
    command = [*COMMAND, "-c", str(config), "-d", str(data), "--embedded-nats", "--raft-bootstrap-seed"]
    broker = BrokerProcess(tmp_path / "unused")
    broker.data = data
    with (tmp_path / "broker.log").open("wb") as log:
        environ = clean_environ({"BASCULE_NATS_EMBEDDED_PORT": "0"})
        broker.process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    broker.log = tmp_path / "broker.log"
    try:
        broker.wait_ready()
        api = broker.api()
        eventually(lambda: api.stream("__cursors").partitions, "cursors are there")
        assert [one.host for one in api.FetchMetadata().brokers] == ["127.0.0.1"]
        api.CreateStream(name="s", subject="s", compactEnabled=False, replicationFactor=1, partitions=1)
        api.close()
    finally:
        broker.kill()


def test_flags_win_over_the_environment_and_the_environment_over_the_file(start_broker: StartBroker) -> None:
    def server_id(**options: object) -> str:
        broker = start_broker({"clustering.server.id": "from-file"}, **options)
        api = broker.api()
        (found,) = api.FetchMetadata().brokers
        api.close()
        broker.kill()
        return str(found.id)

    assert server_id() == "from-file"
    env = {"LIFTBRIDGE_CLUSTERING_SERVER_ID": "from-environment"}
    assert server_id(env=env) == "from-environment"
    assert server_id(env=env, arguments=["--server-id", "from-flag"]) == "from-flag"


def test_every_key_can_come_from_the_environment(start_broker: StartBroker) -> None:
    api = start_broker(env={"LIFTBRIDGE_CURSORS_STREAM_PARTITIONS": "2", "BASCULE_HOST": "localhost"}).api()
    eventually(lambda: len(api.stream("__cursors").partitions) == 2, "cursors are there")
    assert [one.host for one in api.FetchMetadata().brokers] == ["localhost"]
    api.close()


def test_a_server_keeps_the_id_it_was_born_with(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    (before,) = api.FetchMetadata().brokers
    assert len(before.id) == 22
    api.close()
    broker.restart()
    api = broker.api()
    assert [one.id for one in api.FetchMetadata().brokers] == [before.id]
    api.close()


def test_nats_servers_are_tried_one_after_the_other(start_broker: StartBroker, nats_server: NatsServer) -> None:
    with dead_port() as port:
        broker = start_broker(nats_url=f"nats://127.0.0.1:{port}, {nats_server.url} ")
        api = broker.api()
        api.CreateStream(name="s", subject=f"s{time.monotonic_ns()}")
        assert api.publish("s", b"x").offset == 0
        api.close()


def test_two_clusters_share_a_nats_server_when_their_namespaces_differ(start_broker: StartBroker) -> None:
    first, second = start_broker(), start_broker()
    apis = [first.api(), second.api()]
    for api in apis:
        api.CreateStream(name="same", subject="same.subject")
    apis[0].publish("same", b"x")
    for api in apis:
        subscription = api.subscribe("same")
        assert subscription.next().value == b"x"
        assert len(api.FetchMetadata().brokers) == 1
        api.close()


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("embedded", [False, True])
def test_a_signal_stops_it_quickly_and_gracefully(
    start_broker: StartBroker, signal_number: int, embedded: bool
) -> None:
    broker = start_broker({"shutdown.drain.timeout": "120s"}, embedded=embedded)
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    subscriptions = [api.subscribe("s") for _ in range(20)]
    session = api.publish_async()
    session.send("s", b"x", ackPolicy=pb.ALL)
    session.take(1)
    children = broker.children()
    assert len(children) == embedded
    begun = time.monotonic()
    assert broker.stop(signal_number) == 0, broker.tail()
    assert time.monotonic() - begun < 40, "it waited for readers that have nothing to read"
    assert {subscription.end()[0] for subscription in subscriptions} == {Status.UNAVAILABLE}
    assert not broker.addresses_file.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert "Traceback" not in broker.said()
    session.cancel()
    api.close()


def test_an_idle_broker_stops_at_once(start_broker: StartBroker) -> None:
    broker = start_broker({"shutdown.drain.timeout": "120s"})
    begun = time.monotonic()
    assert broker.stop() == 0
    assert time.monotonic() - begun < 40


def test_what_was_acked_before_the_signal_is_there_after_it(start_broker: StartBroker) -> None:
    broker = start_broker()
    for round_number in range(3):
        api = broker.api()
        if not round_number:
            api.CreateStream(name="s", subject="s")
        assert api.publish("s", b"%d" % round_number).offset == round_number
        api.close()
        assert broker.stop() == 0
        broker.start()
    api = broker.api()
    assert [message.value for message in api.read("s")] == [b"0", b"1", b"2"]
    api.close()


def test_sighup_does_not_kill(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    for _ in range(3):
        os.kill(broker.pid, signal.SIGHUP)
        assert Health(api).check() == Health.SERVING
    assert broker.is_running
    assert "Traceback" not in broker.said()
    api.close()


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


def test_a_data_directory_in_use_is_refused(start_broker: StartBroker, nats_server: NatsServer, tmp_path: Path) -> None:
    first = start_broker()
    second = BrokerProcess(tmp_path / "second", nats_url=nats_server.url, config={"clustering.namespace": "second"})
    second.data = first.data
    addresses = first.addresses_file.read_text()
    second.addresses_file.rename(kept := first.data / "kept")  # `launch` takes the file of a dead broker away
    second.launch()
    code = second.wait()
    kept.rename(first.addresses_file)
    assert code == 3, second.tail()
    assert str(first.data) in second.said()
    assert "in use" in second.said() or "another process" in second.said().lower()
    assert "Traceback" not in second.said()
    assert first.addresses_file.read_text() == addresses
    api = first.api()
    assert api.FetchMetadata().brokers
    api.close()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("listen: nonsense\n", "listen"),
        ("no.such.key: 1\n", "no.such.key"),
        ("streams:\n  retention.max:\n    age: forever\n", "streams.retention.max.age"),
        ("port: 70000\n", "port"),
        ("clustering.server.id: 'a b'\n", "clustering.server.id"),
        ("tls.cert: /nowhere\n", "tls"),
        ("[1, 2", "bad.yaml"),
    ],
)
def test_a_bad_configuration_is_refused_and_the_field_is_named(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    answer = run("-c", str(file), "-d", str(tmp_path / "data"))
    assert answer.returncode == 2, answer.stderr
    assert named in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_missing_configuration_file_is_refused(tmp_path: Path) -> None:
    answer = run("-c", str(tmp_path / "absent.yaml"))
    assert answer.returncode not in (0, 1)
    assert "absent.yaml" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_port_in_use_is_named(start_broker: StartBroker) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        broker = start_broker({"listen": f"127.0.0.1:{port}"}, launch_only=True)
        assert broker.wait() not in (0, 1)
        assert str(port) in broker.said()
        assert "in use" in broker.said()
        assert "Traceback" not in broker.said()


def test_nats_out_of_reach_is_told_in_bounded_time(start_broker: StartBroker) -> None:
    with dead_port() as port:
        broker = start_broker(nats_url=f"nats://127.0.0.1:{port}", launch_only=True)
        assert broker.wait() not in (0, 1)
    assert str(port) in broker.said()
    assert "Traceback" not in broker.said()


def test_a_data_directory_that_cannot_be_written_is_told(start_broker: StartBroker, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("not a directory")
    broker = start_broker(launch_only=True, directory=tmp_path / "x", arguments=["-d", str(tmp_path / "a-file")])
    assert broker.wait() not in (0, 1)
    assert "a-file" in broker.said()
    assert "Traceback" not in broker.said()


# ── the embedded NATS server ─────────────────────────────────────────────────────────────────────


def test_the_embedded_server_is_gone_when_the_broker_was_killed(start_broker: StartBroker) -> None:
    broker = start_broker(embedded=True)
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    with NatsClient(broker.nats_url) as nats:
        nats.publish("s", b"over the embedded server")
        subscription = api.subscribe("s")
        assert subscription.next().value == b"over the embedded server"
    (child,) = broker.children()
    api.close()
    broker.kill()
    eventually(lambda: not Path(f"/proc/{child}").exists(), "the embedded server is gone")
    broker.start()
    api = broker.api()
    assert [message.value for message in api.read("s")] == [b"over the embedded server"]
    assert api.publish("s", b"x").offset == 1
    api.close()


def test_an_embedded_server_that_dies_is_started_again(start_broker: StartBroker) -> None:
    broker = start_broker(embedded=True)
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    (child,) = broker.children()
    os.kill(child, signal.SIGKILL)

    def publishes() -> bool:
        return bool(api.future("Publish", stream="s", value=b"x", timeout=2).code() is Status.OK)

    eventually(lambda: child not in broker.children(), "the dead one was noticed")
    eventually(publishes, "publishing works again")
    api.close()


def test_the_embedded_server_listens_on_the_loopback_only(start_broker: StartBroker) -> None:
    broker = start_broker(embedded=True)
    assert broker.nats_url.startswith("nats://127.0.0.1:")
    port = int(broker.nats_url.rpartition(":")[2])
    listening = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True, check=True).stdout
    rows = [line.split()[1:4] for line in listening.splitlines()[1:]]
    bound = {row[0].split(":")[0] for row in rows if row[2] == "0A" and int(row[0].split(":")[1], 16) == port}
    assert bound == {"0100007F"}


def test_an_embedded_port_in_use_is_told(start_broker: StartBroker) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        broker = start_broker({"nats.embedded.port": port}, embedded=True, launch_only=True)
        assert broker.wait() not in (0, 1)
        assert str(port) in broker.said()
        assert "Traceback" not in broker.said()


def test_a_message_of_a_mebibyte_passes_the_embedded_server(start_broker: StartBroker) -> None:
    api: Api = start_broker(embedded=True).api()
    api.CreateStream(name="s", subject="s")
    assert api.publish("s", b"x" * ((1 << 20) - 1000)).offset == 0
    api.close()
