"""A user moves from Go Liftbridge: its data directory is recognised, and `bascule import liftbridge` keeps the history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest

import bascule
from tests.cli.command_line import Outcome, run
from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import PRODUCT_TIMEOUTS
from tests.support.liftbridge_files import (
    GoMessage,
    GoStream,
    create_stream,
    cursor_message,
    delete_stream,
    set_readonly,
    write_partition,
    write_raft,
    write_server,
)
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually

START_NS: Final = 1_600_000_000_000_000_000


def run_bascule(*arguments: str) -> Outcome:
    return run(*arguments, home=Path("/nonexistent"))


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def order(offset: int, **fields: Any) -> GoMessage:
    headers = {b"subject": b"shop.orders", b"reply": b"", b"n": b"%d" % offset}
    return GoMessage(
        offset, b"order %d" % offset, b"k%d" % (offset % 3), START_NS + offset * 10**9, headers=headers, **fields
    )


@pytest.fixture(scope="module")
def liftbridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server with a stream of two partitions whose beginning is deleted, a compacted one, a read-only one, an empty one whose
    messages have expired, cursors, and the files of a deleted stream."""
    root = write_server(tmp_path_factory.mktemp("go"))
    write_partition(root, "orders", 0, {5: [order(n) for n in range(5, 40)], 40: [order(n) for n in range(40, 60)]})
    write_partition(root, "orders", 1, {0: [order(n, epoch=2 + n // 10) for n in range(25)], 25: []})
    compacted = [GoMessage(n, b"v%d" % n, b"k%d" % n, START_NS + n) for n in (0, 3, 4, 9, 11)]
    write_partition(root, "latest", 0, {0: compacted[:3], 9: compacted[3:]})
    write_partition(root, "closed", 0, {0: [GoMessage(0, None, None)]})
    write_partition(root, "expired", 0, {1000: []})
    write_partition(root, "gone", 0, {0: [GoMessage(0, b"deleted")]})
    cursors = [
        cursor_message(0, "reader", "orders", 0, 7),
        cursor_message(1, "reader", "orders", 1, 3),
        cursor_message(2, "reader", "orders", 0, 44),
        cursor_message(3, "reader", "gone", 0, 1),
    ]
    write_partition(root, "__cursors", 0, {0: cursors})
    write_raft(
        root,
        [
            create_stream(GoStream("__cursors", "liftbridge-default.cursors")),
            create_stream(GoStream("orders", "shop.orders", 2, {3: 3_600_000 * 24 * 3650, 5: 1 << 20, 11: 2})),
            create_stream(GoStream("gone", "gone")),
            create_stream(GoStream("latest", "latest.subject", 1, {3: 0, 8: 1})),
            create_stream(GoStream("closed", "closed.subject", 1, {3: 0})),
            set_readonly("closed", [], True),
            create_stream(GoStream("expired", "expired", 1, {3: 0})),
            delete_stream("gone"),
        ],
    )
    return root


def test_a_broker_explains_a_liftbridge_directory_and_changes_nothing(
    liftbridge: Path, tmp_path: Path, nats_server: NatsServer
) -> None:
    before = tree(liftbridge)
    broker = BrokerProcess(tmp_path, nats_url=nats_server.url)
    broker.data = liftbridge
    broker.launch()
    assert broker.wait() == 4
    said = broker.said()
    assert "is the data directory of a Go Liftbridge server" in said
    assert f"bascule import liftbridge {liftbridge} --data-dir NEW" in said
    assert tree(liftbridge) == before


@pytest.fixture(scope="module")
def imported(liftbridge: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("imported") / "data"
    before = tree(liftbridge)
    done = run_bascule("import", "liftbridge", str(liftbridge), "-d", str(target), "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["cursors"], report["left_out"]) == (2, {"gone": "deleted: it is not in the metadata"})
    found = {(one["stream"], one["partition"]): (one["messages"], one["last_offset"]) for one in report["partitions"]}
    assert found == {
        ("orders", 0): (55, 59),
        ("orders", 1): (25, 24),
        ("latest", 0): (5, 11),
        ("closed", 0): (1, 0),
        ("expired", 0): (0, -1),
    }
    assert tree(liftbridge) == before
    return target


@pytest.fixture(scope="module")
def broker(imported: Path, nats_server: NatsServer) -> Iterator[BrokerProcess]:
    found = BrokerProcess(imported.parent, nats_url=nats_server.url)
    yield found.start()
    found.kill()


@pytest.fixture(scope="module")
def api(broker: BrokerProcess) -> Iterator[Api]:
    with closing(broker.api()) as found:
        yield found


def test_messages_have_their_offsets_timestamps_keys_and_headers(api: Api) -> None:
    for partition, numbers in ((0, range(5, 60)), (1, range(25))):
        found = api.read("orders", partition)
        assert [one.offset for one in found] == list(numbers)
        assert [one.timestamp for one in found] == [START_NS + n * 10**9 for n in numbers]
        assert [one.key for one in found] == [b"k%d" % (n % 3) for n in numbers]
        assert [one.value for one in found] == [b"order %d" % n for n in numbers]
        assert {(one.headers["subject"], one.headers["reply"]) for one in found} == {(b"shop.orders", b"")}
        assert [one.headers["n"] for one in found] == [b"%d" % n for n in numbers]


def test_gaps_of_compaction_stay_gaps(api: Api) -> None:
    assert [(one.offset, one.value) for one in api.read("latest")] == [(n, b"v%d" % n) for n in (0, 3, 4, 9, 11)]


def test_streams_have_their_subjects_and_go_on(api: Api) -> None:
    assert api.stream("orders").subject == "shop.orders"
    assert len(api.stream("orders").partitions) == 2
    for stream, partition, offset in (("orders", 0, 60), ("orders", 1, 25), ("latest", 0, 12), ("expired", 0, 1000)):
        assert api.publish(stream, b"new", partition, ackPolicy=pb.ALL).offset == offset
    assert [one.value for one in api.read("closed")] == [b""]
    with refused(Status.FAILED_PRECONDITION, "readonly"):
        api.publish("closed", b"one more")
    assert api.stream("gone").error == pb.StreamMetadata.UNKNOWN_STREAM


def test_cursors_are_where_they_were(api: Api) -> None:
    assert api.FetchCursor(stream="orders", partition=0, cursorId="reader").offset == 44
    assert api.FetchCursor(stream="orders", partition=1, cursorId="reader").offset == 3
    api.SetCursor(stream="orders", partition=0, cursorId="reader", offset=45)
    assert api.FetchCursor(stream="orders", partition=0, cursorId="reader").offset == 45


def test_everything_is_there_after_a_kill_of_the_broker(broker: BrokerProcess, api: Api) -> None:
    before = [(one.offset, one.value) for one in api.read("orders", 0)]
    broker.restart()
    with closing(broker.api()) as again:
        assert [(one.offset, one.value) for one in again.read("orders", 0)] == before


def test_an_imported_cluster_grows_to_three_brokers(liftbridge: Path, tmp_path: Path, nats_server: NatsServer) -> None:
    """As the guide says: the others join with empty directories, then streams get more replicas."""
    done = run_bascule("import", "liftbridge", str(liftbridge), "-d", str(tmp_path / "first" / "data"))
    assert done.code == 0, done.err
    config = {**PRODUCT_TIMEOUTS, "clustering.namespace": unique_name("grown")}
    brokers = [
        BrokerProcess(tmp_path / name, nats_url=nats_server.url, config=config, seed=name == "first")
        for name in ("first", "second", "third")
    ]
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.kill)
            broker.start()
        addresses = ",".join(broker.address for broker in brokers)

        def reassigned() -> bool:
            done = run_bascule("cluster", "reassign", "orders", "--replication-factor", "3", "--server", addresses)
            return done.code == 0

        eventually(reassigned, "three brokers are members, and the stream gets three replicas")
        client = stack.enter_context(bascule.blocking.connect(addresses, timeout=60))

        def in_sync() -> bool:
            found = client.fetch_metadata(["orders"]).streams["orders"].partitions.values()
            return all(len(one.in_sync_replicas) == 3 for one in found)

        eventually(in_sync, "every replica has the imported messages")
        brokers[0].kill()
        for partition, numbers in ((0, range(5, 60)), (1, range(25))):
            messages = client.subscribe("orders", partition=partition, start="earliest", stop="latest")
            found = [(one.offset, one.value) for one in messages]
            assert found == [(n, b"order %d" % n) for n in numbers]


# ── imports that are not made ────────────────────────────────────────────────────────────────────


def test_a_dry_run_writes_nothing(liftbridge: Path, tmp_path: Path) -> None:
    done = run_bascule("import", "liftbridge", str(liftbridge), "-d", str(tmp_path / "new"), "--dry-run")
    assert done.code == 0, done.err
    assert "orders\t0\tshop.orders\t55\t5\t59" in done.out
    assert "86 messages of 4 streams and 2 cursors can be imported" in done.out
    assert not (tmp_path / "new").exists()


def test_a_directory_with_data_is_not_a_target(liftbridge: Path, imported: Path, tmp_path: Path) -> None:
    before = tree(imported / "raft")
    done = run_bascule("import", "liftbridge", str(liftbridge), "-d", str(imported))
    assert (done.code, "is not empty" in done.err) == (3, True)
    assert tree(imported / "raft") == before
    done = run_bascule("import", "liftbridge", str(liftbridge), "-d", str(liftbridge))
    assert (done.code, "is the directory of a Liftbridge server" in done.err) == (3, True)
    done = run_bascule("import", "liftbridge", str(tmp_path), "-d", str(tmp_path / "new"))
    assert (done.code, "is not the data directory of a Go Liftbridge server" in done.err) == (4, True)


def test_an_interrupted_import_starts_no_broker_and_can_be_repeated(
    liftbridge: Path, tmp_path: Path, start_broker: StartBroker
) -> None:
    target = tmp_path / "half" / "data"
    done = run_bascule("import", "liftbridge", str(liftbridge), "-d", str(target), "--stream", "latest")
    assert done.code == 0, done.err
    (target / "import-unfinished").touch()  # as a crash before the last step leaves it
    broker = start_broker(directory=target.parent, launch_only=True)
    assert broker.wait() == 4
    assert "was interrupted" in broker.said()
    done = run_bascule("import", "liftbridge", str(liftbridge), "-d", str(target), "--stream", "orders")
    assert done.code == 0, done.err
    broker.start()
    with closing(broker.api()) as api:
        assert len(api.read("orders", 0)) == 55
        assert api.stream("latest").error == pb.StreamMetadata.UNKNOWN_STREAM
