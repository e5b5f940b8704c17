"""Where a subscription begins and where it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.api_client import Api, Status, Subscription, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, Stream
from tests.support.waiting import eventually, pause

AFTER = b"published after the subscription began"


@pytest.fixture
def five(api: Api, make_stream: MakeStream) -> tuple[Stream, list[Any]]:
    """A stream with five messages, and their acks; each has a time of its own."""
    stream = make_stream()
    acks = [api.publish(stream.name, f"m{number}") for number in range(5)]
    times = [ack.receptionTimestamp for ack in acks]
    assert len(set(times)) == 5
    assert times == sorted(times)
    return stream, acks


def offsets(messages: list[Any]) -> list[int]:
    return [message.offset for message in messages]


def first_of(api: Api, stream: Stream, **fields: Any) -> tuple[int, bytes]:
    """What a subscription delivers first when one more message is published after it began."""
    subscription = api.subscribe(stream.name, **fields)
    api.publish(stream.name, AFTER)
    message = subscription.next()
    subscription.cancel()
    return message.offset, message.value


# ── start ────────────────────────────────────────────────────────────────────────────────────────


def test_new_only_begins_with_the_next_message(api: Api, five: tuple[Stream, list[Any]]) -> None:
    assert first_of(api, five[0], startPosition=pb.NEW_ONLY) == (5, AFTER)


def test_earliest_begins_with_the_oldest(api: Api, five: tuple[Stream, list[Any]]) -> None:
    assert first_of(api, five[0], startPosition=pb.EARLIEST) == (0, b"m0")


def test_latest_begins_with_the_newest(api: Api, five: tuple[Stream, list[Any]]) -> None:
    subscription = api.subscribe(five[0].name, startPosition=pb.LATEST)
    assert subscription.next().offset == 4
    api.publish(five[0].name, AFTER)
    assert subscription.next().offset == 5
    subscription.cancel()


@pytest.mark.parametrize(("asked", "first"), [(0, 0), (3, 3), (4, 4), (5, 5), (6, 5), (100, 5), (-1, 0), (-(2**63), 0)])
def test_an_offset_is_where_it_begins_or_the_nearest_there_is(
    api: Api, five: tuple[Stream, list[Any]], asked: int, first: int
) -> None:
    assert first_of(api, five[0], startPosition=pb.OFFSET, startOffset=asked)[0] == first


def test_the_largest_offset_begins_with_the_next_message(api: Api, five: tuple[Stream, list[Any]]) -> None:
    assert first_of(api, five[0], startPosition=pb.OFFSET, startOffset=2**63 - 1) == (5, AFTER)


def test_a_time_begins_with_the_first_message_that_is_not_older(api: Api, five: tuple[Stream, list[Any]]) -> None:
    stream, acks = five
    for number, ack in enumerate(acks):
        exact = api.subscribe(stream.name, startPosition=pb.TIMESTAMP, startTimestamp=ack.receptionTimestamp)
        assert exact.next().offset == number
        exact.cancel()
    between = acks[2].receptionTimestamp + 1
    assert first_of(api, stream, startPosition=pb.TIMESTAMP, startTimestamp=between)[0] == 3


@pytest.mark.parametrize("time", [0, -1, -(2**63), -6_795_364_578_871_345_152])
def test_a_time_before_everything_begins_with_the_oldest(api: Api, five: tuple[Stream, list[Any]], time: int) -> None:
    assert first_of(api, five[0], startPosition=pb.TIMESTAMP, startTimestamp=time)[0] == 0


def test_a_time_in_the_future_begins_with_the_next_message(api: Api, five: tuple[Stream, list[Any]]) -> None:
    assert first_of(api, five[0], startPosition=pb.TIMESTAMP, startTimestamp=2**63 - 1) == (5, AFTER)


@pytest.mark.parametrize(
    "fields",
    [
        {"startPosition": pb.NEW_ONLY},
        {"startPosition": pb.EARLIEST},
        {"startPosition": pb.LATEST},
        {"startPosition": pb.OFFSET, "startOffset": 0},
        {"startPosition": pb.OFFSET, "startOffset": 100},
        {"startPosition": pb.OFFSET, "startOffset": -1},
        {"startPosition": pb.TIMESTAMP, "startTimestamp": 0},
        {"startPosition": pb.TIMESTAMP, "startTimestamp": 2**63 - 1},
    ],
)
def test_every_start_on_an_empty_partition_waits_for_the_first_message(
    api: Api, make_stream: MakeStream, fields: dict[str, Any]
) -> None:
    assert first_of(api, make_stream(), **fields) == (0, AFTER)


def test_times_are_ignored_unless_the_position_asks_for_them(api: Api, five: tuple[Stream, list[Any]]) -> None:
    """Go clients always send them, and an unset time of Go is a large negative number."""
    ages_ago = -6_795_364_578_871_345_152
    subscription = api.subscribe(five[0].name, startTimestamp=ages_ago, stopTimestamp=ages_ago, stopOffset=1)
    assert offsets(subscription.take(5)) == [0, 1, 2, 3, 4]
    subscription.cancel()


def test_a_subscriber_that_begins_in_the_middle_gets_everything_from_there(api: Api, make_stream: MakeStream) -> None:
    """Publish 5, receive 5 in order with keys; 5 more, receive; replay from offset 5."""
    stream = make_stream()
    subscription = api.subscribe(stream.name)
    for start in (0, 5):
        for number in range(start, start + 5):
            api.publish(stream.name, f"value {number}", key=f"key {number}".encode())
        found = subscription.take(5)
        assert offsets(found) == list(range(start, start + 5))
        assert [message.key for message in found] == [f"key {number}".encode() for number in range(start, start + 5)]
    again = api.subscribe(stream.name, startPosition=pb.OFFSET, startOffset=5)
    assert [message.value for message in again.take(5)] == [f"value {number}".encode() for number in range(5, 10)]
    subscription.cancel()
    again.cancel()


def test_an_offset_that_was_published_but_not_acked_yet_is_waited_for(api: Api, make_stream: MakeStream) -> None:
    """gufo subscribes from offset 5 right after ten publishes that it did not wait for. What was answered with OK counts, although
    it may still be on its way through NATS."""
    for _ in range(30):
        stream = make_stream()
        for number in range(10):
            api.Publish(stream=stream.name, value=b"%d" % number, timeout=None)
        subscription = api.subscribe(stream.name, startPosition=pb.OFFSET, startOffset=5)
        assert [message.value for message in subscription.take(5)] == [b"5", b"6", b"7", b"8", b"9"]
        subscription.cancel()


def test_what_is_still_on_its_way_through_nats_counts_as_published(start_broker: StartBroker) -> None:
    """The same on a machine as slow as can be: nats-server stands still while the client publishes and subscribes."""
    broker = start_broker(embedded=True)
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    (nats,) = broker.children()
    pause(nats)
    for number in range(10):
        api.Publish(stream="s", value=b"%d" % number, timeout=None)
    subscription = api.open_subscription("s", startPosition=pb.OFFSET, startOffset=5)
    assert api.FetchMetadata().brokers  # behind the subscription on the same connection
    os.kill(nats, signal.SIGCONT)
    subscription.shake_hands()
    assert [message.value for message in subscription.take(5)] == [b"5", b"6", b"7", b"8", b"9"]
    api.close()


# ── stop ─────────────────────────────────────────────────────────────────────────────────────────


def read_to_the_end(subscription: Subscription, text: str = "Stop offset reached") -> list[int]:
    found = offsets(list(subscription.rest()))
    code, details = subscription.end()
    assert code is Status.RESOURCE_EXHAUSTED, (code, details)
    assert text in details, details
    return found


@pytest.mark.parametrize("stop", range(5))
def test_a_stop_offset_is_delivered_and_nothing_behind_it(api: Api, five: tuple[Stream, list[Any]], stop: int) -> None:
    subscription = api.subscribe(five[0].name, stopPosition=pb.STOP_OFFSET, stopOffset=stop)
    assert read_to_the_end(subscription) == list(range(stop + 1))


def test_a_stop_offset_that_is_also_the_start_delivers_one(api: Api, five: tuple[Stream, list[Any]]) -> None:
    subscription = api.subscribe(
        five[0].name, startPosition=pb.OFFSET, startOffset=2, stopPosition=pb.STOP_OFFSET, stopOffset=2
    )
    assert read_to_the_end(subscription) == [2]


def test_a_stop_offset_in_the_future_is_waited_for(api: Api, five: tuple[Stream, list[Any]]) -> None:
    subscription = api.subscribe(five[0].name, stopPosition=pb.STOP_OFFSET, stopOffset=6)
    assert offsets(subscription.take(5)) == [0, 1, 2, 3, 4]
    for _ in range(3):
        api.publish(five[0].name, AFTER)
    assert read_to_the_end(subscription) == [5, 6]


def test_a_stop_offset_on_an_empty_partition_is_waited_for(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    subscription = api.subscribe(stream.name, stopPosition=pb.STOP_OFFSET, stopOffset=0)
    api.publish(stream.name, AFTER)
    assert read_to_the_end(subscription) == [0]


def test_stop_latest_is_the_newest_message_when_the_subscription_began(
    api: Api, five: tuple[Stream, list[Any]]
) -> None:
    subscription = api.subscribe(five[0].name, stopPosition=pb.STOP_LATEST)
    api.publish(five[0].name, AFTER)
    assert read_to_the_end(subscription) == [0, 1, 2, 3, 4]


def test_stop_latest_on_an_empty_partition_is_refused_before_the_handshake(api: Api, make_stream: MakeStream) -> None:
    """Go calls this a read-only partition."""
    subscription = api.open_subscription(make_stream().name, stopPosition=pb.STOP_LATEST)
    subscription.expect_end(Status.RESOURCE_EXHAUSTED, "Stream is empty")


def test_a_range_of_times_includes_both_ends(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    acks = [api.publish(stream.name, f"m{number}") for number in range(10)]
    subscription = api.subscribe(
        stream.name,
        startPosition=pb.TIMESTAMP,
        startTimestamp=acks[2].receptionTimestamp,
        stopPosition=pb.STOP_TIMESTAMP,
        stopTimestamp=acks[6].receptionTimestamp,
    )
    assert read_to_the_end(subscription) == [2, 3, 4, 5, 6]


def test_a_stop_time_between_two_messages_ends_with_the_older(api: Api, five: tuple[Stream, list[Any]]) -> None:
    stop = five[1][3].receptionTimestamp - 1
    subscription = api.subscribe(five[0].name, stopPosition=pb.STOP_TIMESTAMP, stopTimestamp=stop)
    assert read_to_the_end(subscription) == [0, 1, 2]


def test_a_stop_time_in_the_future_does_not_wait(api: Api, five: tuple[Stream, list[Any]]) -> None:
    subscription = api.subscribe(five[0].name, stopPosition=pb.STOP_TIMESTAMP, stopTimestamp=2**63 - 1)
    assert read_to_the_end(subscription) == [0, 1, 2, 3, 4]


def test_a_stop_time_before_the_first_message_fails(api: Api, five: tuple[Stream, list[Any]]) -> None:
    before = five[1][0].receptionTimestamp - 1
    subscription = api.open_subscription(five[0].name, stopPosition=pb.STOP_TIMESTAMP, stopTimestamp=before)
    subscription.expect_end(Status.OUT_OF_RANGE, f"stopTimestamp is {before}")


def test_a_stop_time_on_an_empty_partition_fails(api: Api, make_stream: MakeStream) -> None:
    subscription = api.open_subscription(make_stream().name, stopPosition=pb.STOP_TIMESTAMP, stopTimestamp=2**62)
    subscription.expect_end(Status.OUT_OF_RANGE, "has no message at or before it")


@pytest.mark.parametrize(
    "fields",
    [
        {"startPosition": pb.OFFSET, "startOffset": 3, "stopPosition": pb.STOP_OFFSET, "stopOffset": 2},
        {"startPosition": pb.LATEST, "stopPosition": pb.STOP_OFFSET, "stopOffset": 3},
        {"startPosition": pb.NEW_ONLY, "stopPosition": pb.STOP_OFFSET, "stopOffset": 4},
        {"startPosition": pb.NEW_ONLY, "stopPosition": pb.STOP_LATEST},
        {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_OFFSET, "stopOffset": -1},
    ],
)
def test_a_stop_before_the_start_is_refused(api: Api, five: tuple[Stream, list[Any]], fields: dict[str, Any]) -> None:
    api.open_subscription(five[0].name, **fields).expect_end(Status.INVALID_ARGUMENT)


@pytest.mark.parametrize("fields", [{"startPosition": 5}, {"startPosition": 77}, {"stopPosition": 4}])
def test_a_position_nobody_knows_is_refused(api: Api, five: tuple[Stream, list[Any]], fields: dict[str, Any]) -> None:
    api.open_subscription(five[0].name, **fields).expect_end(Status.INVALID_ARGUMENT)


# ── when messages have gone ──────────────────────────────────────────────────────────────────────


def comes_to_rest(api: Api, stream: str) -> bool:
    """Nothing changes for ten times as long as the cleaner waits."""
    before, until = offsets(api.read(stream)), time.monotonic() + 1
    while time.monotonic() < until:
        if offsets(api.read(stream)) != before:
            return False
    return True


Comparisons = Iterator[tuple[list[int], list[int]]]


def compare_at_rest(api: Api, stream: str, look: Callable[[list[int]], Comparisons]) -> None:
    """What `look` finds has to be what it expects of the offsets that are there, unless a cleaner that was late took more of them."""

    def is_undisturbed() -> bool:
        left = offsets(api.read(stream))
        found = list(look(left))
        if offsets(api.read(stream)) != left:
            return False
        for one, expected in found:
            assert one == expected
        return True

    eventually(is_undisturbed, "nothing is cleaned while somebody reads")


@pytest.fixture
def compacted(start_broker: StartBroker) -> Any:
    """A stream that begins with a message nobody replaced, and has holes behind it."""
    broker = start_broker({"streams.compact.min.lag": "0"})
    api = broker.api()
    api.CreateStream(
        name="compacted", subject="compacted", compactEnabled=True, cleanerInterval=100, segmentMaxBytes=2048
    )
    for number in range(60):
        key = b"key %d" % (number % 3) if number else b"never replaced"
        api.publish("compacted", b"%d" % number + b"." * 200, key=key)
    eventually(lambda: len(api.read("compacted")) < 40, "compaction took messages away")
    eventually(lambda: comes_to_rest(api, "compacted"), "compaction has nothing more to do")
    yield api
    api.close()


def test_ranges_end_and_begin_although_their_offsets_were_compacted_away(compacted: Api) -> None:
    def look(left: list[int]) -> Comparisons:
        assert left == sorted(left)
        assert left[0] == 0
        gone = [offset for offset in range(60) if offset not in left]
        for offset in (gone[0], gone[len(gone) // 2], gone[-1]):
            stopped = compacted.subscribe("compacted", stopPosition=pb.STOP_OFFSET, stopOffset=offset)
            yield read_to_the_end(stopped), [one for one in left if one <= offset]
            begun = compacted.subscribe("compacted", startPosition=pb.OFFSET, startOffset=offset)
            yield [begun.next().offset], [min(one for one in left if one > offset)]
            begun.cancel()

    compare_at_rest(compacted, "compacted", look)


def test_walking_backwards_over_compacted_segments_misses_nothing(compacted: Api) -> None:
    def look(left: list[int]) -> Comparisons:
        for start in (59, 50, left[1], left[1] - 1, 1, 0):
            walk = compacted.subscribe("compacted", startPosition=pb.OFFSET, startOffset=start, reverse=True)
            yield offsets(list(walk.rest())), [one for one in reversed(left) if one <= start]
            assert walk.end()[0] is Status.RESOURCE_EXHAUSTED

    compare_at_rest(compacted, "compacted", look)


def test_offsets_below_the_oldest_begin_with_the_oldest(start_broker: StartBroker) -> None:
    api = start_broker().api()
    api.CreateStream(name="s", subject="s", retentionMaxMessages=5, cleanerInterval=100, segmentMaxBytes=1024)
    for number in range(60):
        api.publish("s", b"%d" % number + b"." * 200)
    eventually(lambda: offsets(api.read("s"))[0] > 0, "retention took messages away")
    eventually(lambda: comes_to_rest(api, "s"), "retention has nothing more to do")

    def look(left: list[int]) -> Comparisons:
        for asked in (0, 1, left[0]):
            subscription = api.subscribe("s", startPosition=pb.OFFSET, startOffset=asked)
            yield [subscription.next().offset], [left[0]]
            subscription.cancel()

    compare_at_rest(api, "s", look)
    oldest = offsets(api.read("s"))[0]
    with refused(Status.INVALID_ARGUMENT):
        api.subscribe("s", startPosition=pb.OFFSET, startOffset=oldest, stopPosition=pb.STOP_OFFSET, stopOffset=0)
    api.close()
