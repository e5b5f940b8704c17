"""Hand-overs between two sinks: whatever each receives, every message is stored once and each publisher's messages stay in order."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.envelope import messages
from bascule.kernels.ingest.sink import PartitionSink
from bascule.kernels.nats.protocol import NatsReader
from bascule.kernels.records import records
from bascule.kernels.records.producers import ProducerTable
from bascule.producers import producer_headers
from bascule.proto import api_pb2
from tests.parity.inputs.ingest_helpers import acks_in, feed, new_reader, new_sink, new_writer, stamped
from tests.parity.twins.twin_ingest import NatsMessage
from tests.parity.twins.twin_siphash import siphash64
from tests.support.kernels.message_objects import publish_envelope

KEY = bytes(range(16))
SUBJECT = b"orders.subject"


class Receiver:
    """A broker's sink and its connection."""

    def __init__(self) -> None:
        self.sink: PartitionSink = new_sink()
        self.reader: NatsReader = new_reader(self.sink)

    def receives(self, *values: bytes) -> None:
        feed(self.reader, [NatsMessage(SUBJECT, value) for value in values])

    def stored(self) -> list[bytes]:
        """The values of all records that were collected since the last time."""
        found: list[bytes] = []
        for batch in self.sink.take():
            if batch.count:
                found += [one.value or b"" for one in records.decode(stamped(batch, 0))]
        return found

    def errors(self) -> list[int]:
        writer = new_writer(self.reader)
        for batch in self.sink.take():
            writer.write_errors(batch)
        return [one.error for one in acks_in(self.reader)]


# ── the hash ─────────────────────────────────────────────────────────────────────────────────────


def test_the_twin_of_the_hash_has_the_value_in_the_paper() -> None:
    assert siphash64(KEY, bytes(range(15))) == 0xA129CA6149BE45E5


@given(
    st.binary(min_size=16, max_size=16),
    st.lists(
        st.tuples(st.sampled_from([b"s", b"orders.1"]), st.sampled_from([b"", b"_INBOX.1"]), st.binary(max_size=40))
    ),
    st.booleans(),
)
def test_noted_hashes_are_those_of_whole_messages(
    key: bytes, found: list[tuple[bytes, bytes, bytes]], has_headers: bool
) -> None:
    headers = b"NATS/1.0\r\nA: b\r\n\r\n" if has_headers else None
    receiver = Receiver()
    receiver.sink.note_received(key)
    feed(receiver.reader, [NatsMessage(subject, payload, reply, headers) for subject, reply, payload in found])
    assert receiver.sink.noted_hashes == len(found)
    hashes, held = receiver.sink.give_up()
    assert hashes is not None
    assert held == b""
    parts = [(subject, reply, headers or b"", payload) for subject, reply, payload in found]
    expected = [siphash64(key, struct.pack("<4I", *map(len, one)) + b"".join(one)) or 1 for one in parts]
    assert [word for (word,) in struct.iter_unpack("<Q", hashes)] == expected


# ── two leaders ──────────────────────────────────────────────────────────────────────────────────


counts = st.lists(st.integers(0, 4), min_size=3, max_size=3)


def value(publisher: int, number: int) -> bytes:
    """Messages of publisher 0 are all equal."""
    return b"0 same" if publisher == 0 else b"%d %d" % (publisher, number)


@given(st.data())
def test_every_message_is_stored_once_and_in_the_order_of_its_publisher(data: st.DataObject) -> None:
    old, new = Receiver(), Receiver()
    sent = [0, 0, 0]
    to_new: list[list[bytes]] = [[], [], []]
    """Messages on their way to the successor, by publisher."""

    def mixed(wanted: list[int]) -> list[int]:
        return data.draw(st.permutations([one for one, count in enumerate(wanted) for _ in range(count)]))

    def publish(wanted: list[int], *, to_successor: bool = True, to_leader: bool = True) -> None:
        for publisher in mixed(wanted):
            one = value(publisher, sent[publisher])
            sent[publisher] += 1
            if to_leader:
                old.receives(one)
            if to_successor:
                to_new[publisher].append(one)

    def arrive(at_least: list[int]) -> None:
        """Some messages reach the successor: those of one publisher in order, those of different publishers in any order."""
        wanted = [data.draw(st.integers(least, len(one))) for least, one in zip(at_least, to_new, strict=True)]
        for publisher in mixed(wanted):
            new.receives(to_new[publisher].pop(0))

    publish(data.draw(counts), to_successor=False)
    old.sink.note_received(KEY)
    publish(alone := data.draw(counts), to_successor=False)
    new.sink.hold_all()
    publish(data.draw(counts))  # the leader does not know whether the successor gets these
    early, early_at = old.sink.noted_hashes, [len(one) for one in to_new]
    publish(data.draw(counts))
    log = old.stored()
    old.sink.hold_all()
    publish(data.draw(counts))
    hashes, held = old.sink.give_up()
    assert hashes is not None
    assert old.stored() == []
    publish(data.draw(counts), to_leader=False)
    arrive(early_at)  # the copies of early messages, and perhaps more
    new.sink.take_over(KEY, hashes, early, held)
    publish(data.draw(counts), to_leader=False)
    arrive([len(one) for one in to_new])
    log += new.stored()
    # A later message that equals one which only the leader got cannot be told from a copy of it.
    assert sent[0] - alone[0] <= log.count(value(0, 0)) <= sent[0]
    for publisher in (1, 2):
        own = [one for one in log if one.startswith(b"%d " % publisher)]
        assert own == [value(publisher, number) for number in range(sent[publisher])]


