"""Options: what is right is taken, and every refusal names the option, the value and what would be right."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bascule.client.client import Client
from bascule.client.connection import options
from bascule.client.connection.metadata import SettingsInfo
from bascule.client.publish.partitioner import by_key, choose, partitioner
from bascule.config import Compression, Sync
from bascule.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1:9292", [("127.0.0.1", 9292)]),
        ("broker", [("broker", 9292)]),
        ("[::1]:4000", [("::1", 4000)]),
        ("[::1]", [("::1", 9292)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        (["a:1", "b", "a:1"], [("a", 1), ("b", 9292)]),
    ],
)
def test_addresses(text: Any, wanted: list[tuple[str, int]]) -> None:
    assert options.addresses(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "a:", "a:x", ":1", "a:0", "a:65536", "http://a:1", "a b:1", "::1:5", "[::1", "[x]:1", [], [7]]
)
def test_what_is_no_address_is_refused_by_name(text: Any) -> None:
    with pytest.raises(InvalidOption, match="`servers` is") as caught:
        options.addresses(text)
    assert "must be" in str(caught.value)


BAD: list[tuple[str, Callable[[], object]]] = [
    ("stream", lambda: options.stream_name("a b")),
    ("stream", lambda: options.stream_name("")),
    ("stream", lambda: options.stream_name(7)),
    ("subject", lambda: options.subject_name("a..b")),
    ("ack", lambda: options.ack_policy("some")),
    ("value", lambda: options.payload("value", 7)),
    ("headers", lambda: options.headers({1: b""})),  # type: ignore[dict-item]
    ("headers['a']", lambda: options.headers({"a": 1})),  # type: ignore[dict-item]
    ("timeout", lambda: options.seconds("timeout", 0)),
    ("timeout", lambda: options.seconds("timeout", "5")),
    ("timeout", lambda: options.seconds("timeout", True)),
    ("timeout", lambda: options.seconds("timeout", float("nan"))),
    ("retention_max_age", lambda: options.stream_settings({"retention_max_age": timedelta(-1)})),
    ("retention_max_bytes", lambda: options.stream_settings({"retention_max_bytes": -1})),
    ("compact", lambda: options.stream_settings({"compact": 1})),
    ("min_insync_replicas", lambda: options.stream_settings({"min_insync_replicas": 0})),
    ("partitions", lambda: options.partition_numbers("partitions", [-1])),
    ("partitioner", lambda: partitioner("random")),
    ("start", lambda: options.timestamp_ns("start", datetime(2026, 1, 1))),
    ("tls", lambda: options.tls_context("yes")),  # type: ignore[arg-type]
    ("tls", lambda: options.tls_context(options.TlsOptions(key="k"))),
    ("tls", lambda: options.tls_context(options.TlsOptions(ca="/nowhere/ca.pem"))),
]


@pytest.mark.parametrize(("name", "act"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_value_is_refused_with_its_name_and_what_would_be_right(name: str, act: Callable[[], object]) -> None:
    with pytest.raises(InvalidOption) as caught:
        act()
    assert f"`{name}`" in caught.value.message
    assert caught.value.hint


def test_settings_of_a_stream_become_fields_in_milliseconds() -> None:
    given = {
        "retention_max_bytes": 0,
        "retention_max_age": timedelta(hours=1),
        "cleaner_interval": 1.5,
        "compact": False,
        "encryption": None,
        "min_insync_replicas": 2,
        "compact_max_goroutines": 3,
        "compact_min_lag": 0,
        "tombstone_retention": 0.0015,
        "sync": "always",
        "sync_interval": timedelta(milliseconds=5),
        "compression": None,
    }
    assert options.stream_settings(given) == {
        "retentionMaxBytes": {"value": 0},
        "retentionMaxAge": {"value": 3_600_000},
        "cleanerInterval": {"value": 1500},
        "compactEnabled": {"value": False},
        "minIsr": {"value": 2},
        "compactMaxGoroutines": {"value": 3},
        "compactMinLag": {"value": 0},
        "compactTombstoneRetention": {"value": 2},
        "sync": {"value": "always"},
        "syncInterval": {"value": 5},
    }


def test_settings_that_are_words_have_the_words_of_the_configuration() -> None:
    assert {"sync": tuple(Sync), "compression": tuple(Compression)} == options.WORDS
    for name in options.WORDS:
        with pytest.raises(InvalidOption) as caught:
            options.stream_settings({name: "other"})
        assert caught.value.message == f"`{name}` is 'other'"
        assert all(f"`{word}`" in str(caught.value.hint) for word in options.WORDS[name])


def test_every_setting_of_a_stream_is_shown_by_its_argument() -> None:
    names = {item.name for item in fields(SettingsInfo)}
    assert names == set(options.WIRE_NAMES)
    arguments = set(inspect.signature(Client.create_stream).parameters)
    assert names < arguments


def test_moments_are_nanoseconds_without_a_rounding_error() -> None:
    assert options.timestamp_ns("start", datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)) == 1767323045678901000
    assert options.timestamp_ns("start", datetime(1970, 1, 1, tzinfo=UTC)) == 0


def test_tls_takes_what_it_is_given() -> None:
    assert options.tls_context(None) is None
    assert options.tls_context(False) is None
    context = options.tls_context(True)
    assert context is not None
    assert options.tls_context(context) is context


def test_partitioners() -> None:
    assert [by_key(key, b"", 7) for key in (b"a", b"b", None)] == [zlib.crc32(b"a") % 7, zlib.crc32(b"b") % 7, 0]
    assert [by_key(b"123456789", b"", n) for n in (1, 2, 1000)] == [0, 0xCBF43926 % 2, 0xCBF43926 % 1000]
    turn = partitioner("round-robin")
    assert [choose(turn, None, b"", 3) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert choose(partitioner(None), b"k", b"", 9) == zlib.crc32(b"k") % 9
    with pytest.raises(InvalidOption, match="partition that the partitioner chose"):
        choose(lambda *_: 3, None, b"", 3)
