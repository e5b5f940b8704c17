"""What replicas say survives the way in any number and size; bytes that were changed on it are refused, or are another message."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from bascule.partition.core import codec
from bascule.partition.core.codec import MalformedReplication, PartitionKey
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Message, Notice, Verdict
from tests.support.replication_wire import ReplicationWire

NUMBER = st.integers(0, 2**63 - 1)
OFFSET = st.integers(0, 2**63 - 1)
WATERMARK = st.integers(-1, 2**63 - 1)
VERDICT = st.sampled_from(Verdict)
KEY = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))

FETCHES = st.builds(Fetch, NUMBER, NUMBER, OFFSET, OFFSET, NUMBER, st.booleans(), st.booleans())
QUERIES = st.builds(EpochQuery, NUMBER, NUMBER, NUMBER)
EPOCH_ANSWERS = st.builds(EpochAnswer, NUMBER, NUMBER, VERDICT, NUMBER, OFFSET)
NOTICES = st.builds(Notice, NUMBER, WATERMARK, st.booleans())
DATA = st.one_of(st.binary(max_size=300), st.integers(0, 20_000).map(lambda size: random.Random(size).randbytes(size)))
ANSWERS = st.builds(FetchAnswer, NUMBER, NUMBER, VERDICT, WATERMARK, OFFSET, OFFSET, st.booleans(), DATA)
MESSAGES: st.SearchStrategy[Message] = st.one_of(FETCHES, QUERIES, EPOCH_ANSWERS, NOTICES, ANSWERS)
SAID = st.lists(st.tuples(KEY, MESSAGES), max_size=40)

Said = list[tuple[PartitionKey, Message]]
DECODERS: dict[type[Message], Callable[[bytes], tuple[str, list[Any]]]] = {
    Fetch: codec.decode_fetches,
    EpochQuery: codec.decode_epoch_queries,
    EpochAnswer: codec.decode_epoch_answers,
    Notice: codec.decode_notices,
    FetchAnswer: codec.decode_answers,
}


def encoded(kind: type[Message], said: Said) -> bytes:
    """One message with all that is of this kind."""
    parts = [codec.encode_head("a")]
    for key, message in said:
        if type(message) is kind:
            parts += [codec.encode_entry(key, message), bytes(getattr(message, "data", b""))]
    return b"".join(parts)


@given(SAID)
def test_what_is_written_is_read(said: Said) -> None:
    for kind, decode in DECODERS.items():
        expected = [entry for entry in said if type(entry[1]) is kind]
        if expected:
            sender, found = decode(encoded(kind, said))
            assert sender == "a"
            assert [(key, message) for key, message, *_ in found] == expected


@given(SAID, st.integers(100, 6_000))
@example([((1, 2), FetchAnswer(1, 2, Verdict.OK, data=bytes(100)))], 79)
def test_all_that_is_said_arrives_in_order_whatever_fits_one_nats_message(said: Said, max_payload: int) -> None:
    async def main() -> None:
        wire = ReplicationWire(max_payload)
        messages = await wire.carry(*said)
        assert all(len(payload) <= max_payload for _, payload in messages)
        for kind in DECODERS:
            expected = [("a", key, message) for key, message in said if type(message) is kind]
            assert [heard for heard in wire.heard if type(heard[2]) is kind] == expected
        assert wire.a.stats.entries_out == wire.b.stats.entries_in == len(said)
        assert wire.b.stats.messages_malformed == wire.b.half_answers.broken == wire.b.half_answers.held_bytes == 0

    asyncio.run(main())


@given(st.lists(st.tuples(KEY, FETCHES), min_size=1, max_size=200), st.integers(100, 2_000))
def test_no_more_nats_messages_are_used_than_it_takes(said: Said, max_payload: int) -> None:
    async def main() -> None:
        messages = await ReplicationWire(max_payload).say(*said)
        head_bytes, entry_bytes = 8 + 4, 53
        assert len(messages) == -(-len(said) // ((max_payload - head_bytes) // entry_bytes))

    asyncio.run(main())


@st.composite
def spoiled(draw: st.DrawFn, payload: bytes) -> bytes:
    """Flipped, cut, extended, overwritten, or something else altogether."""
    how = draw(st.sampled_from(["flip", "cut", "extend", "overwrite", "random"]))
    place = draw(st.integers(0, len(payload) - 1))
    if how == "flip":
        return payload[:place] + bytes((payload[place] ^ 1 << draw(st.integers(0, 7)),)) + payload[place + 1 :]
    if how == "cut":
        return payload[:place]
    noise = draw(st.binary(min_size=1, max_size=80))
    if how == "extend":
        return payload + noise
    if how == "overwrite":
        return payload[:place] + noise + payload[place + len(noise) :]
    return noise


@given(st.data(), st.lists(st.tuples(KEY, MESSAGES), min_size=1, max_size=5))
def test_a_parser_takes_a_message_or_refuses_it_and_nothing_else(data: st.DataObject, said: Said) -> None:
    kind = type(said[0][1])
    payload = data.draw(spoiled(encoded(kind, said)))
    for decode in DECODERS.values():
        try:
            sender, found = decode(payload)
        except MalformedReplication as refusal:
            assert str(refusal)
        else:
            assert 0 < len(sender) <= 128
            assert len(found) <= len(payload) // 29


@given(st.data(), st.lists(st.tuples(KEY, MESSAGES), min_size=1, max_size=5))
def test_a_link_outlives_whatever_comes_on_its_subjects(data: st.DataObject, said: Said) -> None:
    async def main() -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
        wire = ReplicationWire(max_payload=1_000)
        for subject, payload in await wire.say(*said):
            wire.bring(subject, data.draw(spoiled(payload)))
            other = "follower" if subject.endswith("leader") else "leader"
            wire.bring(f"test.replication.b.{other}", payload)
        assert wire.b.stats.messages_malformed > 0
        assert wire.b.half_answers.held_bytes <= sum(len(getattr(message, "data", b"")) for _, message in said)
        wire.heard.clear()
        await wire.carry(*said)
        for kind in DECODERS:
            expected = [("a", key, message) for key, message in said if type(message) is kind]
            assert [heard for heard in wire.heard if type(heard[2]) is kind] == expected
        assert faults == []

    asyncio.run(main())


@given(st.data(), st.lists(st.tuples(st.sampled_from([(1, 0), (1, 1)]), ANSWERS), min_size=1, max_size=6))
def test_an_answer_arrives_whole_or_not_at_all_when_messages_are_lost(data: st.DataObject, said: Said) -> None:
    async def main() -> None:
        wire = ReplicationWire(max_payload=700)
        for subject, payload in await wire.say(*said):
            if data.draw(st.integers(0, 9)):
                wire.bring(subject, payload)
        left = iter([("a", key, message) for key, message in said])
        assert all(heard in left for heard in wire.heard)
        wire.heard.clear()
        await wire.carry(*said)
        assert wire.heard == [("a", key, message) for key, message in said]

    asyncio.run(main())
