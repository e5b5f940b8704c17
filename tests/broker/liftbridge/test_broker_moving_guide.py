"""The guide `moving-from-liftbridge.md`, from top to bottom: its commands run on the directory of a Liftbridge server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import ROOT, clean_environ
from tests.support.liftbridge_files import (
    GoMessage,
    GoStream,
    create_stream,
    write_partition,
    write_raft,
    write_server,
)
from tests.support.nats_server import NatsServer
from tests.support.quick_programs import bascule_command
from tests.support.waiting import PATIENCE_SECONDS

GUIDE: Final = ROOT / "docs" / "guides" / "moving-from-liftbridge.md"
NOW_NS: Final = 1_700_000_000_000_000_000
OLD_FILE: Final = "listen: {port}\nstreams.retention.max.age: 0\nclustering.server.id: node.one\n"


def blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Shell:
    """Runs the blocks of a guide one after the other, as a reader types them."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        tools = directory / "bin"
        tools.mkdir()
        bascule_command(tools)
        home = {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
        home |= {
            "BASCULE_HTTP_ENABLED": "false",
            "BASCULE_FLIGHT_ENABLED": "false",
        }  # their ports follow the one for gRPC
        self._environ = clean_environ({**environ, **home, "PATH": f"{tools}:{os.environ['PATH']}"})
        self._directory = directory

    def run(self, code: str) -> str:
        said = self._directory / "said"
        with said.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", code],
                cwd=self._directory,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                process.wait(2 * PATIENCE_SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also the brokers that the block started
                process.wait()
        text = said.read_text("utf-8", "replace")
        assert process.returncode == 0, f"{code}\n{text}"
        return text


@pytest.fixture
def shell(tmp_path: Path, nats_server: NatsServer, start_broker: StartBroker) -> Shell:
    """With a Liftbridge directory, and a broker in the place of the Liftbridge server that the user goes back to."""
    old = write_server(tmp_path / "liftbridge")
    subject = unique_name("shop")
    messages = [
        GoMessage(n, b"order %d" % n, b"k", NOW_NS + n, headers={b"subject": subject.encode()}) for n in range(60)
    ]
    write_partition(old, "orders", 0, {0: messages})
    write_raft(old, [create_stream(GoStream("orders", subject, 1, {3: 0}))])
    port = free_port()
    (tmp_path / "liftbridge.yaml").write_text(OLD_FILE.format(port=port))
    went_back = start_broker()
    with closing(went_back.api()) as api:
        api.CreateStream(name="orders", subject=unique_name("back"))
    return Shell(
        tmp_path,
        {
            "OLD_DATA": str(old),
            "OLD_CONFIG": str(tmp_path / "liftbridge.yaml"),
            "NEW_DATA": str(tmp_path / "bascule"),
            "NATS_URL": nats_server.url,
            "OLD_SERVER": went_back.address,
            "PORT": str(port),
        },
    )


def test_the_commands_of_the_guide_run_in_their_order(shell: Shell, tmp_path: Path, nats_server: NatsServer) -> None:
    places, check, dry_run, copy, start, replicas, back = blocks()
    assert all(f"export {name}=" in places for name in ("OLD_DATA", "OLD_CONFIG", "NEW_DATA", "NATS_URL"))
    assert "is valid" in shell.run(check)
    assert "60 messages of 1 stream" in shell.run(dry_run)
    assert not (tmp_path / "bascule").exists()
    assert "Start a broker there" in shell.run(copy)
    # One session: the broker ends with its shell, and listens where the commands look for it. A second broker joins for two replicas.
    at = 'bascule() { command bascule "$@" -s "127.0.0.1:$PORT"; }\n'
    own = start.replace("bascule server ", 'command bascule server --port "$PORT" --id first ')
    second = 'command bascule server --port 0 --id second -d second --nats-servers "$NATS_URL" > second.log 2>&1 &\n'
    joined = "until bascule cluster status --timeout 60s | grep -q second; do sleep 0.2; done\n"
    more = replicas.replace("--replication-factor 3", "--replication-factor 2")
    news = "bascule publish orders a b c d e\n"
    first, last = back.splitlines()
    shell.run(at + own + second + joined + more + news + f"{first}\ncommand {last}\n")
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == 5
    assert nats_server.is_running
