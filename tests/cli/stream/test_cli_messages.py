"""Messages in and out: formats, templates, JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from bascule.cli.stream.subscribe import Few
from bascule.cli.terminal import message_input, messages
from bascule.cli.terminal.message_input import InputMessage
from bascule.client.messages import Message
from bascule.errors import InvalidOption

MOMENT = 1_700_000_000_123_456_789


def message(value: bytes | None = b"lamp", **fields: object) -> Message:
    return Message(7, value, timestamp=MOMENT, stream="orders", partition=2, subject="orders.eu", **fields)  # type: ignore[arg-type]


def rendered(one: Message, form: str = "raw", template: str | None = None, *, colour: bool = False) -> bytes:
    return messages.renderer(form, template, colour=colour, partitions=True)(Few([one]))


# ── out ──────────────────────────────────────────────────────────────────────────────────────────


def test_raw_is_the_value_and_a_line_break() -> None:
    assert rendered(message(b"\xff\n")) == b"\xff\n\n"
    assert (
        messages.renderer("raw", None, colour=False, partitions=False)(Few([message(), message(b"desk")]))
        == b"lamp\ndesk\n"
    )
    assert messages.renderer("raw", None, colour=False, partitions=False)(Few([])) == b""


def test_json_is_exact() -> None:
    one = message(b"\xff", key=b"k", headers={"trace": b"1", "raw": b"\xfe"})
    document = json.loads(rendered(one, "json"))
    assert document == {
        "stream": "orders",
        "partition": 2,
        "offset": 7,
        "timestamp": MOMENT,
        "time": "2023-11-14T22:13:20.123456789Z",
        "subject": "orders.eu",
        "key": "k",
        "value_base64": "/w==",
        "headers": {"trace": "1"},
        "headers_base64": {"raw": "/g=="},
    }


def test_what_json_prints_can_be_published_again() -> None:
    one = message(b"\xff\x00", key=b"\xfe", headers={"trace": b"1", "raw": b"\xfe"})
    again = message_input.parse(rendered(one, "json"), "line 1")
    assert again == InputMessage(b"\xff\x00", b"\xfe", {"trace": b"1", "raw": b"\xfe"}, 2)


def test_no_value_is_no_empty_value() -> None:
    tombstone, empty = message(None, key=b"k"), message(b"", key=b"k")
    assert [json.loads(rendered(one, "json"))["value"] for one in (tombstone, empty)] == [None, ""]
    for one in (tombstone, empty):
        assert message_input.parse(rendered(one, "json"), "line 1").value == one.value
    assert rendered(tombstone, "pretty").decode().endswith("  k  (no value)\n")
    assert rendered(tombstone, "hex").decode().endswith(" key 6b (no value)\n")
    assert rendered(tombstone) == b"\n"
    assert rendered(tombstone, template="{key}={value}") == b"k="


def test_hex_shows_bytes_and_letters() -> None:
    lines = rendered(message(bytes(range(60, 80)), key=b"k"), "hex").decode().splitlines()
    assert lines[0] == "# partition 2 offset 7 2023-11-14T22:13:20.123456789Z key 6b"
    assert lines[1] == "00000000  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  |<=>?@ABCDEFGHIJK|"
    assert lines[2] == "00000010  4c 4d 4e 4f                                       |LMNO|"


def test_pretty_cannot_steer_a_terminal() -> None:
    one = message(b"\x1b[2Jlamp\nx\xff", key=b"\x07", headers={"a": b"\r"})
    line = rendered(one, "pretty").decode()
    assert line == "2/7  2023-11-14T22:13:20.123Z  \\x07  \\x1b[2Jlamp\\nx\\\\xff  a=\\r\n".replace("\\\\xff", "\\xff")
    assert "\x1b[36m2/7\x1b[0m" in rendered(message(), "pretty", colour=True).decode()


def test_templates() -> None:
    one = message(key=b"k", headers={"trace": b"1"}, reply="r")
    text = (
        r"{offset}\t{partition}\t{stream}\t{subject}\t{reply}\t{key}\t{value}\t{headers[trace]}\t{headers[no]}\t{{}}\n"
    )
    assert rendered(one, template=text) == b"7\t2\torders\torders.eu\tr\tk\tlamp\t1\t\t{}\n"
    assert (
        rendered(one, template="{timestamp} {time} {headers}")
        == b'%d 2023-11-14T22:13:20.123456789Z {"trace":"1"}' % MOMENT
    )
    assert rendered(message(b"\xff"), template="{value}{key}") == b"\xff"


@pytest.mark.parametrize(
    "text", ["{nothing}", "{value.__class__}", "{value!r}", "{offset:>9}", "{", "{}", "{headers[]}", "{0}"]
)
def test_a_wrong_template_is_named(text: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        messages.renderer("raw", text, colour=False, partitions=False)
    assert "--template" in refused.value.message
    assert "`headers[name]`" in (refused.value.hint or "")


# ── in ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def read(pipe: tuple[int, int], data: bytes, form: str) -> list[InputMessage]:
    reading, writing = pipe
    os.write(writing, data)
    os.close(writing)
    return [one for piece in message_input.read(reading, form, "stdin") for one in piece]


def test_each_line_is_a_message(pipe: tuple[int, int]) -> None:
    assert [one.value for one in read(pipe, b"a\r\n\nb\xff", "lines")] == [b"a", b"", b"b\xff"]


def test_whole_is_one_message(pipe: tuple[int, int]) -> None:
    assert read(pipe, b"a\nb\n", "whole") == [InputMessage(b"a\nb\n")]


def test_lines_longer_than_a_piece(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_input, "PIECE_BYTES", 3)
    assert [one.value for one in read(pipe, b"abcdefgh\ni\n\njk", "lines")] == [b"abcdefgh", b"i", b"", b"jk"]


def test_json_lines(pipe: tuple[int, int]) -> None:
    lines = (
        b'{"value": "a", "key": "k", "headers": {"n": 1}, "partition": 3}\n\n{"value": {"x": [1]}}\n{"key": "only"}\n'
    )
    assert read(pipe, lines, "json") == [
        InputMessage(b"a", b"k", {"n": b"1"}, 3),
        InputMessage(b'{"x":[1]}'),
        InputMessage(None, b"only"),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"vlaue": 1}', "`vlaue`"),
        ('{"value": "a", "partition": -1}', "`partition`"),
        ('{"value": "a", "partition": true}', "`partition`"),
        ('{"value_base64": "?"}', "`value_base64`"),
        ('{"value_base64": 1}', "`value_base64`"),
        ('{"headers": []}', None),
        ('{"headers": [1]}', "`headers`"),
        ('{"value": "\\ud800"}', "unpaired surrogate"),
    ],
)
def test_a_wrong_line_is_named(line: str, words: str | None) -> None:
    if words is None:
        assert message_input.parse(line.encode(), "line 9") == InputMessage(None)
        return
    with pytest.raises(InvalidOption) as refused:
        message_input.parse(line.encode(), "line 9")
    assert "line 9" in refused.value.message
    assert words in refused.value.message
    assert refused.value.hint
