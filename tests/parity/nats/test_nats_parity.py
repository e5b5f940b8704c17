"""The NATS reader and its twin see the same messages in the same bytes, however they are cut, and stop at the same fault."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.nats.protocol import CallbackSink, NatsReader, publish
from bascule.kernels.wire.output import OutputBuffer
from tests.parity.inputs.generate_nats import LINE_BYTES_MAX, MESSAGE_BYTES_MAX, SIDS, Pair, any_traffic
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_nats
from tests.support.kernels.probes import CountingSink


def fuzz(rng: random.Random) -> None:
    pair = Pair()
    for _ in range(rng.randint(1, 3)):
        data = any_traffic(rng)
        while data:
            cut = rng.choice((1, 2, 7, 100, len(data), rng.randint(1, len(data))))
            pair.feed(data[:cut])
            data = data[cut:]
        pair.agree()


@examples(200)
@given(RANDOMS)
def test_any_traffic(rng: random.Random) -> None:
    fuzz(rng)


@pytest.mark.parametrize("seed", [0, 10_000])
def test_more_traffic(seed: int) -> None:
    for one in range(seed, seed + 2000):
        fuzz(random.Random(one))


@examples(500)
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    pair = Pair()
    pair.feed(data)
    pair.agree()


@examples(300)
@given(
    st.lists(
        st.sampled_from([b"MSG", b"HMSG", b" ", b"\t", b"a", b"1", b"0", b"2", b"\r", b"\n", b"\r\n", b"PING", b"\x00"])
    )
)
def test_any_words(words: list[bytes]) -> None:
    pair = Pair()
    pair.feed(b"".join(words))
    pair.agree()


@examples(300)
@given(
    subject=st.binary(max_size=30) | st.sampled_from([b"x" * 1900, b"x" * 1901]),
    payload=st.binary(max_size=300),
    reply=st.binary(max_size=10),
    headers=st.none() | st.binary(max_size=50),
)
def test_what_publishes(subject: bytes, payload: bytes, reply: bytes, headers: bytes | None) -> None:
    output = OutputBuffer()
    if not twin_nats.is_subject(subject) or (reply and not twin_nats.is_subject(reply)):
        with pytest.raises(ValueError, match="no subject"):
            publish(output, subject, payload, reply, headers)
        assert len(output) == 0
        return
    publish(output, subject, payload, reply, headers)
    assert bytes(output) == twin_nats.publish_line(subject, payload, reply, headers)


@examples(100)
@given(st.integers(0, 2**32))
def test_the_table_of_subscriptions_is_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    reader = NatsReader(message_bytes_max=100, line_bytes_max=100)
    model: dict[int, CountingSink] = {}
    counts: dict[CountingSink, int] = {}
    sids = [rng.choice((rng.randint(0, 40), 64 * rng.randint(0, 20), 10**17 + rng.randint(0, 3))) for _ in range(80)]
    for sid in (rng.choice(sids) for _ in range(400)):
        if sid in model and rng.random() < 0.5:
            reader.detach(sid)
            del model[sid]
        elif sid not in model and rng.random() < 0.7:
            sink = rng.choice(list(counts)) if counts and rng.random() < 0.2 else CountingSink()
            counts.setdefault(sink, 0)
            reader.attach(sid, sink)
            model[sid] = sink
        unknown = reader.unknown
        reader.examine(b"MSG a %d 0\r\n\r\n" % sid)
        if sid in model:
            counts[model[sid]] += 1
        else:
            assert reader.unknown == unknown + 1
        if rng.random() < 0.1:
            touched = reader.touched()
            assert len(touched) == len(set(touched))
    assert all(sink.messages == count for sink, count in counts.items())


def test_a_sid_has_one_sink_and_a_sink_one_reader() -> None:
    one, other = (NatsReader(message_bytes_max=100, line_bytes_max=100) for _ in range(2))
    sink = CountingSink()
    one.attach(1, sink)
    with pytest.raises(ValueError, match="has a sink already"):
        one.attach(1, CountingSink())
    with pytest.raises(ValueError, match="another reader"):
        other.attach(1, sink)
    one.attach(2, sink)
    one.detach(1)
    with pytest.raises(ValueError, match="another reader"):
        other.attach(1, sink)
    one.detach(2)
    one.detach(2)
    other.attach(1, sink)


def test_a_sink_that_was_detached_after_its_message_is_still_told_of() -> None:
    reader = NatsReader(message_bytes_max=100, line_bytes_max=100)
    reader.attach(1, CountingSink())
    reader.examine(b"MSG a 1 0\r\n\r\n")
    reader.detach(1)
    (sink,) = reader.touched()
    assert isinstance(sink, CountingSink)
    assert sink.messages == 1
    assert reader.touched() == []


def test_more_bytes_than_there_was_room_for_were_not_received() -> None:
    reader = NatsReader(message_bytes_max=100, line_bytes_max=100)
    with pytest.raises(ValueError, match="there was room"):
        reader.received(len(reader.get_buffer()) + 1)


def test_the_buffer_grows_for_a_message_and_not_beyond() -> None:
    limit = 3_000_000
    reader = NatsReader(message_bytes_max=limit, line_bytes_max=1000)
    found: list[bytes] = []
    reader.attach(1, CallbackSink(lambda *message: found.append(message[3])))
    data = memoryview(b"MSG a 1 %d\r\n" % limit + bytes(limit) + b"\r\nPONG\r\n")
    events: list[tuple[str, bytes]] = []
    while data:
        view = reader.get_buffer()
        assert len(view) > 0
        size = min(len(view), len(data))
        view[:size] = data[:size]
        events += reader.received(size)
        data = data[size:]
        assert reader.buffer_bytes <= limit + 1000 + 2
    assert found == [bytes(limit)]
    assert events == [("PONG", b"")]
    reader.reset()
    assert reader.buffer_bytes <= 1 << 20


def test_a_reset_forgets_the_connection_and_keeps_the_subscriptions() -> None:
    pair = Pair()
    reader = pair.kernel
    reader.connected = True
    assert reader.examine(b"PING\r\nWHAT\r\n")[0][-1][0] == "BROKEN"
    assert reader.examine(b"MSG a 1 0\r\n\r\n") == ((), 0)
    reader.reset()
    assert not reader.connected
    assert len(reader.output) == 0
    assert reader.examine(b"MSG a 1 0\r\n\r\n")[1] == 13
    assert len(pair.kernel_messages) == 1


def test_without_somebody_to_tell_an_exception_of_a_callback_is_raised() -> None:
    reader = NatsReader(message_bytes_max=100, line_bytes_max=100)
    reader.attach(1, CallbackSink(lambda *_: 1 // 0))
    with pytest.raises(ZeroDivisionError):
        reader.examine(b"MSG a 1 0\r\n\r\n")
    assert reader.examine(b"PONG\r\n") == ((("PONG", b""),), 6)


def test_limits_of_this_test_are_those_of_the_generator() -> None:
    assert max(SIDS) < 10**18
    assert LINE_BYTES_MAX < MESSAGE_BYTES_MAX


@pytest.mark.soak
def test_reader_and_twin_agree_for_a_long_time(soak_seconds: float, tmp_path: Path) -> None:
    seed = int(os.environ.get("BASCULE_SOAK_SEED", str(random.SystemRandom().randrange(2**48))))
    stop = time.monotonic() + soak_seconds
    with (tmp_path / "seed").open("wb", buffering=0) as at_work:
        while time.monotonic() < stop:
            os.pwrite(at_work.fileno(), b"%20d\n" % seed, 0)
            try:
                fuzz(random.Random(seed))
            except Exception as error:
                error.add_note(f"BASCULE_SOAK_SEED={seed}")
                raise
            seed += 1


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 23])
def test_each_byte_at_each_place_of_a_subject(size: int) -> None:
    for place in range(size):
        for byte in range(256):
            subject = bytearray(b"s" * size)
            subject[place] = byte
            try:
                publish(OutputBuffer(), bytes(subject), b"")
                taken = True
            except ValueError:
                taken = False
            assert taken == twin_nats.is_subject(bytes(subject)), subject
