"""`pip install bascule`, without extras, is enough for every command but those of servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.command_line import Outcome, environ
from tests.support.broker_fixtures import MakeStream
from tests.support.broker_process import BrokerProcess

BLOCKER = """
import sys

class Blocker:
    extras = {"casbin", "cryptography", "google", "grpc", "nats", "uvloop", "yaml", "zstandard", "pyarrow", "pyspark"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.extras:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from bascule.cli.main import main
main()
"""


def light(home: Path, *arguments: str) -> Outcome:
    command = [sys.executable, "-c", BLOCKER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environ(home), check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_commands_need_no_extras(connected: Path, make_stream: MakeStream, broker: BrokerProcess) -> None:
    name = make_stream().name
    light(connected, "publish", name, "a", "b").ok()
    light(connected, "publish", name, "c", "--nats", broker.nats_url).ok()
    assert light(connected, "subscribe", name, "-e", "--from", "1h").ok().lines == ["a", "b", "c"]
    light(connected, "group", "consume", name, name, "-n", "1").ok()
    light(connected, "doctor", "--nats", broker.nats_url, "--write").ok()
    light(connected, "bench", "latency", "-n", "3").ok()
