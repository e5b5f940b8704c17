"""TLS, client certificates and permissions: who is let in, and what who is not is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule import errors
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Certificate
from tests.support.on_loop import on_loop
from tests.support.waiting import eventually

MODEL = """
[request_definition]
r = sub, obj, act

[policy_definition]
p = sub, obj, act

[policy_effect]
e = some(where (p.eft == allow))

[matchers]
m = r.sub == p.sub && (r.obj == p.obj || p.obj == "*") && (r.act == p.act || p.act == "*")
"""


class Guarded:
    def __init__(self, start_broker: StartBroker, directory: Path, config: dict[str, Any]) -> None:
        directory.mkdir()
        self.authority = Authority(directory)
        server = self.authority.issue("server")
        known = {key: str(self.authority.file) if value == "ca" else value for key, value in config.items()}
        settings = {"tls.cert": str(server.cert), "tls.key": str(server.key), **known}
        self.broker: BrokerProcess = start_broker(settings, launch_only=True)
        self.address = eventually(self._address, "the broker serves")

    def _address(self) -> str | None:
        assert self.broker.is_running, self.broker.tail()
        file = self.broker.addresses_file
        return json.loads(file.read_text())["grpc"] if file.exists() else None

    def options(self, own: Certificate | None = None) -> bascule.TlsOptions:
        if own is None:
            return bascule.TlsOptions(ca=self.authority.file)
        return bascule.TlsOptions(ca=self.authority.file, cert=own.cert, key=own.key)


@on_loop
async def test_who_trusts_the_server_and_who_does_not(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Guarded(start_broker, tmp_path / "tls", {})
    async with bascule.connect(guarded.address, tls=guarded.options(), timeout=60) as client:
        await client.create_stream("s")
        await client.publish_many("s", [bytes(500)] * 2000)
        found = [message.offset async for message in client.subscribe("s", start="earliest", stop="latest")]
        assert found == list(range(2000))
    with pytest.raises(bascule.Unavailable, match="TLS failed"):
        await bascule.connect(guarded.address, tls=True, timeout=60)
    with pytest.raises(bascule.Unavailable, match="no broker can be reached"):
        await bascule.connect(guarded.address, timeout=60)


@on_loop
async def test_certificates_of_clients_and_what_they_may(start_broker: StartBroker, tmp_path: Path) -> None:
    model, policy = tmp_path / "model.conf", tmp_path / "policy.csv"
    model.write_text(MODEL)
    policy.write_text(
        "p, admin, *, *\np, reader, *, FetchMetadata\np, reader, s, Subscribe\np, reader, s, FetchPartitionMetadata\n"
    )
    config = {
        "tls.client.auth.enabled": True,
        "tls.client.auth.ca": "ca",
        "tls.client.authz.enabled": True,
        "tls.client.authz.model": str(model),
        "tls.client.authz.policy": str(policy),
    }
    guarded = Guarded(start_broker, tmp_path / "tls", config)
    admin, reader = guarded.authority.issue("admin"), guarded.authority.issue("reader")
    async with bascule.connect(guarded.address, tls=guarded.options(admin), timeout=60) as client:
        await client.create_stream("s")
        await client.publish("s", b"x")
    async with bascule.connect(guarded.address, tls=guarded.options(reader), timeout=60) as client:
        found = [message.value async for message in client.subscribe("s", start="earliest", stop="latest")]
        assert found == [b"x"]
        with pytest.raises(errors.PermissionDenied):
            await client.publish("s", b"y")
        with pytest.raises(errors.PermissionDenied):
            await client.publish("s", b"y", ack="none")
        with pytest.raises(errors.PermissionDenied, match="not authorized"):
            await client.delete_stream("s")
    with pytest.raises(bascule.Unavailable):
        await bascule.connect(guarded.address, tls=guarded.options(), timeout=60)
