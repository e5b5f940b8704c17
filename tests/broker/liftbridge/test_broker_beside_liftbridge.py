"""A broker on a NATS system that a Go Liftbridge cluster uses, too: neither disturbs the other."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.support.api_client import pb
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.go_liftbridge import GoLiftbridge
from tests.support.nats_client import NatsClient
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually

LIFTBRIDGE_DEFAULT: Final = "liftbridge-default"
OLD_DATA: Final = Path(__file__).parents[1] / "streams" / "data_directory"
SECRET: Final = "0123456789abcdef0123456789abcdef"


def without_namespace(directory: Path, nats: NatsServer, *, seed: bool = True) -> BrokerProcess:
    """A broker with the default namespace."""
    return BrokerProcess(directory, nats_url=nats.url, seed=seed)


def test_with_default_settings_both_run(tmp_path: Path, nats_server: NatsServer) -> None:
    broker = without_namespace(tmp_path, nats_server)
    with GoLiftbridge(nats_server.url, LIFTBRIDGE_DEFAULT) as liftbridge, NatsClient(nats_server.url) as spy:
        spy.subscribe(f"{LIFTBRIDGE_DEFAULT}.>")
        try:
            broker.start()
            with closing(broker.api()) as api:
                api.CreateStream(name="orders", subject="orders")
                assert api.publish("orders", b"x", ackPolicy=pb.ALL).offset == 0
            liftbridge.check_undisturbed()
            assert {one.payload for one in spy.pending()} <= {b"go.server-1"}
        finally:
            broker.kill()


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "sealed"])
@pytest.mark.parametrize("seed", [True, False], ids=["seed", "joining"])
def test_a_namespace_of_liftbridge_is_recognised_named_and_left_alone(
    start_broker: StartBroker, nats_server: NatsServer, secret: str | None, seed: bool
) -> None:
    namespace = unique_name("taken")
    config = {"clustering.namespace": namespace, **({"cluster.secret": secret} if secret else {})}
    with GoLiftbridge(nats_server.url, namespace) as liftbridge:
        broker = start_broker(config, seed=seed, launch_only=True)
        assert broker.wait() != 0
        said = broker.said()
        for word in (f"`{namespace}`", "`go.server-1`", "go-host:9292", "clustering.namespace"):
            assert word in said, said
        liftbridge.check_undisturbed()
    assert not (broker.data / "raft").exists()


def test_a_restart_recognises_a_liftbridge_cluster_that_came_later(
    start_broker: StartBroker, nats_server: NatsServer
) -> None:
    broker = start_broker()
    namespace = str(broker.config["clustering.namespace"])
    with GoLiftbridge(nats_server.url, namespace) as liftbridge:
        eventually(lambda: "`go.server-1`" in broker.said(), "the broker names the Liftbridge server")
        with closing(broker.api()) as api:
            api.CreateStream(name="orders", subject="orders")
            assert api.publish("orders", b"x").offset == 0
        liftbridge.check_undisturbed()
        assert broker.stop() == 0
        broker.launch()
        assert broker.wait() != 0
        liftbridge.check_undisturbed()
    broker.start()


def test_a_data_directory_of_the_former_default_namespace_keeps_it(tmp_path: Path, nats_server: NatsServer) -> None:
    broker = without_namespace(tmp_path / "old", nats_server)
    shutil.copytree(OLD_DATA, broker.data)
    broker.env["BASCULE_ENCRYPTION_KEY"] = SECRET
    try:
        with NatsClient(nats_server.url) as spy:
            spy.subscribe(f"{LIFTBRIDGE_DEFAULT}.>")
            broker.start()
            assert spy.pending()
        with closing(broker.api()) as api:
            assert len(api.read("orders", 0)) == 25
            assert api.FetchCursor(stream="orders", partition=0, cursorId="reader").offset == 7
    finally:
        broker.kill()


def test_a_data_directory_keeps_the_namespace_that_it_was_used_with(
    start_broker: StartBroker, nats_server: NatsServer
) -> None:
    broker = start_broker()
    namespace = str(broker.config.pop("clustering.namespace"))
    assert broker.stop() == 0
    with NatsClient(nats_server.url) as spy:
        spy.subscribe("bascule-default.>")
        broker.start()
        assert spy.pending() == []
    assert f"`{namespace}`" in broker.said()
