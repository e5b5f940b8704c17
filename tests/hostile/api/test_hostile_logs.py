"""Texts of clients in the log, and texts of the server in answers."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from bascule.broker.logs import TEXT_CHARACTERS_MAX, LineFormatter
from bascule.errors import without_paths
from tests.support.api_client import Status, grpc, pb, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.guarded_broker import PREFIX_MODEL, Policed
from tests.support.waiting import eventually

NASTY: Final = "x\r\n2026-01-01T00:00:00.000Z ERROR broker: forged\x1b[2J\x00\u2028\u202e\x9b31m"
LINE: Final = re.compile(r"^(===.*|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ +[\w.]+: .*)$")


def formatted(text: str, *arguments: object, error: BaseException | None = None) -> str:
    given: Any = None if error is None else (type(error), error, error.__traceback__)
    return LineFormatter().format(
        logging.LogRecord("bascule.broker.x", logging.ERROR, "x.py", 1, text, arguments, given)
    )


def test_no_text_of_a_client_ends_a_line_or_controls_a_terminal() -> None:
    line = formatted("consumer %s was removed", NASTY)
    assert line.isprintable()
    assert "\\x1b[2J\\x00\\u2028\\u202e\\x9b31m" in line
    assert formatted("größe €").endswith("größe €")
    assert formatted("%s", "\ud800").isprintable()


def test_a_bug_is_one_line_with_its_place() -> None:
    def inner() -> None:
        raise ValueError(NASTY)

    try:
        inner()
    except ValueError as error:
        line = formatted("a call failed", error=error)
    assert line.isprintable()
    assert "Traceback: ValueError(" in line
    assert re.search(r"at api/test_hostile_logs\.py:\d+ in inner < api/test_hostile_logs\.py:\d+ in test_", line)


def test_a_long_text_is_cut() -> None:
    assert len(formatted("%s", "x" * 4_000_000)) < TEXT_CHARACTERS_MAX + 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot write /var/lib/bascule/streams/s/0/00.log: disk full", "cannot write 00.log: disk full"),
        ("a batch in `/data/x/00.log`, at 12", "a batch in `00.log`, at 12"),
        ("('/a/b.log')", "('b.log')"),
        (
            "orders/3 at grpc://127.0.0.1:9294/x and a/b/c, 1/2/3",
            "orders/3 at grpc://127.0.0.1:9294/x and a/b/c, 1/2/3",
        ),
        ("see /metrics", "see /metrics"),
    ],
)
def test_clients_see_no_directories_of_the_server(text: str, expected: str) -> None:
    assert without_paths(text) == expected


def test_bad_calls_leave_no_traceback_and_forge_no_line(start_broker: StartBroker, tmp_path: Path) -> None:
    policed = Policed(start_broker, tmp_path / "policed", PREFIX_MODEL, ["admin, *, *"])
    admin = policed.admin_api
    stranger = policed.api(f"str{chr(0x1B)}[2Janger")
    admin.CreateStream(name="s", subject="s")
    invalid = b"\x1a\x04\xff\xfe\r\n"  # stream, not UTF-8
    for api in (admin, stranger):
        for method in (
            "Publish",
            "PublishToSubject",
            "CreateStream",
            "FetchMetadata",
            "JoinConsumerGroup",
            "SetCursor",
        ):
            for data in (invalid, b"\xff\xff\xff", b"\x0a\xff"):
                with suppress(grpc.RpcError):  # unknown fields are no fault
                    api.raw(method, data, timeout=30)
        with pytest.raises(grpc.RpcError):
            next(api.channel.unary_stream("/proto.API/Subscribe")(invalid, timeout=30))
        with pytest.raises(grpc.RpcError):
            list(api.channel.stream_stream("/proto.API/PublishAsync")(iter([invalid]), timeout=30))
        with pytest.raises(grpc.RpcError):
            api.JoinConsumerGroup(groupId=NASTY, consumerId=NASTY, streams=[NASTY])
        with pytest.raises(grpc.RpcError):
            api.DeleteStream(name=NASTY)
        api.open_subscription(NASTY, partition=1).end()
        with pytest.raises(grpc.RpcError):
            api.channel.unary_unary(f"/proto.API/{'x' * 10_000}")(b"", timeout=30)
    assert admin.publish("s", b"x").offset == 0
    said = policed.broker.said()
    assert "Traceback" not in said
    for line in said.split("\n"):
        assert not line or (LINE.match(line) and line.isprintable()), repr(line)
    for one in (admin, stranger):
        one.close()


def test_a_damaged_log_is_reported_without_its_directory(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    for number in range(3):
        api.publish("s", b"%d" % number + bytes(2_000))
    api.close()
    broker.stop()
    (log,) = [file for file in broker.data.rglob("*.log") if "/s/" in str(file)]
    damaged = bytearray(log.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    log.write_bytes(damaged)
    broker.start()
    api = broker.api()

    def read() -> str:
        reading = api.open_subscription("s", stopPosition=pb.STOP_LATEST)
        return f"{reading.end()}"

    said = eventually(read, "the stream is read")
    assert str(broker.data) not in said
    assert "/data/" not in said
    api.close()


def test_a_refusal_of_creation_shows_no_directory(start_broker: StartBroker) -> None:
    api = start_broker().api()
    with refused(Status.FAILED_PRECONDITION):
        api.CreateStream(name="e", subject="e", encryption=True)
    api.close()
