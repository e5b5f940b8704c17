"""The Python of the client's guides runs, page by page, against a broker of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess, clean_environ

GUIDES = Path(__file__).resolve().parents[3] / "docs" / "guides"
PAGES = ("quickstart.md", "client.md", "publishing-over-nats.md", "exactly-once-publishing.md", "consumer-groups.md")
SETTINGS = {"cursors.stream.partitions": 1}
PATIENCE = """
import bascule
for make in (bascule.connect, bascule.blocking.connect):
    make.__kwdefaults__["timeout"] = 60.0
"""
"""In front of the code: a machine that runs tests is busier than a reader's."""

_BLOCK = re.compile(r"^<!-- not run -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[str]:
    return _BLOCK.findall((GUIDES / page).read_text("utf-8"))


def at(broker: BrokerProcess, code: str) -> str:
    """The code with the addresses of this broker and its NATS server."""
    nats = urlsplit(broker.nats_url)
    code = code.replace("nats://127.0.0.1:4222", broker.nats_url)
    code = code.replace('("127.0.0.1", 4222)', f'("{nats.hostname}", {nats.port})')
    return code.replace("127.0.0.1:9292", broker.address)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_guide_runs_from_top_to_bottom(start_broker: StartBroker, tmp_path: Path, page: str) -> None:
    broker = start_broker(SETTINGS, embedded=True)
    environ = clean_environ({"PYTHONPATH": os.pathsep.join(sys.path)})
    for code in blocks(page):
        result = subprocess.run(
            [sys.executable, "-W", "error", "-"],
            input=PATIENCE + at(broker, code),
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert result.returncode == 0, f"{code}\n{result.stdout}\n{result.stderr}"
        assert result.stdout, f"a block that prints nothing shows nothing:\n{code}"


def test_every_page_has_code() -> None:
    assert all(len(blocks(page)) >= 2 for page in PAGES)
