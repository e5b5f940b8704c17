"""Which stream a folder of logs belongs to, whatever crashed when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.errors import StorageError
from bascule.log import LogStore, new_batch
from bascule.log.disk.operations import PosixDisk
from bascule.log.disk.stream_marker import FILE_NAME, read_marker, write_marker
from bascule.metadata.core.model.streams import Stream
from bascule.metadata.stream_options import StreamSettings, settings_of
from bascule.partition.stream_data import StreamData


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with LogStore(tmp_path) as opened:
        yield opened


def stream(name: str, stream_id: int) -> Stream:
    return Stream(name, stream_id, name, "", 0, {}, [])


def settings() -> StreamSettings:
    return settings_of(stream("x", 1))


def write(data: StreamData, name: str, value: bytes, partition: int = 0) -> None:
    batch = new_batch()
    batch.add(None, value)
    data.log(stream(name, 5), partition, settings()).append(batch, leader_epoch=1)


def test_a_stream_finds_its_data_again(store: LogStore) -> None:
    data = StreamData(store)
    data.claim(stream("orders", 5))
    write(data, "orders", b"kept")
    again = StreamData(store)
    again.claim(stream("orders", 5))
    assert again.log(stream("orders", 5), 0, settings()).record_count == 1


def test_a_new_stream_of_an_old_name_begins_empty(store: LogStore) -> None:
    data = StreamData(store)
    data.claim(stream("orders", 5))
    write(data, "orders", b"old")
    write(data, "orders", b"old", partition=1)
    data.claim(stream("orders", 9))
    assert data.log(stream("orders", 9), 0, settings()).log_end_offset == 0
    assert data.log(stream("orders", 9), 1, settings()).log_end_offset == 0
    assert read_marker(PosixDisk(), store.directory / "streams" / "orders") == 9


def test_deleting_an_earlier_stream_leaves_a_later_one_alone(store: LogStore) -> None:
    data = StreamData(store)
    data.claim(stream("orders", 9))
    write(data, "orders", b"new")
    data.delete_stream("orders", 5)
    assert data.log(stream("orders", 9), 0, settings()).record_count == 1


def test_deleting_a_stream_removes_its_folder(store: LogStore) -> None:
    data = StreamData(store)
    data.claim(stream("orders", 5))
    write(data, "orders", b"old")
    data.delete_stream("orders", 5)
    assert data.streams_on_disk() == []
    assert not (store.directory / "streams" / "orders").exists()


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_one(store: LogStore) -> None:
    data = StreamData(store)
    data.claim(stream("orders", 5))
    write(data, "orders", b"old", partition=0)
    write(data, "orders", b"old", partition=1)
    store.delete_log("orders", 0)
    data.delete_stream("orders", 5)
    assert data.streams_on_disk() == []


def test_metadata_older_than_the_data_deletes_nothing(store: LogStore) -> None:
    data = StreamData(store)
    data.claim(stream("orders", 9))
    write(data, "orders", b"new")
    with pytest.raises(StorageError, match="later stream"):
        StreamData(store).claim(stream("orders", 5))
    assert data.log(stream("orders", 9), 0, settings()).record_count == 1


@pytest.mark.parametrize("damage", [b"", b"garbage", b'{"id":5,"version":1}\n00000000\n'])
def test_a_damaged_marker_is_reported_and_deletes_nothing(tmp_path: Path, damage: bytes) -> None:
    write_marker(PosixDisk(), tmp_path, 5)
    (tmp_path / FILE_NAME).write_bytes(damage)
    with pytest.raises(StorageError, match="damaged"):
        read_marker(PosixDisk(), tmp_path)


def test_a_log_is_set_aside_although_the_disk_fails_midway(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt neither fails nor deletes the log that the first one has moved."""
    data = StreamData(store)
    data.claim(stream("orders", 5))
    write(data, "orders", b"damaged")

    def fail(_disk: PosixDisk, path: str) -> None:
        if "quarantine" in path:
            raise StorageError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(PosixDisk, "sync_directory", fail)
        with pytest.raises(StorageError, match="planted"):
            data.set_aside("orders", 0)
    place = data.set_aside("orders", 0)
    assert not data.is_on_disk("orders", 0)
    assert any(b"damaged" in file.read_bytes() for file in place.iterdir())
    write(data, "orders", b"damaged again")
    assert data.set_aside("orders", 0) == place
    assert any(b"damaged again" in file.read_bytes() for file in place.iterdir())
