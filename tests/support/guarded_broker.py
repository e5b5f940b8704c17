"""A broker behind TLS, and policies for it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.api_client import Api
from tests.support.broker_fixtures import StartBroker
from tests.support.certificates import Authority
from tests.support.waiting import eventually

MODEL: Final = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.sub == p.sub && r.obj == p.obj && r.act == p.act
"""
PREFIX_MODEL: Final = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.sub == p.sub && keyMatch(r.obj, p.obj) && keyMatch(r.act, p.act)
"""
"""A resource `bobs*` covers every resource that begins with `bobs`."""


class Guarded:
    """A broker behind TLS. The plain door it has is closed, so readiness is asked with a certificate."""

    def __init__(self, start_broker: StartBroker, directory: Path, config: dict[str, Any]) -> None:
        directory.mkdir()
        self.authority = Authority(directory)
        server = self.authority.issue("server")
        self.broker = start_broker(
            {"tls.cert": str(server.cert), "tls.key": str(server.key), **self._with_files(config)}, launch_only=True
        )
        self.admin = self.authority.issue("admin")
        self.admin_api = eventually(self._ready, "the broker serves")

    def _with_files(self, config: dict[str, Any]) -> dict[str, Any]:
        return {key: str(self.authority.file) if value == "the authority" else value for key, value in config.items()}

    def _ready(self) -> Api | None:
        assert self.broker.is_running, self.broker.tail()
        if not self.broker.addresses_file.exists():
            return None

        self.broker.address = json.loads(self.broker.addresses_file.read_text())["grpc"]
        self.broker.nats_url = json.loads(self.broker.addresses_file.read_text())["nats"]
        return self.api("admin")

    def api(self, common_name: str | None) -> Api:
        own = self.admin if common_name == "admin" else self.authority.issue(common_name)
        return Api(self.broker.address, self.authority.credentials(own))


class Policed(Guarded):
    """Every client needs a certificate, and a line of the policy for what it does."""

    def __init__(
        self,
        start_broker: StartBroker,
        directory: Path,
        model: str,
        lines: Sequence[str],
        config: dict[str, Any] | None = None,
    ) -> None:
        directory.mkdir()
        self.policy, model_file = directory / "policy.csv", directory / "model.conf"
        model_file.write_text(model)
        self.write(lines)
        given = {
            "tls.client.auth.enabled": True,
            "tls.client.auth.ca": "the authority",
            "tls.client.authz.enabled": True,
            "tls.client.authz.model": str(model_file),
            "tls.client.authz.policy": str(self.policy),
        }
        super().__init__(start_broker, directory / "tls", given | (config or {}))

    def write(self, lines: Sequence[str]) -> None:
        self.policy.write_text("".join(f"p, {line}\n" for line in lines))

    def reload(self) -> None:
        """SIGHUP, and wait until the broker has read its files again."""
        said = len(self.broker.said())
        os.kill(self.broker.pid, signal.SIGHUP)
        eventually(lambda: "policy was read again" in self.broker.said()[said:], "the policy was read again")
