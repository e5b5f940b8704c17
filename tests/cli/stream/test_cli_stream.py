"""`bascule stream`, `bascule cursor`, `bascule cluster` on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import Run, Terminal
from tests.support.api_client import Api, pb
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return unique_name(request.node.name)


# ── create ───────────────────────────────────────────────────────────────────────────────────────


def test_create_list_describe_delete(bascule: Run, name: str) -> None:
    made = bascule("stream", "create", name, "--subject", f"s.{name}.*", "-p", "3").ok()
    assert made.out == f"Created stream `{name}` on subject `s.{name}.*` with 3 partitions.\n"
    row = next(row for row in bascule("stream", "list").ok().rows if row[0] == name)
    assert row[1:5] == [f"s.{name}.*", "3", "0", "ok"]
    described = bascule("stream", "describe", name).ok().rows
    assert ["stream", name] in described
    assert [row[0] for row in described[-3:]] == ["0", "1", "2"]
    assert bascule("stream", "delete", name, "--yes").ok().out == f"Deleted stream `{name}`.\n"
    assert name not in bascule("stream", "list").ok().out


def test_every_setting_reaches_the_broker(bascule: Run, name: str, broker: BrokerProcess) -> None:
    settings = "--max-bytes 10MiB --max-messages 1000 --max-age 7d --segment-bytes 1MiB --segment-age 1h --cleaner-interval 30s"
    settings += (
        " --compact --auto-pause 10m --no-auto-pause-subscribed --min-in-sync 1 --expect-offsets --no-encrypt"
        " --sync interval --sync-interval 250ms --compression zstd --compact-min-lag 1m --tombstone-retention 2d"
    )
    document = bascule("stream", "create", name, *settings.split(), "--json").ok().json
    assert (document["name"], document["created_now"]) == (name, True)
    assert len(document["partitions"]) == 1
    assert document["settings"] == {
        "retention_max_bytes": 10 << 20,
        "retention_max_messages": 1000,
        "retention_max_age": "168h",
        "cleaner_interval": "30s",
        "segment_max_bytes": 1 << 20,
        "segment_max_age": "1h",
        "compact": True,
        "compact_min_lag": "1m",
        "tombstone_retention": "48h",
        "auto_pause_time": "10m",
        "auto_pause_disable_if_subscribers": True,
        "min_insync_replicas": 1,
        "optimistic_concurrency_control": True,
        "encryption": False,
        "compression": "zstd",
        "sync": "interval",
        "sync_interval": "250ms",
    }
    assert bascule("stream", "describe", name, "--json").ok().json["settings"] == document["settings"]
    rows = bascule("stream", "describe", name).ok().rows
    for row in (["sync", "interval"], ["sync interval", "250ms"], ["compression", "zstd"], ["compact", "yes"]):
        assert row in rows
    bascule("publish", name, "a", "--expected-offset", "0").ok()
    bascule("publish", name, "b", "--expected-offset", "0").failed(3, "offset", "bascule stream describe")
    assert broker.is_running


def test_describe_shows_the_servers_defaults(bascule: Run, make_stream: MakeStream) -> None:
    rows = bascule("stream", "describe", make_stream().name).ok().rows
    for row in (
        ["retention max bytes", "no limit"],
        ["retention max age", "168h"],
        ["tombstone retention", "24h"],
        ["encryption", "no"],
        ["compression", "none"],
        ["sync", "ack"],
        ["sync interval", "1s"],
    ):
        assert row in rows


def test_a_stream_that_is_there(bascule: Run, make_stream: MakeStream) -> None:
    stream = make_stream()
    bascule("stream", "create", stream.name).failed(3, stream.name, "choose another name")
    assert "exists already" in bascule("stream", "create", stream.name, "--if-not-exists").ok().out
    assert bascule("stream", "create", stream.name, "--if-not-exists", "--json").ok().json["created_now"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-age", "soon"], ["`--max-age`", "`soon`", "`90s`"]),
        (["--max-bytes", "much"], ["`--max-bytes`", "`much`", "64KiB"]),
        (["--max-messages", "-1"], ["`--max-messages`", "`-1`"]),
        (["--replicas", "0"], ["`--replicas`", "`0`"]),
        (["--partitions", "0"], ["'--partitions'", "`0`", "greater than or equal to 1"]),
        (["--partitions", "three"], ["'--partitions'", "`three`", "integer"]),
        (["--min-in-sync", "0"], ["'--min-in-sync'", "`0`"]),
        (["--subject", "a b"], ["subject", "a b"]),
        (["--sync", "never"], ["`--sync`", "`never`", "`ack`, `interval` or `always`"]),
        (["--compression", "gzip"], ["`--compression`", "`gzip`", "`none` or `zstd`"]),
        (["--sync-interval", "often"], ["`--sync-interval`", "`often`", "`90s`"]),
        (["--compact-min-lag", "x"], ["`--compact-min-lag`", "`x`"]),
        (["--tombstone-retention", "-1s"], ["`--tombstone-retention`", "`-1s`"]),
        (["--compact-workers", "2"], ["--compact-workers"]),
        (["--colour"], ["--colour", "bascule stream create --help"]),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(
    bascule: Run, name: str, arguments: list[str], words: list[str]
) -> None:
    bascule("stream", "create", name, *arguments).failed(2, *words)


def test_a_wrong_name_is_refused(bascule: Run) -> None:
    bascule("stream", "create", "a b").failed(2, "a b")
    bascule("stream", "create").failed(2, "NAME", "--help")


# ── list and describe ────────────────────────────────────────────────────────────────────────────


def test_internal_streams_are_shown_when_asked_for(bascule: Run) -> None:
    # A new broker makes it at once, but not before it serves.
    eventually(lambda: "__cursors" in bascule("stream", "list", "--all").ok().out, "it is there, and shown")
    assert "__cursors" not in bascule("stream", "list").ok().out


def test_json_of_list_and_describe(bascule: Run, make_stream: MakeStream, api: Api) -> None:
    stream = make_stream(partitions=2)
    api.Publish(stream=stream.name, value=b"x", ackPolicy=pb.LEADER)
    listed = next(one for one in bascule("stream", "list", "--json").ok().json if one["name"] == stream.name)
    described = bascule("stream", "describe", stream.name, "--json").ok().json
    for document in described["partitions"]:  # these the leaders have to be asked for
        assert [document.pop(name) is None for name in ("log_start_offset", "size_bytes", "messages")] == [False] * 3
        assert (document.pop("first_message") is None) == (document["newest_offset"] < 0)
    assert listed == described
    assert described["subject"] == stream.subject
    first, second = described["partitions"]
    assert (first["newest_offset"], first["high_watermark"], first["state"]) == (0, 0, "ok")
    assert first["last_message"].endswith("Z")
    assert (second["newest_offset"], second["last_message"]) == (-1, None)
    assert first["in_sync_replicas"] == first["replicas"] == [first["leader"]]


@pytest.mark.parametrize(
    "command", [["describe"], ["pause"], ["resume"], ["readonly"], ["delete", "--yes"]], ids=lambda command: command[0]
)
def test_an_unknown_stream_is_named(bascule: Run, command: list[str]) -> None:
    bascule("stream", *command, "no-such").failed(3, "`no-such`", "`bascule stream list`")


# ── pause, resume, readonly, delete ──────────────────────────────────────────────────────────────


def test_pause_and_resume(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=2).name
    assert "Nothing to resume" in bascule("stream", "resume", name).ok().out
    assert bascule("stream", "pause", name, "-p", "1").ok().out == f"Paused partition 1 of stream `{name}`.\n"
    assert bascule("stream", "describe", name, "--json").json["state"] == "paused 1/2"
    bascule("stream", "pause", name).ok()
    row = next(row for row in bascule("stream", "list").rows if row[0] == name)
    assert row[3:5] == ["-", "paused"]
    assert bascule("stream", "resume", name).ok().out == f"Resumed partitions 0, 1 of stream `{name}`.\n"
    assert bascule("stream", "describe", name, "--json").json["state"] == "ok"


def test_a_readonly_stream_that_is_paused_is_resumed(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream().name
    bascule("publish", name, "x").ok()
    bascule("stream", "readonly", name).ok()
    bascule("stream", "pause", name).ok()
    assert "Resumed partition 0" in bascule("stream", "resume", name).ok().out
    assert bascule("stream", "describe", name, "--json").json["state"] == "readonly"


def test_readonly_and_back(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream().name
    assert bascule("stream", "readonly", name).ok().out == f"Stream `{name}` is readonly.\n"
    bascule("publish", name, "x").failed(3, f"stream `{name}` is readonly", f"`bascule stream readonly {name} --off`")
    assert bascule("stream", "readonly", name, "--off").ok().out == f"Stream `{name}` is writable again.\n"
    bascule("publish", name, "x").ok()


@pytest.mark.parametrize("command", ["pause", "resume", "readonly"])
def test_a_partition_that_is_not_there(bascule: Run, make_stream: MakeStream, command: str) -> None:
    name = make_stream(partitions=2).name
    bascule("stream", command, name, "-p", "2").failed(2, "no partition 2", "0 to 1")
    bascule("stream", command, name, "-p", "two").failed(2, "`--partition`", "`two`")


def test_deleting_asks_or_wants_yes(bascule: Run, connected: Path, make_stream: MakeStream) -> None:
    first, second = make_stream().name, make_stream().name
    with Terminal("stream", "delete", first, second, home=connected) as terminal:
        terminal.read_until("[y/N]")
        terminal.enter("n\n")
        assert terminal.wait() == 1
    with Terminal("stream", "delete", first, home=connected) as terminal:
        terminal.read_until("[y/N]")
        terminal.enter("y\n")
        assert terminal.wait() == 0
        assert f"Deleted stream `{first}`" in terminal.shown
    bascule("stream", "delete", second, "gone", "--yes").failed(3, "`gone`")
    assert second in bascule("stream", "list").out


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────


def test_cursors(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=2).name
    bascule("cursor", "get", "reader", name).failed(3, "`reader`", "bascule cursor set reader")
    bascule("cursor", "set", "reader", name, "41", "-p", "1").ok()
    assert bascule("cursor", "get", "reader", name, "-p", "1").ok().out == "41\n"
    assert bascule("cursor", "get", "reader", name, "-p", "1", "--json").ok().json == {
        "cursor": "reader",
        "stream": name,
        "partition": 1,
        "offset": 41,
    }
    bascule("publish", name, "a", "b", "c").ok()
    assert bascule("cursor", "set", "reader", name, "latest", "--json").ok().json["offset"] == 2
    assert bascule("cursor", "set", "reader", name, "earliest", "--json").ok().json["offset"] is None
    bascule("cursor", "get", "reader", name).failed(3, "was never set")
    bascule("cursor", "set", "reader", name, "first").failed(2, "`OFFSET`", "`first`", "`earliest`")
    bascule("cursor", "get", "reader", name, "-p", "2").failed(3, "no partition 2", f"`bascule stream describe {name}`")
    bascule("cursor", "get", "reader", "no-such").failed(3, "`no-such`")


# ── cluster ──────────────────────────────────────────────────────────────────────────────────────


def test_cluster_status(bascule: Run, broker: BrokerProcess) -> None:
    [_header, row] = bascule("cluster", "status").ok().rows
    assert row[1:3] == [broker.address, "ok"]
    document = bascule("cluster", "status", "--json").ok().json
    assert document["server"] == broker.address
    assert document["brokers"][0]["answers"] is True
    assert document["brokers"][0]["latency_ms"] > 0
    assert document["partitions"]["without_leader"] == 0
    assert document["problems"] == []


def test_a_broker_without_cursors_says_so(start_broker: StartBroker, call: Run) -> None:
    server = start_broker({"cursors.stream.partitions": 0}).address
    call("stream", "create", "s", "-s", server).ok()
    call("cursor", "get", "reader", "s", "-s", server).failed(4, "cursor", "cursors.stream.partitions")
