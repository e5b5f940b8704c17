"""SetCursor and FetchCursor: where a consumer was."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc  # type: ignore[import-untyped]
import pytest

from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.waiting import eventually


def test_a_cursor_nobody_set_is_minus_one(api: Api, make_stream: MakeStream) -> None:
    assert api.FetchCursor(stream=make_stream().name, partition=0, cursorId="new").offset == -1


def test_a_cursor_is_what_was_set_last(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for offset in range(10):
        api.SetCursor(stream=stream.name, partition=0, cursorId="c", offset=offset)
        assert api.FetchCursor(stream=stream.name, partition=0, cursorId="c").offset == offset


@pytest.mark.parametrize("offset", [0, -1, -5, 2**63 - 1, -(2**63)])
def test_any_number_is_accepted_and_may_go_backwards(api: Api, offset: int) -> None:
    cursor = {"stream": unique_name("s"), "partition": 0, "cursorId": "c"}
    api.SetCursor(**cursor, offset=77)
    api.SetCursor(**cursor, offset=offset)
    assert api.FetchCursor(**cursor).offset == offset


def test_a_cursor_is_replaced_only_if_it_is_what_the_caller_believes(api: Api) -> None:
    cursor = {"stream": unique_name("s"), "partition": 0, "cursorId": "c"}
    with refused(Status.ABORTED, "cursor c is -1, not 3"):
        api.SetCursor(**cursor, offset=7, expected=3)
    assert api.FetchCursor(**cursor).offset == -1
    for expected, offset in ((-1, 0), (0, 5), (5, -2), (-2, -1), (-1, 9)):
        api.SetCursor(**cursor, offset=offset, expected=expected)
        assert api.FetchCursor(**cursor).offset == offset
    api.SetCursor(**cursor, offset=9, expected=-1)  # whose answer was lost
    with refused(Status.ABORTED, "cursor c is 9, not 0"):
        api.SetCursor(**cursor, offset=1, expected=0)
    api.SetCursor(**cursor, offset=2)
    assert api.FetchCursor(**cursor).offset == 2


def test_of_many_that_replace_a_cursor_at_once_one_succeeds(api: Api) -> None:
    cursor = {"stream": unique_name("s"), "partition": 0, "cursorId": "c"}

    def take(number: int) -> int | None:
        try:
            api.SetCursor(**cursor, offset=number, expected=-1)
        except grpc.RpcError as error:
            assert error.code() == Status.ABORTED
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(take, range(40)) if number is not None]
    assert winners == [api.FetchCursor(**cursor).offset]


def test_cursors_of_different_ids_streams_and_partitions_are_different(api: Api, make_stream: MakeStream) -> None:
    streams = [make_stream(partitions=2), make_stream(partitions=2)]
    places = [(stream.name, partition, f"c{n}") for stream in streams for partition in (0, 1) for n in range(3)]
    for number, (stream, partition, cursor) in enumerate(places):
        api.SetCursor(stream=stream, partition=partition, cursorId=cursor, offset=number)
    for number, (stream, partition, cursor) in enumerate(places):
        assert api.FetchCursor(stream=stream, partition=partition, cursorId=cursor).offset == number


@pytest.mark.parametrize("missing", ["stream", "cursorId"])
def test_an_empty_stream_or_id_is_refused(api: Api, missing: str) -> None:
    cursor = {"stream": "s", "partition": 0, "cursorId": "c", missing: ""}
    with refused(Status.INVALID_ARGUMENT):
        api.SetCursor(**cursor, offset=1)
    with refused(Status.INVALID_ARGUMENT):
        api.FetchCursor(**cursor)


def test_streams_that_do_not_exist_have_cursors_too(api: Api) -> None:
    cursor = {"stream": unique_name("never-was"), "partition": 7, "cursorId": "c"}
    assert api.FetchCursor(**cursor).offset == -1
    api.SetCursor(**cursor, offset=3)
    assert api.FetchCursor(**cursor).offset == 3


def test_ids_of_groups_and_other_odd_ids_work(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for number, cursor in enumerate(("__group:g", "with space", "größe", "a/b", "x" * 256, "a,b")):
        api.SetCursor(stream=stream.name, partition=0, cursorId=cursor, offset=number)
        assert api.FetchCursor(stream=stream.name, partition=0, cursorId=cursor).offset == number


def test_without_a_deadline_cursors_work_as_well(api: Api, make_stream: MakeStream) -> None:
    """gufo calls them like this."""
    stream = make_stream()
    api.SetCursor(stream=stream.name, partition=0, cursorId="c", offset=4, timeout=None)
    assert api.FetchCursor(stream=stream.name, partition=0, cursorId="c", timeout=None).offset == 4


def test_many_cursors_set_at_once_are_all_kept(api: Api, make_stream: MakeStream) -> None:
    """More of them than a server remembers without looking."""
    stream, count = make_stream(), 700
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda n: api.SetCursor(stream=stream.name, partition=0, cursorId=f"c{n}", offset=n), range(count))
        )
    for number in range(0, count, 7):
        assert api.FetchCursor(stream=stream.name, partition=0, cursorId=f"c{number}").offset == number


def test_without_a_cursors_stream_they_fail(start_broker: StartBroker) -> None:
    api = start_broker({"cursors.stream.partitions": 0}).api()
    assert "__cursors" not in [stream.name for stream in api.FetchMetadata().streamMetadata]
    with refused(Status.INTERNAL):
        api.SetCursor(stream="s", partition=0, cursorId="c", offset=1)
    with refused(Status.INTERNAL):
        api.FetchCursor(stream="s", partition=0, cursorId="c")
    api.close()


def test_cursors_are_spread_over_partitions_and_survive_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker({"cursors.stream.partitions": 3})
    api = broker.api()
    eventually(lambda: len(api.stream("__cursors").partitions) == 3, "the cursors stream is there")
    for number in range(30):
        api.SetCursor(stream="s", partition=0, cursorId=f"c{number}", offset=number)
        api.SetCursor(stream="s", partition=0, cursorId=f"c{number}", offset=number + 1)
    used = [api.partition("__cursors", partition).newestOffset for partition in range(3)]
    assert all(newest >= 0 for newest in used), used
    assert sum(newest + 1 for newest in used) >= 60  # one whose ack is late is published once more
    api.close()
    broker.restart()
    api = broker.api()
    for number in range(30):
        assert api.FetchCursor(stream="s", partition=0, cursorId=f"c{number}").offset == number + 1
    assert api.FetchCursor(stream="s", partition=0, cursorId="never").offset == -1
    api.close()


def test_the_partition_of_a_cursor_is_the_one_that_clients_compute(start_broker: StartBroker) -> None:
    """Go asks the leader of CRC-32 IEEE(`id,stream,partition`) mod partitions."""
    api = start_broker({"cursors.stream.partitions": 4}).api()
    eventually(lambda: len(api.stream("__cursors").partitions) == 4, "the cursors stream is there")
    for number in range(8):
        partition = zlib.crc32(f"c{number},s,5".encode()) % 4
        before = api.partition("__cursors", partition).newestOffset
        api.SetCursor(stream="s", partition=5, cursorId=f"c{number}", offset=1)
        assert api.partition("__cursors", partition).newestOffset > before
        newest = api.read("__cursors", partition)[-1]
        assert newest.key == f"c{number},s,5".encode()
    api.close()


def test_a_cursors_partition_that_paused_itself_is_resumed_by_use(start_broker: StartBroker) -> None:
    broker = start_broker({"cursors.stream.partitions": 1, "cursors.stream.auto.pause.time": "300ms"})
    api = broker.api()
    eventually(lambda: api.stream("__cursors").partitions, "the cursors stream is there")

    def is_paused() -> bool:
        return bool(api.stream("__cursors").partitions[0].paused)

    api.SetCursor(stream="s", partition=0, cursorId="c", offset=5)
    eventually(is_paused, "the cursors partition is paused")
    assert api.FetchCursor(stream="s", partition=0, cursorId="c").offset == 5
    eventually(is_paused, "the cursors partition is paused again")
    assert api.FetchCursor(stream="s", partition=0, cursorId="unknown").offset == -1
    eventually(is_paused, "the cursors partition is paused again")
    api.SetCursor(stream="s", partition=0, cursorId="c", offset=6)
    assert api.FetchCursor(stream="s", partition=0, cursorId="c").offset == 6
    api.close()


def test_cursors_are_told_to_no_subscriber_but_those_of_their_stream(api: Api) -> None:
    """The stream is an ordinary one to read from, and compaction keeps the newest of each key."""
    api.SetCursor(stream="s", partition=0, cursorId=unique_name("seen"), offset=1)
    assert api.read("__cursors")
    assert api.stream("__cursors").error == pb.StreamMetadata.OK
