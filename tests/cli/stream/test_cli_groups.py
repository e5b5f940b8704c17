"""`bascule group` and `bascule cursor` on a real broker: lag, members, positions and their removal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bascule.client import blocking
from bascule.client.blocking import BlockingClient, BlockingStreamAdmin
from tests.cli.command_line import Run, Terminal
from tests.support.api_client import Api
from tests.support.broker_fixtures import MakeStream, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.monitoring import scrape
from tests.support.waiting import eventually


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[BlockingClient]:
    with blocking.connect(broker.address, timeout=60) as found:
        yield found


@pytest.fixture
def name(client: BlockingClient, make_stream: MakeStream) -> str:
    """A stream of three partitions with 10 messages each."""
    found = make_stream(partitions=3).name
    for number in range(3):
        client.publish_many(found, [b"%d" % n for n in range(10)], partition=number)
    return found


def read(client: BlockingClient, group: str, stream: str, count: int) -> list[tuple[int, int]]:
    """Partition and offset of messages that a member of the group processes."""
    with client.consumer(group, [stream]) as consumer:
        return sorted((one.partition, one.offset) for _, one in zip(range(count), consumer, strict=False))


EVERYTHING = [(partition, offset) for partition in range(3) for offset in range(10)]


def rows_of(bascule: Run, group: str) -> list[list[str]]:
    """Stream, partition, reached, newest, lag and owner."""
    return [row for row in bascule("group", "describe", group).ok().rows if len(row) == 6]


# ── lag ──────────────────────────────────────────────────────────────────────────────────────────


def test_lag_includes_partitions_that_the_group_has_never_read(
    bascule: Run, client: BlockingClient, broker: BrokerProcess, name: str, api: Api
) -> None:
    api.SetCursor(stream=name, partition=1, cursorId=f"__group:{name}", offset=3)
    assert rows_of(bascule, name) == [
        [name, "0", "-", "9", "10", "-"],
        [name, "1", "3", "9", "6", "-"],
        [name, "2", "-", "9", "10", "-"],
    ]
    assert bascule("group", "describe", name, "--json").ok().json["lag"] == 26
    assert next(row for row in bascule("group", "list").ok().rows if row[0] == name)[3:] == ["3", "26"]
    top = next(row for row in bascule("top", "-i", "1ms", "--json").ok().json if row["stream"] == name)
    assert top["lag"] == 26
    parts = [row for row in bascule("top", "-i", "1ms", "-p", "--json").ok().json if row["stream"] == name]
    assert {row["partition"]: row["lag"] for row in parts} == {0: 10, 1: 6, 2: 10}

    def lags() -> dict[int, float] | None:
        page = scrape(broker)
        found = {n: page.find("bascule_cursor_lag_offsets", group=name, stream=name, partition=n) for n in range(3)}
        return {n: next(iter(one.values())) for n, one in found.items()} if all(found.values()) else None

    assert eventually(lags, "the metrics have the lag of all partitions") == {0: 10, 1: 6, 2: 10}
    assert read(client, name, name, 26)
    assert rows_of(bascule, name) == [[name, str(n), "9", "9", "0", "-"] for n in range(3)]
    assert lags() == {0: 0, 1: 0, 2: 0}


def test_messages_that_retention_has_removed_are_no_lag(bascule: Run, client: BlockingClient) -> None:
    name = unique_name("short")
    client.create_stream(name, partitions=2, retention_max_messages=2, segment_max_bytes=1, cleaner_interval=0.05)
    for number in range(6):
        client.publish(name, b"%d" % number, partition=0)
        client.publish(name, b"%d" % number, partition=1)
    streams = BlockingStreamAdmin(client)
    eventually(
        lambda: all(one.log_start_offset >= 3 for one in streams.describe(name).partitions),
        "retention has removed them",
    )
    starts = [one.log_start_offset for one in streams.describe(name).partitions]
    client.set_cursor(f"__group:{name}", name, 0, 0)  # and no position in partition 1
    document = bascule("group", "describe", name, "--json").ok().json
    assert [one["lag"] for one in document["partitions"]] == [6 - start for start in starts]
    lag = 12 - sum(starts)
    assert document["lag"] == lag
    assert next(row for row in bascule("group", "list").ok().rows if row[0] == name)[4] == str(lag)
    assert next(row for row in bascule("top", "-i", "1ms", "--json").ok().json if row["stream"] == name)["lag"] == lag


def test_a_group_with_members_and_without_a_checkpoint_has_a_lag_and_owners(
    bascule: Run, client: BlockingClient, broker: BrokerProcess, name: str
) -> None:
    with client.consumer(name, [name], consumer_id="one"), client.consumer(name, [name], consumer_id="two"):
        eventually(lambda: len({row[5] for row in rows_of(bascule, name)} - {"-"}) == 2, "both members have partitions")
        document = bascule("group", "describe", name, "--json").ok().json
        assert document["state"] == "active"
        assert document["lag"] == 30
        assert [one["consumer"] for one in document["members"]] == ["one", "two"]
        owned = {(name, n): one["consumer"] for one in document["members"] for n in one["partitions"][name]}
        assert owned == {(one["stream"], one["partition"]): one["owner"] for one in document["partitions"]}
        assert ["members", "one, two"] in bascule("group", "describe", name).ok().rows
        assert next(one for one in bascule("group", "list", "--json").ok().json if one["group"] == name)["members"] == 2
        assert sum(scrape(broker).find("bascule_cursor_lag_offsets", group=name).values()) == 30
        for command in (("reset", name, "--to", "earliest"), ("delete", name)):
            bascule("group", *command, "--yes").failed(3, "`one`, `two`", "stop them")


# ── positions ────────────────────────────────────────────────────────────────────────────────────


def test_reset_moves_a_group_exactly_and_a_dry_run_moves_nothing(
    bascule: Run, client: BlockingClient, name: str
) -> None:
    assert read(client, name, name, 30) == EVERYTHING
    preview = bascule("group", "reset", name, "--to", "earliest", "--dry-run").ok()
    assert preview.rows == [[name, str(n), "9", "0", "10"] for n in range(3)]
    assert bascule("group", "describe", name, "--json").ok().json["lag"] == 0
    bascule("group", "reset", name, "--to", "earliest").failed(2, "confirm", "--yes", "--dry-run")
    assert bascule("group", "describe", name, "--json").ok().json["lag"] == 0
    assert bascule("group", "reset", name, "--to", "earliest", "--yes").ok().out == preview.out
    assert bascule("group", "describe", name, "--json").ok().json["lag"] == 30
    assert read(client, name, name, 30) == EVERYTHING
    moved = bascule("group", "reset", name, name, "--to", "7", "-p", "1", "--yes", "--json").ok().json
    assert moved == [{"stream": name, "partition": 1, "before": 9, "next_offset": 7, "lag": 3}]
    assert read(client, name, name, 3) == [(1, 7), (1, 8), (1, 9)]
    bascule("group", "reset", name, "--to", "0", "--yes").ok()
    bascule("group", "reset", name, "--to", "latest", "-p", "1,2", "--yes").ok()
    assert read(client, name, name, 10) == EVERYTHING[:10]
    assert {row[4] for row in rows_of(bascule, name)} == {"0"}


def test_reset_to_a_time_begins_with_the_first_message_from_then_on(
    bascule: Run, client: BlockingClient, name: str
) -> None:
    last = [client.publish(name, b"before", partition=n) for n in range(3)]
    middle = datetime.now(UTC)
    client.publish_many(name, [b"after"] * 4, partition=2)
    assert last is not None
    rows = bascule("group", "reset", name, name, "--to", middle.isoformat(), "--yes").ok().rows
    assert rows == [[name, "0", "-", "11", "0"], [name, "1", "-", "11", "0"], [name, "2", "-", "11", "4"]]
    assert read(client, name, name, 4) == [(2, n) for n in (11, 12, 13, 14)]
    assert [row[3:] for row in bascule("group", "reset", name, "--to", "1h", "--yes").ok().rows] == [
        ["0", "11"],
        ["0", "11"],
        ["0", "15"],
    ]


def test_wrong_resets_name_what_would_be_right(bascule: Run, name: str) -> None:
    group = unique_name("no-such")
    bascule("group", "reset", group, "--to", "earliest", "--yes").failed(3, f"`{group}`", "name the streams")
    bascule("group", "reset", group, name, "--to", "yesterday", "--yes").failed(
        2, "`--to`", "`yesterday`", "`earliest`"
    )
    bascule("group", "reset", group, name, "--to", "earliest", "-p", "3", "--yes").failed(2, "no partition 3", "0 to 2")
    bascule("group", "reset", group, "no-such", "--to", "earliest", "--yes").failed(3, "`no-such`")
    bascule("group", "reset", group, name).failed(2, "--to")
    bascule("group", "delete", group, "--yes").failed(3, f"`{group}`", "bascule group list")
    bascule("group", "delete", group).failed(2, "confirm", "--yes")
    assert bascule("group", "reset", group, name, "--to", "999", "--yes").ok().rows[0] == [name, "0", "-", "10", "0"]


def test_a_deleted_group_begins_again(bascule: Run, client: BlockingClient, name: str) -> None:
    assert read(client, name, name, 30) == EVERYTHING
    assert bascule("group", "delete", name, "--yes").ok().out == f"Deleted group `{name}` with 3 positions.\n"
    bascule("group", "describe", name).failed(3, f"`{name}`")
    assert name not in [row[0] for row in bascule("group", "list").ok().rows]
    assert name not in {row[1] for row in bascule("cursor", "list", "--all").ok().rows}
    assert read(client, name, name, 30) == EVERYTHING


def test_deletion_and_reset_ask_in_a_terminal(connected: Path, client: BlockingClient, name: str) -> None:
    read(client, name, name, 30)
    with Terminal("group", "delete", name, home=connected) as terminal:
        terminal.read_until("[y/N]")
        terminal.enter("n\n")
        assert terminal.wait() == 1
    assert client.fetch_cursor(f"__group:{name}", name) == 9


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────


def test_cursors_are_listed_and_deleted(bascule: Run, client: BlockingClient, name: str, api: Api) -> None:
    cursor = unique_name("nightly")
    for number in (0, 2):
        bascule("cursor", "set", cursor, name, str(4 + number), "-p", str(number)).ok()
    api.SetCursor(stream=name, partition=0, cursorId=f"__group:{name}", offset=1)
    assert bascule("cursor", "list", name).ok().rows == [[cursor, name, "0", "4", "ok"], [cursor, name, "2", "6", "ok"]]
    assert bascule("cursor", "list", name, "--all", "--json").ok().json[0]["cursor"] == f"__group:{name}"
    bascule("cursor", "delete", cursor).failed(2, "confirm", "--yes")
    bascule("cursor", "delete", cursor, name, "-p", "1", "--yes").failed(3, f"`{cursor}`", "bascule cursor list")
    assert "in 1 partition" in bascule("cursor", "delete", cursor, name, "-p", "0", "--yes").ok().out
    assert [client.fetch_cursor(cursor, name, n) for n in (0, 2)] == [None, 6]
    bascule("cursor", "delete", cursor, "--yes").ok()
    assert bascule("cursor", "list", name).ok().rows == []
    hints = {"set": f"bascule group reset {name}", "delete": f"bascule group delete {name}"}
    for command in (("set", f"__group:{name}", name, "0"), ("delete", f"__group:{name}", "--yes")):
        bascule("cursor", *command).failed(3, "belongs to consumer group", hints[command[0]])
    assert client.fetch_cursor(f"__group:{name}", name) == 1


def test_cursors_of_a_former_stream_are_listed_as_such(
    bascule: Run, api: Api, name: str, make_stream: MakeStream
) -> None:
    bascule("cursor", "set", "nightly", name, "4").ok()
    api.DeleteStream(name=name)
    assert bascule("cursor", "list", name).ok().rows == [["nightly", name, "0", "4", "no stream"]]
    make_stream(name=name)
    assert bascule("cursor", "list", name).ok().rows == [["nightly", name, "0", "4", "former stream"]]
    bascule("cursor", "get", "nightly", name).failed(3, "was never set")
    bascule("cursor", "delete", "nightly", name, "--yes").ok()
    assert bascule("cursor", "list", name).ok().rows == []
