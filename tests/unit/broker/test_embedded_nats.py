"""The embedded nats-server: there when it is needed, back when it dies, gone when the broker is gone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bascule import limits
from bascule.broker.embedded_nats import EmbeddedNats, EmbeddedNatsOptions, find_binary, read_version, render_config
from bascule.errors import OperatorError
from tests.support.nats_server import NatsServer
from tests.unit.net.nats_helpers import LOOPS, linked, run, until


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.005)


def test_it_starts_serves_and_stops(tmp_path: Path, loop: str) -> None:
    async def main() -> None:
        options = EmbeddedNatsOptions(directory=tmp_path / "nats", port=0, payload_bytes_max=3 * limits.MIB)
        nats = EmbeddedNats(options)
        await nats.start()
        pid = nats.pid
        assert pid is not None
        async with linked(nats.url) as watched:
            assert watched.link.max_payload == 3 * limits.MIB + limits.NATS_PAYLOAD_OVERHEAD_BYTES
            await watched.link.flush()
        await nats.stop()
        assert nats.pid is None
        assert not is_running(pid)

    run(loop, main())


def test_one_that_dies_comes_back_on_its_port_and_links_come_back_to_it(tmp_path: Path, loop: str) -> None:
    async def main() -> None:
        reasons: list[str] = []
        nats = EmbeddedNats(EmbeddedNatsOptions(directory=tmp_path / "nats", port=0), reasons.append)
        await nats.start()
        url, pid = nats.url, nats.pid
        assert pid is not None
        async with linked(url) as watched:
            os.kill(pid, signal.SIGKILL)
            await until(lambda: nats.restarts == 1)
            assert nats.url == url
            assert nats.pid != pid
            await until(lambda: watched.link.connected)
            await watched.link.flush()
        assert len(reasons) == 1
        assert "-9" in reasons[0]
        await nats.stop()

    run(loop, main())


def test_a_port_that_is_taken_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        nats = EmbeddedNats(EmbeddedNatsOptions(directory=tmp_path / "mine", port=port))
        with pytest.raises(OperatorError, match="address already in use") as failed:
            await nats.start()
        assert "nats.embedded.port" in str(failed.value.hint)
        await nats.stop()

    with NatsServer(tmp_path / "other") as other:
        run("asyncio", main(other.port))


def test_the_users_configuration_is_all_it_gets(tmp_path: Path) -> None:
    config = tmp_path / "my.conf"
    config.write_text('listen: "127.0.0.1:-1"\nmax_payload: 12345\n')

    async def main() -> None:
        nats = EmbeddedNats(EmbeddedNatsOptions(directory=tmp_path / "nats", config=config, port=1))
        await nats.start()
        url, pid = nats.url, nats.pid
        async with linked(url) as watched:
            assert watched.link.max_payload == 12345
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: nats.restarts == 1)
        assert nats.url == url
        await nats.stop()

    run("asyncio", main())


def test_a_configuration_it_does_not_understand_is_an_error(tmp_path: Path) -> None:
    config = tmp_path / "my.conf"
    config.write_text("no_such_setting: 1\n")

    async def main() -> None:
        nats = EmbeddedNats(EmbeddedNatsOptions(directory=tmp_path / "nats", config=config))
        with pytest.raises(OperatorError, match="no_such_setting") as failed:
            await nats.start()
        assert "nats.embedded.config" in str(failed.value.hint)
        await nats.stop()

    run("asyncio", main())


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")

    async def main() -> None:
        with pytest.raises(OperatorError, match="cannot write"):
            await EmbeddedNats(EmbeddedNatsOptions(directory=file / "nats", port=0)).start()

    run("asyncio", main())


PARENT = """
import asyncio, sys
from pathlib import Path
from bascule.broker.embedded_nats import EmbeddedNats, EmbeddedNatsOptions

async def main():
    nats = EmbeddedNats(EmbeddedNatsOptions(directory=Path(sys.argv[1]), port=0))
    await nats.start()
    print(nats.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_is_gone_when_the_broker_is_gone(tmp_path: Path, how: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PARENT, str(tmp_path / "nats")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(how)
        parent.wait()
    wait_until_gone(pid)


def test_a_binary_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperatorError, match="not installed"):
        find_binary()


def test_its_log_is_ours_when_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(logs: bool) -> None:
        nats = EmbeddedNats(EmbeddedNatsOptions(directory=tmp_path / "nats", port=0, logs=logs))
        await nats.start()
        await nats.stop()

    with caplog.at_level(logging.DEBUG, "bascule"):
        run("asyncio", main(False))
        assert "Server is ready" not in caplog.text
        run("asyncio", main(True))
        assert "Server is ready" in caplog.text


def test_older_servers_get_what_they_understand(tmp_path: Path) -> None:
    options = EmbeddedNatsOptions(directory=tmp_path, port=0)
    version = read_version(find_binary())
    assert version >= (2, 10)
    file = tmp_path / "nats.conf"
    file.write_text(render_config(options, version))
    subprocess.run([find_binary(), "-t", "-c", str(file)], check=True, capture_output=True)
    assert "write_timeout" in render_config(options, (2, 12, 0))
    assert "write_timeout" not in render_config(options, (2, 11, 9))
    assert "no_fast_producer_stall" not in render_config(options, (2, 10, 20))
    assert "write_timeout" not in render_config(options, read_version("/does/not/exist"))
    assert 'listen: "[::1]:4222"' in render_config(EmbeddedNatsOptions(directory=tmp_path, host="::1"), ())
    assert json.loads(json.dumps(version)) == list(version)


def test_stopping_while_it_is_being_restarted_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        nats = EmbeddedNats(EmbeddedNatsOptions(directory=tmp_path / "nats", port=0))
        await nats.start()
        pid = nats.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while (again := nats.pid) in (None, pid):
                await asyncio.sleep(0.001)
        await nats.stop()
        assert again is not None
        assert not is_running(again)

    run("asyncio", main())
