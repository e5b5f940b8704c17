"""The seals of internal messages: only a broker that knows the secret is heard, and each of its messages once."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import Unavailable
from bascule.net.nats.seal import CHALLENGE_SECONDS, WINDOW, SealedChannel, SealKeys

SECRET, OTHER = "a secret of the cluster", "another secret of it"
KEYS = SealKeys([SECRET], "ns")
SUBJECT = b"ns.control.b.message"


class Wire:
    """Carries handshakes between channels at once, and keeps what was sent."""

    def __init__(self) -> None:
        self.channels: list[SealedChannel] = []
        self.sent: list[tuple[bytes, bytes]] = []
        self.now = 100.0
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._carries = False
        self.is_down = False

    def channel(
        self, server: str, keys: SealKeys = KEYS, purpose: str = "control", namespace: str = "ns"
    ) -> SealedChannel:
        found = SealedChannel(keys, namespace, purpose, server, self.send, lambda: self.now)
        self.channels.append(found)
        return found

    def send(self, subject: bytes, data: bytes) -> None:
        if self.is_down:
            raise Unavailable("no connection")
        self.sent.append((subject, data))
        self._waiting.append((subject, data))
        if not self._carries:
            self._carries = True
            while self._waiting:
                self.deliver(*self._waiting.popleft())
            self._carries = False

    def deliver(self, subject: bytes, data: bytes) -> None:
        for one in self.channels:
            if subject in (one.own_subject, one.hello_subject):
                one.on_handshake(subject, b"", None, data)


def pair(keys: SealKeys = KEYS) -> tuple[Wire, SealedChannel, SealedChannel]:
    wire = Wire()
    a, b = wire.channel("a", keys), wire.channel("b", keys)
    a.hello()
    return wire, a, b


def sealed(channel: SealedChannel, payload: bytes = b"payload", subject: bytes = SUBJECT, reply: bytes = b"") -> bytes:
    return channel.seal(subject, payload, reply) + payload


def opened(channel: SealedChannel, subject: bytes, message: bytes) -> bytes | None:
    found = channel.open(subject, message)
    return None if found is None else bytes(found)


def test_a_message_is_opened_once() -> None:
    _, a, b = pair()
    message = sealed(a)
    assert opened(b, SUBJECT, message) == b"payload"
    assert b.open(SUBJECT, message) is None
    assert (b.stats.opened, b.stats.replayed) == (1, 1)


@pytest.mark.parametrize("size", [0, 100, 1 << 20])
def test_a_payload_in_parts_has_the_same_seal(size: int) -> None:
    _, a, b = pair()
    payload = bytes(range(256)) * (size // 256)
    parts: list[bytes | memoryview] = [payload[:10], memoryview(payload)[10:500], payload[500:]]
    seal = a.seal_parts(SUBJECT, parts, len(payload))
    assert opened(b, SUBJECT, seal + payload) == payload
    assert len(seal) == a.seal_bytes


def test_both_directions_are_proven_by_one_hello() -> None:
    _, a, b = pair()
    assert opened(a, b"ns.x", sealed(b, subject=b"ns.x")) == b"payload"
    assert a.stats.unproven == b.stats.unproven == 0


def test_messages_out_of_order_are_opened_within_the_window() -> None:
    _, a, b = pair()
    messages = [sealed(a) for _ in range(2 * WINDOW)]
    assert b.open(SUBJECT, messages[WINDOW]) is not None
    assert b.open(SUBJECT, messages[1]) is not None
    assert b.open(SUBJECT, messages[0]) is None  # below the window
    assert b.open(SUBJECT, messages[1]) is None
    assert b.open(SUBJECT, messages[2 * WINDOW - 1]) is not None
    assert b.open(SUBJECT, messages[WINDOW]) is None


@given(st.lists(st.integers(0, 200), max_size=300))
def test_no_order_of_arrival_opens_a_message_twice(order: list[int]) -> None:
    _, a, b = pair()
    messages = [sealed(a) for _ in range(201)]
    taken = [number for number in order if b.open(SUBJECT, messages[number]) is not None]
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("place", ["subject", "reply", "payload", "mac", "counter", "boot", "sender"])
def test_a_changed_message_is_refused(place: str) -> None:
    _, a, b = pair()
    message = bytearray(sealed(a, reply=b"ns.inbox.1"))
    subject, reply = SUBJECT, b"ns.inbox.1"
    at = {"sender": 4, "boot": 14, "counter": 35, "mac": 37, "payload": -1}.get(place)
    if at is not None:
        message[at] ^= 1
    elif place == "subject":
        subject = b"ns.control.c.message"
    else:
        reply = b"ns.inbox.2"
    assert b.open(subject, bytes(message), reply) is None
    assert b.stats.forged == 1
    assert b.stats.unproven == 0


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    _, _, b = pair()
    for start in (b"", b"\x5e\xa1\x01", b"\x5e\xa1\x01\x09control.a"):
        assert b.open(SUBJECT, start + data) is None
        b.on_handshake(b.own_subject, b"", None, start + data)
    assert b.stats.refused == 6


def test_a_message_under_another_secret_or_namespace_is_refused() -> None:
    wire, _, b = pair()
    for stranger in (wire.channel("m", SealKeys([OTHER], "ns")), wire.channel("m", SealKeys([SECRET], "other"))):
        assert b.open(SUBJECT, sealed(stranger)) is None
    assert b.stats.forged == 2


def test_a_receiver_that_has_just_started_takes_no_message_from_before() -> None:
    wire, a, b = pair()
    recorded = [sealed(a) for _ in range(3)]
    wire.channels.remove(b)
    again = wire.channel("b")
    for message in recorded:
        assert again.open(SUBJECT, message) is None
    # The first of them made it challenge the sender, which has proven that it lives: only newer messages count.
    assert again.stats.unproven == 1
    assert [again.open(SUBJECT, message) for message in recorded] == [None, None, None]
    assert opened(again, SUBJECT, sealed(a)) == b"payload"


def test_messages_of_an_earlier_run_of_the_sender_stay_refused() -> None:
    wire, a, b = pair()
    recorded = sealed(a)
    wire.channels.remove(a)
    again = wire.channel("a")
    again.hello()
    assert b.open(SUBJECT, recorded) is None
    assert opened(b, SUBJECT, sealed(again)) == b"payload"
    wire.now += 2 * CHALLENGE_SECONDS
    assert b.open(SUBJECT, recorded) is None
    assert opened(b, SUBJECT, sealed(again)) == b"payload"


def test_a_recorded_handshake_proves_nothing() -> None:
    wire, a, _ = pair()
    handshake, recorded = list(wire.sent), sealed(a)
    wire.channels.clear()
    again = wire.channel("b")
    assert again.open(SUBJECT, recorded) is None
    for subject, data in handshake:
        wire.deliver(subject, data)
    assert again.open(SUBJECT, recorded) is None
    assert again.stats.opened == 0


def test_challenges_to_one_sender_are_limited() -> None:
    wire, a, _ = pair()
    wire.channels.clear()
    again = wire.channel("b")
    wire.sent.clear()
    for _ in range(10):
        again.open(SUBJECT, sealed(a))
    assert len(wire.sent) == 1
    wire.now += 2 * CHALLENGE_SECONDS
    again.open(SUBJECT, sealed(a))
    assert len(wire.sent) == 2


def test_an_accepted_channel_is_reported() -> None:
    wire = Wire()
    a = wire.channel("a")
    accepted: list[str] = []
    a.on_accepted = accepted.append
    wire.channel("b").hello()
    assert accepted == ["b"]


def test_channels_of_other_purposes_are_separate() -> None:
    wire, _, b = pair()
    other = wire.channel("a", purpose="replication")
    other.hello()
    assert b.open(SUBJECT, sealed(other)) is None
    assert b.stats.unproven == 1


def test_a_handshake_without_a_connection_is_lost() -> None:
    wire, a, b = pair()
    sent = len(wire.sent)
    wire.is_down = True
    a.hello()
    assert len(wire.sent) == sent
    wire.is_down = False
    assert opened(b, SUBJECT, sealed(a)) == b"payload"


def test_a_secret_is_rotated_without_a_pause() -> None:
    wire, a, b = pair()
    both, reverse, new = (SealKeys(each, "ns") for each in ([SECRET, OTHER], [OTHER, SECRET], [OTHER]))
    for keys in (both, reverse, new):
        for one, other in ((a, b), (b, a)):
            one.use(keys)
            wire.now += 2 * CHALLENGE_SECONDS
            assert opened(other, SUBJECT, sealed(one)) == b"payload"
            assert opened(one, SUBJECT, sealed(other)) == b"payload"
    assert SealKeys([SECRET], "ns").password() != new.password()
