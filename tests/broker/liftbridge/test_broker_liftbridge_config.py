"""Configuration files, variables and flags of Liftbridge start a broker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.nats_server import NatsServer


def test_files_variables_and_flags_of_liftbridge_are_accepted(
    start_broker: StartBroker, nats_server: NatsServer
) -> None:
    namespace = unique_name("dotted")
    config = {
        "listen": 0,  # a port without a host
        "nats": {"servers": f"{nats_server.url} {nats_server.url}"},
        "clustering": {"server.id": "node-0.liftbridge.svc.cluster.local"},
        "clustering.namespace": f"my.{namespace}",
    }
    env = {"LIFTBRIDGE_CURSORS.STREAM.PARTITIONS": "1", "LIFTBRIDGE_LOGGING_RAFT": "true"}
    arguments = ("-level=debug", "--raft-bootstrap-seed=true", "-nats-servers", nats_server.url)
    broker = start_broker(config, env=env, arguments=arguments, seed=False)
    with closing(broker.api()) as api:
        (server,) = api.FetchMetadata().brokers
        assert server.id == "node-0-liftbridge-svc-cluster-local"
        assert server.host == "127.0.0.1"
        api.CreateStream(name="s", subject=unique_name("s"))
        api.SetCursor(stream="s", partition=0, cursorId="c", offset=3)
        assert api.stream("__cursors").subject == f"my-{namespace}.cursors"
    said = broker.said()
    for key in ("listen", "clustering.server.id", "clustering.namespace"):
        assert f"`{key}` is `" in said, said


def test_an_open_host_says_exactly_what_to_add(tmp_path: Path, nats_server: NatsServer) -> None:
    broker = BrokerProcess(tmp_path, nats_url=nats_server.url, config={"host": "0.0.0.0"})
    broker.config.pop("listen")
    broker.launch()
    assert broker.wait() == 2
    said = broker.said()
    assert "`host` = 0.0.0.0" in said
    assert "add this line to the configuration: `security.insecure: true`" in said


@pytest.mark.parametrize("flag", ["--raft-bootstrap-seed=maybe", "-zzz"])
def test_a_wrong_flag_is_still_refused(start_broker: StartBroker, flag: str) -> None:
    broker = start_broker(arguments=(flag,), seed=False, launch_only=True)
    assert broker.wait() == 2
    assert "raft.bootstrap.seed" in broker.said() or "-zzz" in broker.said()
