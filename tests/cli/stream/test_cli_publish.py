"""`bascule publish`: from arguments, pipes and files; acks, keys, headers, rates; and what is refused."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from tests.cli.command_line import Run, Terminal, run, start
from tests.support.broker_fixtures import MakeStream
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import PATIENCE_SECONDS, eventually

# ── what is published ────────────────────────────────────────────────────────────────────────────


def test_arguments(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream().name
    assert bascule("publish", name, "lamp").ok().out == f"Published 1 message to `{name}`: offset 0.\n"
    assert bascule("publish", name, "a", "b").ok().out == f"Published 2 messages to `{name}`: offsets 1 to 2.\n"
    assert bascule("publish", name, "c", "--quiet").ok().out == ""
    assert bascule("subscribe", name, "-e").ok().lines == ["lamp", "a", "b", "c"]


def test_acks_as_json(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=2).name
    acks = [
        json_of(line)
        for line in bascule("publish", name, "a", "b", "--partition", "1", "--ack", "all", "--json").ok().lines
    ]
    assert [(ack["stream"], ack["partition"], ack["offset"]) for ack in acks] == [(name, 1, 0), (name, 1, 1)]
    assert all(abs(ack["timestamp"] / 1e9 - time.time()) < 60 for ack in acks)


def json_of(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)
    return found


def test_key_headers_and_partition(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=3).name
    bascule("publish", name, "v", "-k", "k", "-H", "a=1", "-H", "b=2", "-p", "2").ok()
    [line] = bascule("subscribe", name, "-e", "--json").ok().lines
    found = json_of(line)
    assert (found["key"], found["value"], found["headers"], found["partition"]) == ("k", "v", {"a": "1", "b": "2"}, 2)


def test_a_tombstone_has_no_value(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream().name
    bascule("publish", name, "-k", "a", "--tombstone").ok()
    bascule("publish", name, "-k", "a", "").ok()
    copy = bascule("subscribe", name, "-e", "--json").ok()
    assert [json_of(line)["value"] for line in copy.lines] == [None, ""]
    bascule("publish", name, "-i", "json", *copy.lines).ok()
    assert [json_of(line)["value"] for line in bascule("subscribe", name, "-e", "--json").ok().lines] == [None, ""] * 2
    bascule("publish", name, "--tombstone").failed(2, "`--tombstone` is given without `--key`")
    bascule("publish", name, "-k", "a", "--tombstone", "lamp").failed(2, "together with messages")


def test_the_same_key_goes_to_the_same_partition(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=3).name
    first = bascule("publish", name, "1", "2", "-k", "customer-7", "--json").ok().lines
    assert len({json_of(line)["partition"] for line in first}) == 1
    spread = bascule("publish", name, *"abcdef", "--partitioner", "round-robin", "--json").ok().lines
    assert [json_of(line)["partition"] for line in spread] == [0, 1, 2, 0, 1, 2]


def test_without_acks(bascule: Run, make_stream: MakeStream, broker: BrokerProcess) -> None:
    name = make_stream().name
    assert "without acks" in bascule("publish", name, "a", "b", "--ack", "none").ok().out
    bascule("publish", name, "c", "--ack", "none", "--nats", broker.nats_url).ok()
    eventually(lambda: len(bascule("subscribe", name, "-e").lines) == 3, "all are stored")


def test_straight_to_nats(bascule: Run, make_stream: MakeStream, broker: BrokerProcess) -> None:
    name = make_stream(partitions=2).name
    said = bascule("publish", name, "a", "b", "-k", "k", "-p", "1", "--nats", broker.nats_url).ok().out
    assert said == f"Published 2 messages to `{name}`: partition 1 offsets 0 to 1.\n"
    bascule("publish", name, "a", "--nats", "nats://127.0.0.1:1", "--timeout", "1s").failed(
        5, "127.0.0.1:1", "`--nats`"
    )
    wildcard = make_stream(subject=f"{name}.wild.*").name
    bascule("publish", wildcard, "a", "--nats", broker.nats_url).failed(2, "wildcard", "leave out `--nats`")


def test_expected_offsets_count_on(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(optimisticConcurrencyControl=True).name
    bascule("publish", name, "a", "b", "c", "--expected-offset", "0").ok()
    bascule("publish", name, "d", "--expected-offset", "7").failed(3, "offset")
    assert bascule("subscribe", name, "-e").ok().lines == ["a", "b", "c"]


def test_repeat_and_rate(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream().name
    started = time.monotonic()
    assert "Published 6 messages" in bascule("publish", name, "a", "b", "--repeat", "3", "--rate", "20").ok().out
    assert time.monotonic() - started > 0.2
    assert bascule("subscribe", name, "-e").ok().lines == ["a", "b"] * 3


# ── pipes and files ──────────────────────────────────────────────────────────────────────────────


def test_lines_of_a_pipe(connected: Path, make_stream: MakeStream) -> None:
    name = make_stream().name
    lines = "".join(f"line {number}\n" for number in range(5000))
    assert "Published 5,000 messages" in run("publish", name, home=connected, given=lines).ok().out
    assert run("subscribe", name, "-e", home=connected).ok().out == lines


def test_a_slow_pipe_is_published_as_it_comes(connected: Path, make_stream: MakeStream, bascule: Run) -> None:
    name = make_stream().name
    with start("publish", name, home=connected) as process:
        assert process.stdin is not None
        for count, line in enumerate((b"one\n", b"two\n"), 1):
            process.stdin.write(line)
            eventually(lambda: len(bascule("subscribe", name, "-e").lines) == count, f"{line!r} is stored")  # noqa: B023
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 0


def test_a_stream_is_copied_through_a_pipe(connected: Path, make_stream: MakeStream, bascule: Run) -> None:
    source, copy = make_stream(partitions=2).name, make_stream(partitions=2).name
    given = '{"key": "k", "value": "v", "headers": {"h": "1"}, "partition": 1}\n{"value_base64": "/wA="}\n'
    run("publish", source, "-i", "json", home=connected, given=given).ok()
    exported = bascule("subscribe", source, "-e", "--format", "json").ok().out
    assert "Published 2 messages" in run("publish", copy, "-i", "json", home=connected, given=exported).ok().out
    strip = [
        {**json_of(line), "stream": "", "timestamp": 0, "time": "", "subject": ""} for line in exported.splitlines()
    ]
    again = bascule("subscribe", copy, "-e", "--json").ok().lines
    assert [{**json_of(line), "stream": "", "timestamp": 0, "time": "", "subject": ""} for line in again] == strip


def test_files(bascule: Run, make_stream: MakeStream, tmp_path: Path) -> None:
    name = make_stream().name
    file = tmp_path / "orders.txt"
    file.write_bytes(b"a\nb\n")
    bascule("publish", name, "--file", str(file), "--repeat", "2").ok()
    bascule("publish", name, "--file", str(file), "--input", "whole").ok()
    assert bascule("subscribe", name, "-e").ok().out == "a\nb\na\nb\na\nb\n\n"


def test_a_file_that_is_not_there_is_named(bascule: Run, make_stream: MakeStream, tmp_path: Path) -> None:
    outcome = bascule("publish", make_stream().name, "--file", str(tmp_path / "missing"))
    assert outcome.code == 4
    assert "missing" in outcome.err


def test_nothing_to_publish(connected: Path, make_stream: MakeStream) -> None:
    assert "Published no message" in run("publish", make_stream().name, home=connected).ok().out


def test_a_wrong_line_stops_it_and_says_what_was_published(connected: Path, make_stream: MakeStream) -> None:
    name = make_stream().name
    given = '{"value": "a"}\n' * 2 + "{oops}\n"
    run("publish", name, "-i", "json", home=connected, given=given).failed(2, "line 3 of stdin", "JSON")


# ── terminals ────────────────────────────────────────────────────────────────────────────────────


def test_typing_messages(connected: Path, make_stream: MakeStream, bascule: Run) -> None:
    name = make_stream().name
    with Terminal("publish", name, home=connected) as terminal:
        terminal.read_until("Ctrl-D ends")
        terminal.enter("typed\n")
        eventually(lambda: bascule("subscribe", name, "-e").lines == ["typed"], "it is stored at once")
        terminal.enter("\x04")
        assert terminal.wait() == 0
        assert "Published 1 message" in terminal.shown


def test_ctrl_c_leaves_quietly_while_waiting_for_input(connected: Path, make_stream: MakeStream) -> None:
    with Terminal("publish", make_stream().name, home=connected) as terminal:
        terminal.read_until("Ctrl-D ends")
        time.sleep(0.7)
        terminal.press_ctrl_c()
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.shown
        assert "rror" not in terminal.shown


def test_a_long_publish_shows_how_far_it_is(connected: Path, make_stream: MakeStream) -> None:
    reading, writing = os.pipe()
    with Terminal("publish", make_stream().name, home=connected, stdin=reading) as terminal:
        os.close(reading)
        count, is_shown = 0, threading.Event()

        def feed() -> None:
            nonlocal count
            while not is_shown.is_set():
                os.write(writing, b"x\n")
                count += 1
                time.sleep(0.1)
            os.close(writing)

        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            terminal.read_until("Publishing to")
        finally:
            is_shown.set()
            feeding.join()
        assert terminal.wait() == 0
        assert f"Published {count} messages" in terminal.shown


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_wrong_options_are_named(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=2).name
    bascule("publish", name, "x", "--ack", "some").failed(2, "`--ack`", "`some`", "`leader`")
    bascule("publish", name, "x", "--partitioner", "luck").failed(2, "`--partitioner`", "`luck`", "round-robin")
    bascule("publish", name, "x", "--input", "xml").failed(2, "`--input`", "`xml`", "`json`")
    bascule("publish", name, "x", "--header", "a").failed(2, "`--header`", "`a`", "`name=value`")
    bascule("publish", name, "x", "--rate", "0").failed(2, "`--rate`")
    bascule("publish", name, "x", "--repeat", "0").failed(2, "'--repeat'", "`0`")
    bascule("publish", name, "x", "--partition", "2").failed(2, "no partition 2", "0 to 1")
    bascule("publish", name, "x", "--partition", "-1").failed(2, "'--partition'", "`-1`")
    bascule("publish", name, "x", "--file", "f").failed(2, "--file")
    bascule("publish", name, "x", "-p", "1", "--partitioner", "round-robin").failed(2, "--partition")
    bascule("publish", name, '{"value": "a", "partition": 2}', "-i", "json").failed(2, "no partition 2")
    bascule("publish", name, "{", "-i", "json").failed(2, "argument 1")


def test_an_unknown_stream(bascule: Run) -> None:
    bascule("publish", "no-such", "x").failed(3, "`no-such`", "bascule stream create")


def test_a_message_that_is_too_large(bascule: Run, make_stream: MakeStream, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"x" * (2 << 20))
    bascule("publish", make_stream().name, "--file", str(file), "--input", "whole").failed(2, "message")


def test_a_wrong_address(call: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        call("publish", "s", "x", "-s", address, "--timeout", "1s").failed(5, address, "bascule doctor")
    call("publish", "s", "x", "-s", "nowhere.invalid", "--timeout", "1s").failed(5, "nowhere.invalid")
    call("publish", "s", "x", "-s", "a:b:c").failed(2, "`--server`", "`a:b:c`")
    call("publish", "s", "x", "--context", "none").failed(3, "`none`", "bascule context add")
