"""grpc-js from npm: small windows, small frames, and a client nobody here wrote."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.api_client import PROTO
from tests.support.broker_fixtures import StartBroker
from tests.support.external_clients import node_modules, run

PACKAGES = ("@grpc/grpc-js@^1.12", "@grpc/proto-loader@^0.7")


@pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="NOT TESTED: node and npm are not installed, so nothing is known about JavaScript clients",
)
def test_a_javascript_program_publishes_and_reads(start_broker: StartBroker) -> None:
    modules = node_modules(PACKAGES) / "node_modules"
    broker = start_broker()
    script = Path(__file__).with_name("grpc_js_client.js")
    environ = {**os.environ, "NODE_PATH": str(modules)}
    said = run(["node", str(script), broker.address, str(PROTO)], seconds=180, env=environ)
    found = json.loads(said.splitlines()[-1])
    code, text = found.pop("unknown")
    assert (code, text.startswith("No such partition")) == (5, True), text
    assert found == {
        "again": 6,
        "ack": {"stream": "js", "offset": 0, "msgSubject": "js.subject"},
        "noDeadline": None,
        "small": 3000,
        "read": 3002,
        "inOrder": True,
        "header": "1",
        "large": 60,
        "largeWhole": True,
        "deleted": 5,
        "brokers": [broker.address],
        "deadline": 4,
    }
