"""An archive in an object store: a real server that speaks S3, with 500s, slow answers and answers that are lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from bascule.errors import ArchiveConflict, ArchiveUnreachable, BasculeError, CallerError, PermissionDenied
from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction
from bascule.lake.coverage import ArchiveFollower, coverage_of
from bascule.lake.delta.log import commit_name
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import ArchiveState, Commit, Covered
from bascule.lake.files import WriteTask
from bascule.lake.housekeeping import Housekeeping
from bascule.lake.ranges import offset_at, read_rows
from bascule.lake.repair import repair_files
from bascule.lake.verification import Verification
from tests.support.compacting import messages
from tests.support.object_store import KEYS, ObjectStore, object_store
from tests.unit.lake.test_lake_verification import Log


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store")) as found:
        found.create_bucket("lake")
        yield found


@pytest.fixture
def store(server: ObjectStore) -> ObjectStore:
    server.clear()
    return server


def place(store: ObjectStore, name: str) -> LakePlace:
    return LakePlace.of(f"s3a://lake/{name}", store.options)


def append(archive: Archive, state: ArchiveState, rows: int = 10) -> None:
    """As the job does: a task writes, the driver commits."""
    first = state.next_offsets.get(("orders", 7, 0), 0)
    files = WriteTask(archive.place, {("orders", 0): first}).write(iter([messages(first, rows)]))
    added = tuple(replace(one, stream_id=7) for one in files)
    covered = (Covered("orders", 7, 0, first, first + rows),)
    state.apply(archive.commit(Commit(state.number + 1, "append", 1, added=added, covered=covered), state))


def begun(store: ObjectStore, name: str, commits: int = 0) -> tuple[Archive, ArchiveState]:
    archive = Archive(place(store, name))
    archive.create(["orders"])
    state = Housekeeping(archive).begin()
    for _ in range(commits):
        append(archive, state)
    return archive, state


def proved(archive: Archive, log: Any = None) -> Any:
    return Verification(archive, log, lambda _: None).run()


def test_an_archive_lives_in_an_object_store(store: ObjectStore) -> None:
    archive, state = begun(store, "whole", commits=5)
    assert archive.place.uri == "s3://lake/whole"
    assert proved(archive, Log(messages(0, 50))).faults == []
    assert DeltaTable("s3://lake/whole", storage_options=store.options).to_pyarrow_table().num_rows == 50
    follower = ArchiveFollower(Archive(archive.place))
    follower.look()
    merged = Compaction(archive).round(state)
    assert merged is not None and len(state.files) < 5
    follower.look()
    known = follower.stream("orders")[7][0]
    assert (known.start, known.end) == (0, 50) and known.files == coverage_of(state)["orders"][7][0].files
    (one,) = known.files_in(20, 22)
    (found,) = (batch["offset"].to_pylist() for _, batch in read_rows(archive.place, one, 20, 22, ("offset",)))
    assert found == [20, 21]
    assert offset_at(archive.place, known, 33) == 33
    Housekeeping(archive, 0.0).begin()
    data = {key.removeprefix("whole/") for key in store.keys("lake", "whole/date=")}
    assert data == set(state.files), "after the retention replaced files are gone"
    assert proved(archive).faults == []


def test_damage_in_an_object_store_is_named_and_repaired(store: ObjectStore) -> None:
    archive, state = begun(store, "damaged", commits=3)
    gone, changed = (one.path for one in state.in_order()[:2])
    client = store.client()
    client.delete_object(Bucket="lake", Key=f"damaged/{gone}")
    content = client.get_object(Bucket="lake", Key=f"damaged/{changed}")["Body"].read()
    client.put_object(
        Bucket="lake", Key=f"damaged/{changed}", Body=content[:100] + bytes([content[100] ^ 0x40]) + content[101:]
    )
    log = Log(messages(0, 30))
    assert {fault.kind for fault in proved(archive, log).faults} >= {"file-missing"}
    assert len(repair_files(archive, log).repaired) == 2  # type: ignore[arg-type]
    assert proved(archive, log).faults == []
    client.delete_object(Bucket="lake", Key=f"damaged/{commit_name(5)}")
    assert {fault.kind for fault in proved(archive).faults} >= {"commits-missing"}


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("500", "_delta_log/"),
        ("503", "date="),
        ("slow", "_delta_log/"),
        ("lost", "_delta_log/00000000000000000002.json"),
        ("lost", "date="),
        ("lost", "_bascule/head.json"),
    ],
)
def test_what_the_store_does_wrong_makes_nothing_double_and_loses_nothing(
    store: ObjectStore, kind: str, part: str
) -> None:
    name = f"fault-{kind}-{part.strip('_/=.')[:5]}"
    archive, state = begun(store, name, commits=1)
    store.fail(kind, "PUT", f"{name}/{part}", times=2 if kind != "lost" else 1)
    for _ in range(3):
        append(archive, state)
    assert store.happened, "the fault has happened"
    report = proved(Archive(archive.place), Log(messages(0, 40)))
    assert (report.faults, report.rows) == ([], 40)
    assert Archive(archive.place).state().whole() == state.whole()


def test_of_two_writers_the_second_stops_and_nothing_is_double(store: ObjectStore) -> None:
    first, one = begun(store, "two", commits=1)
    second = Archive(place(store, "two"))
    other = second.state()
    said: list[BaseException] = []
    start = threading.Barrier(2)

    def write(archive: Archive, state: ArchiveState) -> None:
        start.wait()
        try:
            for _ in range(4):
                append(archive, state)
        except ArchiveConflict as error:
            said.append(error)

    writers = [threading.Thread(target=write, args=pair) for pair in ((first, one), (second, other))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert said and all("s3://lake/two" in str(error) for error in said)
    found = first.state()
    assert found.rows == found.next_offsets["orders", 7, 0] >= 20
    assert proved(first, Log(messages(0, 100))).faults == []


@pytest.mark.parametrize(
    ("path", "options", "fault", "kind", "what"),
    [
        ("s3://missing/orders", {}, None, ArchiveUnreachable, "there is no such bucket"),
        ("s3://lake/keys", {}, "403", PermissionDenied, "does not accept the credentials"),
        ("s3://lake/region", {}, "301", ArchiveUnreachable, "is in another region"),
        (
            "s3://lake/away",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "max_retries": "1"},
            None,
            ArchiveUnreachable,
            "does not answer",
        ),
    ],
)
def test_what_is_wrong_with_a_store_is_one_line_without_secrets(
    store: ObjectStore, path: str, options: dict[str, str], fault: str | None, kind: type[BasculeError], what: str
) -> None:
    if fault is not None:
        for method in ("GET", "PUT", "HEAD"):
            store.fail(fault, method, path.removeprefix("s3://lake"), times=1_000)
            store.fail(fault, method, "prefix=" + path.removeprefix("s3://lake/"), times=1_000)
    archive = Archive(LakePlace.of(path, {**store.options, **options}))
    for act in (lambda: archive.create(["orders"]), archive.state):
        with pytest.raises(kind, match=what) as caught:
            act()
        text = f"{caught.value} {caught.value.hint}"
        assert "\n" not in caught.value.message and caught.value.hint and path in text
        assert KEYS["AWS_SECRET_ACCESS_KEY"] not in text
    assert store.keys("lake", path.removeprefix("s3://lake/")) == []


def test_a_prefix_with_something_else_is_left_alone(store: ObjectStore) -> None:
    store.client().put_object(Bucket="lake", Key="mine/x.txt", Body=b"x")
    with pytest.raises(CallerError, match="not empty"):
        Archive(place(store, "mine")).create(["orders"])
    assert store.keys("lake", "mine") == ["mine/x.txt"]


def test_a_local_table_shows_no_option(tmp_path: Path) -> None:
    assert "secret" not in repr(LakePlace.of(tmp_path / "x", {"key": "secret"}))
