"""Pipelines that outlive their broker, and several of them in one Spark. One session and one broker of its own for both."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bascule import blocking
from bascule.cli.pipeline import host as host_commands
from bascule.errors import BasculeError, ExpectationBroken, InvalidConfig, StateError, Unavailable
from bascule.pipeline.hosting.control import HostSocket, ask
from bascule.pipeline.hosting.host import HostedState, PipelineHost
from bascule.pipeline.restarts.loop import Restart
from bascule.pipeline.runner import Pipeline
from bascule.pipeline.spec.pipeline import load
from bascule.pipeline.status import pipeline_status
from tests.cli.command_line import run as run_command
from tests.support.broker_process import BrokerProcess
from tests.support.spark_session import TABLES_CONFIG
from tests.support.waiting import eventually

SECONDS_MAX = 300.0
"""A query starts several processes."""


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With a port that it has again when it comes back."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), config=TABLES_CONFIG)
    broker.start()
    broker.config["listen"] = broker.address
    broker.config["flight.listen"] = broker.flight_address
    yield broker
    broker.kill()


def publish(broker: BrokerProcess, stream: str, *values: Any) -> None:
    with blocking.connect(broker.address) as client:
        for value in values:
            client.publish(stream, json.dumps(value).encode(), ack="all")


def values(broker: BrokerProcess, stream: str) -> list[Any]:
    with blocking.connect(broker.address) as client:
        last = client.fetch_partition_metadata(stream, 0).newest_offset
        if last < 0:
            return []
        with client.subscribe(stream, start="earliest", stop=last) as messages:
            return [json.loads(message.value or b"") for message in messages]


def create(broker: BrokerProcess, *streams: str) -> None:
    with blocking.connect(broker.address) as client:
        for stream in streams:
            client.create_stream(stream, f"subject.{stream}")


def write(folder: Path, name: str, broker: BrokerProcess, source: str, *, rule: str = "true", more: str = "") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(f"""
name: {name}
servers: {broker.address}
source: {{stream: {source}, options: {{patience: 500ms}}}}
steps: [expect: {{name: rule, rule: {rule}, otherwise: fail}}]
sinks: [stream: {{stream: {name}-out, create: true}}]
trigger: 100ms
restart: {{attempts: 1000, pause: 100ms, pause_max: 500ms}}
checkpoint: {name}-state
{more}
""")
    return file


def test_a_pipeline_outlives_a_broker_that_is_away_for_longer_than_its_patience(
    spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    create(own_broker, "outage")
    publish(own_broker, "outage", 1, 2)
    spec = load(write(tmp_path, "outlives", own_broker, "outage"))
    restarts: list[Restart] = []
    stop = threading.Event()
    pipeline = Pipeline(spark, spec, on_restart=restarts.append, stop=stop)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(
            lambda: "outlives-out" in streams(own_broker) and values(own_broker, "outlives-out") == [1, 2],
            "it runs",
            SECONDS_MAX,
        )
        own_broker.kill()
        eventually(lambda: len(restarts) >= 2 or failures, "it has failed twice", SECONDS_MAX)
        assert not failures
        own_broker.start()
        found = pipeline_status(spec)["restarts"]
        assert found["count"] >= 2 and (found["failures"] == 0 or found["error"])
        publish(own_broker, "outage", 3)
        eventually(lambda: values(own_broker, "outlives-out") == [1, 2, 3], "it goes on", SECONDS_MAX)
        eventually(lambda: pipeline_status(spec)["restarts"]["failures"] == 0, "a batch ends the failures", SECONDS_MAX)
    finally:
        stop.set()
        thread.join(SECONDS_MAX)
    assert not failures and not thread.is_alive()
    Pipeline(spark, spec).run(once=True)
    assert values(own_broker, "outlives-out") == [1, 2, 3], "each message once"


def streams(broker: BrokerProcess) -> list[str]:
    with blocking.connect(broker.address) as client:
        return list(client.fetch_metadata().streams)


@pytest.fixture
def host(spark: SparkSession) -> Iterator[PipelineHost]:
    said: list[str] = []
    found = PipelineHost(spark, load, said.append)
    yield found
    found.close()
    assert all(": " in line for line in said)


def test_a_host_runs_pipelines_that_fail_stop_and_start_alone(
    host: PipelineHost, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    create(own_broker, "hosted")
    publish(own_broker, "hosted", 1, 2)
    socket = tmp_path / "s"
    listening = HostSocket(host, socket)
    listening.open()
    try:
        with pytest.raises(StateError, match="a host is running at"):
            HostSocket(host, socket).open()
        good = host.start(write(tmp_path, "good", own_broker, "hosted"))
        bad = host.start(write(tmp_path, "bad", own_broker, "hosted", rule="offset < 1"))
        with pytest.raises(StateError, match="`good` is running in this host"):
            host.start(tmp_path / "good.yaml")
        assert bad.ended.wait(SECONDS_MAX)
        assert isinstance(bad.failure, ExpectationBroken) and bad.state is HostedState.FAILED
        eventually(lambda: good.state is HostedState.RUNNING, "the other one runs", SECONDS_MAX)
        publish(own_broker, "hosted", 3)
        eventually(lambda: values(own_broker, "good-out") == [1, 2, 3], "it goes on after the failure", SECONDS_MAX)

        # One that ends by itself, in the Spark that is there.
        write(tmp_path, "once", own_broker, "hosted")
        found = ask(socket, {"do": "once", "file": str(tmp_path / "once.yaml")})["pipeline"]
        assert (found["state"], found["messages"]) == ("finished", 3)
        assert ask(socket, {"do": "once", "file": str(tmp_path / "once.yaml")})["pipeline"]["messages"] == 0
        assert values(own_broker, "once-out") == [1, 2, 3]

        states = {one["name"]: (one["state"], one["error"]) for one in ask(socket, {"do": "status"})["pipelines"]}
        assert states["good"] == ("running", None) and states["once"] == ("finished", None)
        assert states["bad"][0] == "failed" and "`rule` is broken by 1 rows" in states["bad"][1]
        shown = run_command("pipeline", "hosted", "--socket", str(socket), "--json", home=tmp_path).ok().json
        assert {one["name"] for one in shown} == {"good", "bad", "once"}

        assert ask(socket, {"do": "stop", "name": "good"})["pipeline"]["state"] == "stopped"
        publish(own_broker, "hosted", 4)
        run_command(
            "pipeline", "hosted", "--socket", str(socket), "--start", str(tmp_path / "good.yaml"), home=tmp_path
        ).ok()
        eventually(lambda: values(own_broker, "good-out") == [1, 2, 3, 4], "it starts where it stopped", SECONDS_MAX)
        with pytest.raises(ExpectationBroken, match="`rule` is broken"):
            ask(socket, {"do": "once", "file": str(tmp_path / "bad.yaml")})
    finally:
        listening.close()
    assert not socket.exists()


def test_what_a_host_cannot_do_is_refused(
    host: PipelineHost, own_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = tmp_path / "s"
    with pytest.raises(Unavailable, match="no host of pipelines answers"):
        ask(socket, {"do": "status"})
    static = write(tmp_path, "static", own_broker, "x", more="spark: {spark.driver.memory: 4g}")
    with pytest.raises(InvalidConfig, match="can only be set when Spark starts") as refused:
        host.start(static)
    assert "--conf spark.driver.memory=4g" in (refused.value.hint or "")
    with pytest.raises(InvalidConfig):
        host.start(tmp_path / "none.yaml")
    with pytest.raises(StateError, match="has no pipeline `none`"):
        host.stop("none")
    listening = HostSocket(host, socket)
    listening.open()
    try:
        for request in ({"do": "dance"}, {"do": "stop"}, {"do": "start", "file": 3}, {}):
            with pytest.raises(BasculeError, match="a host has no request"):
                ask(socket, request)
        assert socket.stat().st_mode & 0o777 == 0o600, "only its user can open it"
    finally:
        listening.close()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert host_commands.socket_path(None) == tmp_path / "bascule-pipelines.sock"
    run_command("pipeline", "run", str(static), "--host", home=tmp_path).failed(2, "--once")
    run_command("pipeline", "run", str(static), "--once", "--host", "--master", "local", home=tmp_path).failed(
        2, "the host has its own"
    )
    run_command("pipeline", "host", "--master", "sc://a:1", home=tmp_path).failed(2, "a host has a Spark of its own")