def test_a_message_that_equals_an_early_one_without_a_copy_is_stored() -> None:
    old, new = Receiver(), Receiver()
    old.sink.note_received(KEY)
    old.receives(b"tick")  # before the successor subscribes
    early = old.sink.noted_hashes
    new.sink.hold_all()
    old.sink.hold_all()
    hashes, held = old.sink.give_up()
    assert hashes is not None
    new.sink.take_over(KEY, hashes, early, held)
    new.receives(b"tick")
    assert (old.stored(), new.stored()) == ([b"tick"], [b"tick"])


def test_late_copies_are_dropped_until_they_are_forgotten() -> None:
    old, new = Receiver(), Receiver()
    old.sink.note_received(KEY)
    new.sink.hold_all()
    old.receives(b"a", b"b")
    hashes, held = old.sink.give_up()
    assert hashes is not None
    new.sink.take_over(KEY, hashes, 0, held)
    assert new.sink.copies_missing == 2
    new.receives(b"a")
    assert (new.stored(), new.sink.copies_missing, new.sink.copied) == ([], 1, 1)
    new.sink.forget_copies()
    new.receives(b"b")
    assert new.stored() == [b"b"]


def test_producers_are_judged_in_the_order_of_both_leaders() -> None:
    """The leader before held sequences 1 and 2, the successor has received 2 and 3."""

    def message(sequence: int) -> NatsMessage:
        lines = b"".join(
            b"%b: %b\r\n" % (name.encode(), text) for name, text in producer_headers(b"p", 0, sequence).items()
        )
        return NatsMessage(SUBJECT, b"%d" % sequence, headers=b"NATS/1.0\r\n" + lines + b"\r\n")

    old, new = Receiver(), Receiver()
    old.sink.note_received(KEY)
    old.sink.hold_all()
    new.sink.hold_all()
    feed(old.reader, [message(0), message(1)])
    feed(new.reader, [message(1), message(2)])
    hashes, held = old.sink.give_up()
    assert hashes is not None
    new.sink.take_over(KEY, hashes, 0, held)
    assert new.sink.is_holding, "the producers are not known yet"
    assert new.stored() == []
    new.sink.learn_producers(ProducerTable(100), 0)
    assert new.stored() == [b"0", b"1", b"2"]


def test_a_leader_that_stays_stores_what_it_held_in_its_order() -> None:
    receiver = Receiver()
    receiver.sink.note_received(KEY)
    receiver.receives(b"1")
    receiver.sink.hold_all()
    receiver.receives(b"2", b"3")
    assert receiver.stored() == [b"1"]
    assert not receiver.sink.is_holding
    receiver.sink.release_held()
    receiver.receives(b"4")
    assert receiver.stored() == [b"2", b"3", b"4"]
    assert (receiver.sink.is_noting, receiver.sink.holds_all, receiver.sink.noted_hashes) == (False, False, 0)


def test_with_more_bytes_than_allowed_everything_held_is_dropped() -> None:
    receiver = Receiver()
    receiver.sink.hold_all(200)
    receiver.receives(b"a" * 100)
    assert receiver.sink.waiting_bytes > 100
    receiver.receives(b"b" * 100, b"c")
    assert receiver.sink.has_overflowed
    assert (receiver.sink.waiting_bytes, receiver.sink.lost) == (0, 3)
    receiver.sink.drop_held()
    receiver.receives(b"d")
    assert receiver.stored() == [b"d"]


def test_held_messages_of_a_leader_that_is_replaced_are_refused() -> None:
    receiver = Receiver()
    envelope = publish_envelope(api_pb2.PublishRequest(value=b"v").SerializeToString(), b"_INBOX.1")
    assert envelope is not None
    receiver.sink.hold_all()
    receiver.receives(envelope)
    receiver.sink.forget_producers(messages.UNKNOWN_ERROR, True)
    assert not receiver.sink.holds_all
    assert receiver.errors() == [messages.UNKNOWN_ERROR]


@pytest.mark.parametrize(
    ("hashes", "early", "held"),
    [
        (b"1234567", 0, b""),
        (b"12345678", 2, b""),
        (b"", 0, b"short"),
        (b"", 0, struct.pack("<4I", 1, 0, 0, 5) + b"s1234"),
        (b"", 0, struct.pack("<4I", 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)),
        (b"", 0, struct.pack("<4I", 1, 0, 0, 1) + b"s1" + b"\0"),
    ],
)
def test_a_malformed_note_changes_nothing(hashes: bytes, early: int, held: bytes) -> None:
    receiver = Receiver()
    receiver.sink.hold_all()
    receiver.receives(b"a")
    with pytest.raises(ValueError, match="malformed"):
        receiver.sink.take_over(KEY, hashes, early, held)
    assert receiver.sink.holds_all
    receiver.sink.release_held()
    assert receiver.stored() == [b"a"]


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_key_has_sixteen_bytes(size: int) -> None:
    sink = new_sink()
    with pytest.raises(ValueError, match="16 bytes"):
        sink.note_received(bytes(size))
    with pytest.raises(ValueError, match="16 bytes"):
        sink.take_over(bytes(size), b"", 0, b"")
    assert not sink.is_noting
