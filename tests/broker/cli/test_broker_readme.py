"""The README's client code, as it stands there, against a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]


def test_the_code_in_the_readme_publishes_and_reads(start_broker: StartBroker) -> None:
    broker = start_broker()
    (code,) = re.findall(
        r"^```python\n(import asyncio.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    # Somewhere else, and on a machine that may be busier than a reader's.
    assert '"127.0.0.1:9292"' in code
    code = code.replace('"127.0.0.1:9292"', f'"{broker.address}", timeout={PATIENCE_SECONDS}')
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        shown = []
        for line in lines:
            shown.append(line)
            if "b'lamp'" in line:
                break
        process.kill()
    assert any("offset=0" in line for line in shown)
    assert shown[-1].split()[:2] == ["0", "orders.*"]


def test_the_readme_s_broker_runs_the_guide_to_consumer_groups(tmp_path: Path) -> None:
    """No setting but an address: cursors and groups work as the broker comes."""
    broker = BrokerProcess(tmp_path)
    broker.config = {key: broker.config[key] for key in broker.config if not key.startswith("cursors.")}
    broker.start()
    try:
        guide = (ROOT / "docs" / "guides" / "consumer-groups.md").read_text("utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
        assert len(blocks) == 2
        shown = []
        for code in blocks:
            assert '"127.0.0.1:9292"' in code
            code = code.replace('"127.0.0.1:9292"', f'"{broker.address}", timeout={PATIENCE_SECONDS}')
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
            )
            assert (done.returncode, done.stderr) == (0, ""), done
            shown.append(done.stdout)
    finally:
        broker.kill()
    assert shown[0] == "100 jobs done\n"
    assert "\n0 0\n" in shown[1]
