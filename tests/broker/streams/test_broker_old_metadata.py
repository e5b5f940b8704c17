"""A broker opens the metadata that an older version wrote: a Raft snapshot and the entries after it, policies, groups and cursors.

old_data_writer.py wrote `metadata_directory/`. It stays in the repository as it is, and every later version has to open it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker.streams.old_data_writer import (
    CURSORS,
    GROUP,
    KEYS,
    MEMBERS,
    MESSAGES,
    POLICIES,
    SERVER,
    STREAMS,
    PolicedBroker,
    first_offset,
    value_of,
)
from tests.support.api_client import Api, Status, pb, refused

WRITTEN: Final = Path(__file__).with_name("metadata_directory")


@pytest.fixture(scope="module")
def policed(tmp_path_factory: pytest.TempPathFactory) -> PolicedBroker:
    broker = PolicedBroker(tmp_path_factory.mktemp("old-metadata"))
    shutil.copytree(WRITTEN, broker.process.data)
    return broker


@pytest.fixture(scope="module")
def api(policed: PolicedBroker) -> Iterator[Api]:
    with policed.running() as found:
        yield found


def test_the_directory_has_a_snapshot_and_entries_after_it(policed: PolicedBroker) -> None:
    (snapshot,) = (WRITTEN / "raft").glob("snapshot-*")
    assert int(snapshot.name.split("-")[1]) > 0
    assert list((WRITTEN / "raft").glob("*.wal"))
    del policed


def test_streams_of_the_snapshot_are_there_and_deleted_ones_are_not(api: Api) -> None:
    known = {one.name for one in api.FetchMetadata().streamMetadata if not one.name.startswith("__")}
    assert known == set(STREAMS)
    assert len(api.stream("orders").partitions) == STREAMS["orders"]["partitions"]
    assert api.partition("packed").readonly
    with refused(Status.FAILED_PRECONDITION, "readonly"):
        api.publish("packed", b"one more")


def test_the_policy_is_there_and_counts(api: Api, policed: PolicedBroker) -> None:
    assert set(policed.policies()) == set(POLICIES)
    bob = Api(policed.process.address, policed.authority.credentials(policed.authority.issue("bob")))
    assert bob.subscribe("orders", startPosition=pb.EARLIEST).next().value == value_of("orders", 0)
    with refused(Status.PERMISSION_DENIED):
        bob.publish("orders", b"x")
    bob.close()
    del api


def test_members_of_the_group_have_their_partitions(api: Api) -> None:
    (group,) = api.FetchMetadata(groups=[GROUP]).groupMetadata
    assert (group.error, group.coordinator) == (pb.ConsumerGroupMetadata.OK, SERVER)
    assigned = [
        partition
        for member in MEMBERS
        for one in api.FetchConsumerGroupAssignments(groupId=GROUP, consumerId=member, epoch=group.epoch).assignments
        for partition in one.partitions
    ]
    assert sorted(assigned) == [0, 1]


def test_cursors_are_where_they_were(api: Api) -> None:
    for name, offset in CURSORS.items():
        assert api.FetchCursor(stream="orders", partition=0, cursorId=name).offset == offset


def test_cleaned_and_compressed_logs_open(api: Api) -> None:
    for name in ("retained", "packed"):
        start = first_offset(api, name)
        assert (start > 0) == (name == "retained")
        values = [(one.offset, one.value) for one in api.read(name)]
        assert values == [(number, value_of(name, number)) for number in range(start, MESSAGES)]
    latest = {one.key: one.value for one in api.read("latest")}
    assert latest == {
        b"k%d" % (number % KEYS): value_of("latest", number) for number in range(MESSAGES - KEYS, MESSAGES)
    }
    assert len(api.read("latest")) < MESSAGES


def test_the_metadata_goes_on(api: Api) -> None:
    """The last test: entries of this version follow those of the old one."""
    api.CreateStream(name="new", subject="new")
    assert api.publish("new", b"x", ackPolicy=pb.ALL).offset == 0
    assert api.publish("orders", b"x", ackPolicy=pb.ALL).offset == MESSAGES
