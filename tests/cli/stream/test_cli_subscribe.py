"""`bascule subscribe`: from where to where, how it looks, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command_line import COMMAND, Run, Terminal, environ, read_exactly, run, start
from tests.support.api_client import Api
from tests.support.broker_fixtures import MakeStream, StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def ten(make_stream: MakeStream, bascule: Run) -> str:
    """A stream of ten messages, `0` to `9`."""
    name = make_stream().name
    bascule("publish", name, *map(str, range(10))).ok()
    return name


# ── positions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--no-follow", "0123456789"),
        ("-e --from earliest", "0123456789"),
        ("-e --from latest", "9"),
        ("-e --from 7", "789"),
        ("-e --from -2", "89"),
        ("-e --from -99", "0123456789"),
        ("--from 3 --to 5", "345"),
        ("--to 1", "01"),
        ("--from 4 --count 2", "45"),
        ("-n 3", "012"),
        ("-e --from 1h", "0123456789"),
        ("-e --from 2020-01-01", "0123456789"),
        ("--to 1h", ""),
        ("--reverse", "9876543210"),
        ("--reverse -n 2", "98"),
        ("--reverse --from 4 --to 2", "432"),
        ("-e -p 0", "0123456789"),
        ("-e -p all --replica", "0123456789"),
    ],
)
def test_from_where_to_where(bascule: Run, ten: str, arguments: str, expected: str) -> None:
    assert bascule("subscribe", ten, *arguments.split()).ok().lines == list(expected)


def test_new_messages_only(connected: Path, ten: str, bascule: Run) -> None:
    with start("subscribe", ten, "--from", "new", "-n", "1", home=connected) as process:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None:
            assert time.monotonic() < deadline
            bascule("publish", ten, "new").ok()
            time.sleep(0.1)
        assert process.stdout is not None
        assert process.stdout.read() == b"new\n"
        assert process.returncode == 0


def test_it_follows_what_comes(connected: Path, ten: str, bascule: Run) -> None:
    with start("subscribe", ten, "--from", "9", home=connected) as process:
        assert process.stdout is not None
        assert read_exactly(process.stdout, 2) == b"9\n"
        bascule("publish", ten, "more").ok()
        assert read_exactly(process.stdout, 5) == b"more\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_many_partitions(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=3).name
    bascule("publish", name, *"abcdef", "--partitioner", "round-robin").ok()
    assert sorted(bascule("subscribe", name, "-e").ok().lines) == list("abcdef")
    assert bascule("subscribe", name, "-e", "-p", "1").ok().lines == ["b", "e"]
    assert sorted(bascule("subscribe", name, "-e", "-p", "0,2").ok().lines) == ["a", "c", "d", "f"]
    assert sorted(bascule("subscribe", name, "-e", "--from", "-1").ok().lines) == ["d", "e", "f"]
    assert len(bascule("subscribe", name, "-n", "4").ok().lines) == 4


def test_one_readonly_partition_does_not_end_the_others(connected: Path, bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=2).name
    bascule("publish", name, "a", "b", "--partitioner", "round-robin").ok()
    bascule("stream", "readonly", name, "-p", "0").ok()
    with start("subscribe", name, home=connected) as process:
        assert process.stdout is not None
        assert sorted(read_exactly(process.stdout, 4).split()) == [b"a", b"b"]
        bascule("publish", name, "c", "-p", "1").ok()
        assert read_exactly(process.stdout, 2) == b"c\n"
        process.kill()


# ── how it looks ─────────────────────────────────────────────────────────────────────────────────


def test_formats(bascule: Run, ten: str) -> None:
    assert bascule("subscribe", ten, "-n1", "--template", r"{offset}={value}\n").ok().out == "0=0\n"
    assert [json.loads(line)["offset"] for line in bascule("subscribe", ten, "-e", "--json").ok().lines] == list(
        range(10)
    )
    assert "|0|" in bascule("subscribe", ten, "-n1", "--format", "hex").ok().out
    assert "  0\n" in bascule("subscribe", ten, "-n1", "--format", "pretty").ok().out


def test_on_a_terminal_it_is_for_the_eye(connected: Path, ten: str) -> None:
    with Terminal("subscribe", ten, "--from", "8", home=connected) as terminal:
        terminal.read_until("  9\n")
        assert "\x1b[36m8\x1b[0m" in terminal.raw
        terminal.press_ctrl_c()
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.shown
        assert "rror" not in terminal.shown


def test_an_empty_stream_on_a_terminal(connected: Path, make_stream: MakeStream) -> None:
    with Terminal("subscribe", make_stream().name, "-e", home=connected) as terminal:
        assert terminal.wait() == 0
        assert terminal.shown == "No messages.\n"


# ── how it ends ──────────────────────────────────────────────────────────────────────────────────


def test_a_reader_that_has_seen_enough(connected: Path, ten: str) -> None:
    """`bascule subscribe … | head -2`, while the stream goes on."""
    script = f'{" ".join(COMMAND)} subscribe {ten} --template "$(printf %01000d 0){{value}}\\n" | head -c 5; echo "${{PIPESTATUS[0]}}"'
    with start("publish", ten, "x", "--repeat", "100000", "--rate", "500", home=connected) as publisher:
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=180, env=environ(connected), check=False
        )
        publisher.kill()
    assert done.stdout == "000000\n"
    assert done.stderr == ""


def test_a_reader_that_is_gone_at_the_end(connected: Path, ten: str) -> None:
    script = f"{' '.join(COMMAND)} stream list | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=180, env=environ(connected), check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert ten


def test_the_end_of_a_readonly_stream(bascule: Run, ten: str) -> None:
    bascule("stream", "readonly", ten).ok()
    assert len(bascule("subscribe", ten).ok().lines) == 10


def test_a_paused_stream(bascule: Run, ten: str) -> None:
    bascule("stream", "pause", ten).ok()
    bascule("subscribe", ten).failed(3, "paused", "--resume")
    assert len(bascule("subscribe", ten, "-e", "--resume").ok().lines) == 10


def test_a_stream_deleted_meanwhile(connected: Path, ten: str, api: Api) -> None:
    with start("subscribe", ten, "--from", "9", home=connected) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_exactly(process.stdout, 2)
        api.DeleteStream(name=ten)
        assert process.wait(PATIENCE_SECONDS) == 3
        said = process.stderr.read().decode()
        assert "deleted" in said
        assert "Traceback" not in said


def test_it_lives_through_a_restart(start_broker: StartBroker, home: Path, call: Run) -> None:
    broker = start_broker()
    address = broker.address
    broker.config["listen"] = address
    call("stream", "create", "s", "-s", address).ok()
    call("publish", "s", "a", "-s", address).ok()
    with start("subscribe", "s", "-s", address, "--timeout", "60s", home=home) as process:
        assert process.stdout is not None
        assert read_exactly(process.stdout, 2) == b"a\n"
        broker.restart()
        call("publish", "s", "b", "-s", address).ok()
        assert read_exactly(process.stdout, 2) == b"b\n"
        process.kill()


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_wrong_options_are_named(bascule: Run, ten: str) -> None:
    bascule("subscribe", ten, "--from", "yesterday").failed(2, "`--from`", "`yesterday`", "`earliest`")
    bascule("subscribe", ten, "--to", "new").failed(2, "`--to`", "`new`", "`latest`")
    bascule("subscribe", ten, "--from", "5", "--to", "3").failed(2, "`--to`", "`3`")
    bascule("subscribe", ten, "--to", "2999-01-01").failed(2, "2999")
    bascule("subscribe", ten, "-p", "1").failed(2, "no partition 1", "only partition 0")
    bascule("subscribe", ten, "-p", "x").failed(2, "`--partition`", "`x`", "`all`")
    bascule("subscribe", ten, "--count", "0").failed(2, "'--count'", "`0`")
    bascule("subscribe", ten, "--format", "xml").failed(2, "`--format`", "`xml`", "`json`")
    bascule("subscribe", ten, "--format", "raw", "--json").failed(2, "--format", "--json", "choose one")
    bascule("subscribe", ten, "--template", "{no}").failed(2, "`--template`", "`{no}`")
    bascule("subscribe", ten, "--reverse", "--from", "new").failed(2, "`--from`", "`new`")
    bascule("subscribe", ten, "--reverse", "--from", "-3").failed(2, "`-3`", "--count 3")


def test_unknown_stream_and_wrong_address(bascule: Run) -> None:
    bascule("subscribe", "no-such").failed(3, "`no-such`", "bascule stream list")
    bascule("subscribe", "s", "-s", "127.0.0.1:1", "--timeout", "1s").failed(5, "127.0.0.1:1", "bascule doctor")


def test_a_server_that_is_no_broker(home: Path) -> None:
    code = "import socket,sys; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1], flush=True); c=s.accept()[0]; "
    code += "c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        outcome = run("subscribe", "s", "-s", f"127.0.0.1:{port}", "--timeout", "2s", home=home)
        server.kill()
    assert outcome.code in (4, 5), outcome
    assert "Traceback" not in outcome.err


def test_plain_and_tls_do_not_mix(bascule: Run, broker: BrokerProcess) -> None:
    bascule("stream", "list", "--tls", "--timeout", "2s").failed(5, broker.address)
    bascule("stream", "list", "--tls-ca", "missing.pem").failed(2, "tls")


def test_messages_are_selected_by_key_and_header(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=2).name
    bascule("publish", name, "a", "-k", "k1", "-H", "kind=x").ok()
    bascule("publish", name, "b", "-k", "k2", "-H", "kind=y").ok()
    bascule("publish", name, "c", "-k", "k1").ok()
    assert sorted(bascule("subscribe", name, "-e", "-k", "k1").ok().lines) == ["a", "c"]
    assert sorted(bascule("subscribe", name, "-e", "-H", "kind").ok().lines) == ["a", "b"]
    assert bascule("subscribe", name, "-e", "-k", "k1", "-H", "kind=x", "-n", "1").ok().lines == ["a"]
    bascule("subscribe", name, "-e", "-H", "=x").failed(2, "`--header`")
