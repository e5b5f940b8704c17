"""python-liftbridge 0.0.7 from PyPI, the oldest client that still works."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.broker_fixtures import StartBroker
from tests.support.external_clients import python_with, run

REQUIREMENTS = ("python-liftbridge==0.0.7", "protobuf<3.21", "setuptools<80", "grpcio>=1.70")


def test_what_its_readme_shows_works(start_broker: StartBroker) -> None:
    python = python_with("python-liftbridge", REQUIREMENTS)
    broker = start_broker()
    script = Path(__file__).with_name("python_liftbridge_smoke.py")
    environ = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    environ.pop("PYTHONPATH", None)
    assert "smoke passed" in run([str(python), str(script), broker.address], seconds=180, env=environ)
