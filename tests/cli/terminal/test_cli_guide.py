"""The guide's commands do what it says, on a real broker."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.cli.command_line import environ
from tests.support.broker_fixtures import StartBroker
from tests.support.quick_programs import bascule_command

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"<!-- with a broker -->\n<!-- not run -->\n```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_guide_s_commands_run(start_broker: StartBroker, home: Path, tmp_path: Path) -> None:
    broker = start_broker({"cursors.stream.partitions": 1})
    blocks = BLOCK.findall((ROOT / "docs" / "guides" / "command-line.md").read_text("utf-8"))
    assert len(blocks) == 7
    bascule_command(tmp_path)
    script = f"bascule context add here --server {broker.address} --timeout 60s\n" + "".join(blocks)
    env = environ(home)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=400,
        env={**env, "PATH": f"{tmp_path}:{env['PATH']}"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    for words in ("Created stream `parcels`", "Published 1,000 messages", "All checks passed"):
        assert words in done.stdout, done.stdout
