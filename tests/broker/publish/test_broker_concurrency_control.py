"""Optimistic concurrency control: a message is stored at the offset its publisher expects, or not at all."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import envelopes
from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, Stream, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.nats_client import NatsClient

INCORRECT = "incorrect expected offset"


@pytest.fixture
def controlled(make_stream: MakeStream) -> Stream:
    return make_stream(optimisticConcurrencyControl=True)


def values(api: Api, stream: Stream) -> list[bytes]:
    return [message.value for message in api.read(stream.name)]


def test_policy_none_is_refused(api: Api, controlled: Stream) -> None:
    text = "stream with concurrency control must have AckPolicy set"
    with refused(Status.INVALID_ARGUMENT, text):
        api.publish(controlled.name, b"x", ackPolicy=pb.NONE)
    session = api.publish_async()
    session.send(controlled.name, b"x", ackPolicy=pb.NONE, correlationId="c")
    failure = session.next()
    assert (failure.correlationId, failure.asyncError.code, failure.asyncError.message) == (
        "c",
        pb.PublishAsyncError.BAD_REQUEST,
        text,
    )
    session.finish()
    assert api.partition(controlled.name).newestOffset == -1


def test_a_wrong_offset_is_refused_and_nothing_is_stored(api: Api, controlled: Stream) -> None:
    with refused(Status.UNKNOWN, INCORRECT):
        api.publish(controlled.name, b"x", expectedOffset=100)
    assert api.partition(controlled.name).newestOffset == -1
    assert api.publish(controlled.name, b"0", expectedOffset=0).offset == 0
    for wrong in (0, 2, -2, 2**63 - 1, -(2**63)):
        with refused(Status.UNKNOWN, INCORRECT):
            api.publish(controlled.name, b"x", expectedOffset=wrong)
    assert api.publish(controlled.name, b"1", expectedOffset=1).offset == 1
    assert values(api, controlled) == [b"0", b"1"]


def test_a_session_is_told_the_same(api: Api, controlled: Stream) -> None:
    session = api.publish_async()
    session.send(controlled.name, b"x", expectedOffset=100, correlationId="wrong")
    answer = session.next()
    assert (answer.correlationId, answer.asyncError.code, answer.asyncError.message) == (
        "wrong",
        pb.PublishAsyncError.INCORRECT_OFFSET,
        INCORRECT,
    )
    assert answer.ack.correlationId == ""
    session.send(controlled.name, b"x", expectedOffset=0, correlationId="right")
    assert session.next().ack.offset == 0
    session.finish()


def test_minus_one_checks_nothing(api: Api, controlled: Stream) -> None:
    for offset in range(5):
        assert api.publish(controlled.name, b"x", expectedOffset=-1).offset == offset


def test_who_does_not_know_the_field_can_publish_the_first_message_only(api: Api, controlled: Stream) -> None:
    assert api.publish(controlled.name, b"first").offset == 0
    with refused(Status.UNKNOWN, INCORRECT):
        api.publish(controlled.name, b"second")


def test_the_field_is_ignored_without_concurrency_control(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for offset, expected in enumerate((100, 0, -1, -5, 77)):
        assert api.publish(stream.name, b"x", expectedOffset=expected).offset == offset


def test_a_burst_with_consecutive_offsets_is_stored_whole(api: Api, controlled: Stream) -> None:
    """Every record of a batch is checked by itself, against the offset it is about to get."""
    count = 2000
    session = api.publish_async()
    for number in range(count):
        session.send(controlled.name, b"%d" % number, expectedOffset=number, correlationId=str(number))
    answers = session.take(count)
    session.finish()
    assert [answer.ack.offset for answer in answers] == list(range(count))
    assert [int(value) for value in values(api, controlled)] == list(range(count))


def run_burst(api: Api, stream: Stream, expected: list[int]) -> tuple[list[bytes], list[int]]:
    """What is stored afterwards, and which messages were refused."""
    session = api.publish_async()
    for number, offset in enumerate(expected):
        session.send(stream.name, b"%d" % number, expectedOffset=offset, correlationId=str(number))
    answers = session.take(len(expected))
    session.finish()
    refusals = [int(answer.correlationId) for answer in answers if answer.HasField("asyncError")]
    codes = {answer.asyncError.code for answer in answers if answer.HasField("asyncError")}
    assert codes <= {pb.PublishAsyncError.INCORRECT_OFFSET}
    return (values(api, stream) if len(refusals) < len(expected) else []), sorted(refusals)


def test_in_a_burst_only_the_wrong_ones_are_refused(api: Api, controlled: Stream) -> None:
    stored, refusals = run_burst(api, controlled, [0, 1, 5, 2, 2, 3, -1, 4, 5, 0])
    assert stored == [b"0", b"1", b"3", b"5", b"6", b"8"]
    assert refusals == [2, 4, 7, 9]


def test_any_burst_is_judged_as_if_its_messages_came_one_by_one(api: Api, make_stream: MakeStream) -> None:
    for seed in range(15):
        rng = random.Random(seed)
        expected, end, stored, refusals = [], 0, [], []
        for number in range(rng.randint(1, 200)):
            offset = rng.choice([-1, end, end, end, end, end + 1, end - 1, 0, rng.randrange(200)])
            expected.append(offset)
            if offset in (-1, end):
                stored.append(b"%d" % number)
                end += 1
            else:
                refusals.append(number)
        stream = make_stream(optimisticConcurrencyControl=True)
        assert run_burst(api, stream, expected) == (stored, refusals), f"seed {seed}"


def test_of_two_who_race_for_an_offset_one_wins_and_the_other_can_try_again(
    broker: BrokerProcess, api: Api, controlled: Stream
) -> None:
    rivals = [broker.api() for _ in range(4)]

    def attempt(rival: Api, offset: int) -> Any:
        call = rival.future("Publish", stream=controlled.name, value=b"%d" % offset, expectedOffset=offset)
        return call.code()

    with ThreadPoolExecutor(len(rivals)) as pool:
        for offset in range(0, 40, 2):
            codes = list(pool.map(attempt, rivals, [offset] * len(rivals)))
            assert codes.count(Status.OK) == 1, codes
            assert codes.count(Status.UNKNOWN) == len(rivals) - 1, codes
            newest = api.partition(controlled.name).newestOffset
            assert newest == offset
            assert api.publish(controlled.name, b"again", expectedOffset=newest + 1).offset == offset + 1
    for rival in rivals:
        rival.close()


def test_racing_sessions_never_share_an_offset(broker: BrokerProcess, api: Api, controlled: Stream) -> None:
    """Every writer counts on its own; each offset has one owner, and what is stored is what its owner was told."""
    writers = [broker.api() for _ in range(3)]

    def write(index: int) -> dict[int, bytes]:
        session, won = writers[index].publish_async(), {}
        for number in range(300):
            session.send(controlled.name, b"%d/%d" % (index, number), expectedOffset=number, correlationId=str(number))
        for answer in session.take(300):
            if not answer.HasField("asyncError"):
                won[answer.ack.offset] = b"%d/%s" % (index, answer.correlationId.encode())
        session.finish()
        return won

    with ThreadPoolExecutor(len(writers)) as pool:
        results = list(pool.map(write, range(len(writers))))
    owned: dict[int, bytes] = {}
    for won in results:
        assert not owned.keys() & won.keys()
        owned |= won
    assert values(api, controlled) == [owned[offset] for offset in sorted(owned)]
    assert sorted(owned) == list(range(len(owned)))
    for writer in writers:
        writer.close()


def test_plain_messages_are_taken_only_as_the_first(api: Api, controlled: Stream, nats: NatsClient) -> None:
    nats.publish(controlled.subject, b"first")
    nats.publish(controlled.subject, b"second")
    nats.publish(controlled.subject, envelopes.message(b"third", offset=1))
    nats.publish(controlled.subject, envelopes.message(b"fourth", offset=-1))
    subscription = api.subscribe(controlled.name)
    assert [message.value for message in subscription.take(3)] == [b"first", b"third", b"fourth"]
    subscription.cancel()


def test_an_error_ack_over_nats_says_so(api: Api, controlled: Stream, nats: NatsClient) -> None:
    inbox = unique_name("inbox")
    nats.subscribe(inbox)
    nats.publish(controlled.subject, envelopes.message(b"x", offset=7, ackInbox=inbox, correlationId="c"))
    ack = envelopes.ack_in(nats.next().payload)
    assert (ack.ackError, ack.offset, ack.correlationId) == (pb.Ack.INCORRECT_OFFSET, 0, "c")
    assert (ack.stream, ack.partitionSubject, ack.ackInbox) == (controlled.name, controlled.subject, inbox)
    assert api.partition(controlled.name).newestOffset == -1


def test_publishing_to_the_subject_carries_no_offset(api: Api, controlled: Stream) -> None:
    assert api.PublishToSubject(subject=controlled.subject, value=b"x").ack.ackError == pb.Ack.OK
    assert api.PublishToSubject(subject=controlled.subject, value=b"x").ack.ackError == pb.Ack.INCORRECT_OFFSET


def test_the_servers_default_is_applied(start_broker: StartBroker) -> None:
    api = start_broker({"streams.concurrency.control": True}).api()
    api.CreateStream(name="on", subject="on")
    api.CreateStream(name="off", subject="off", optimisticConcurrencyControl=False)
    with refused(Status.UNKNOWN, INCORRECT):
        api.publish("on", b"x", expectedOffset=3)
    assert api.publish("off", b"x", expectedOffset=3).offset == 0
    api.close()


def test_the_next_offset_is_known_after_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s", optimisticConcurrencyControl=True)
    for offset in range(3):
        api.publish("s", b"x", expectedOffset=offset)
    api.close()
    broker.restart()
    api = broker.api()
    with refused(Status.UNKNOWN, INCORRECT):
        api.publish("s", b"x", expectedOffset=2)
    assert api.publish("s", b"x", expectedOffset=3).offset == 3
    api.close()
