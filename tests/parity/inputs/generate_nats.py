"""Bytes as NATS servers send them, and as none would."""

from __future__ import annotations

import random
from typing import Final

from bascule.kernels.nats.protocol import CallbackSink, NatsReader
from tests.parity.twins.twin_nats import Message, TwinReader

SIDS: Final = (1, 2, 7, 63, 64, 65, 127, 129, 10**18 - 1)
MESSAGE_BYTES_MAX: Final = 5_000
LINE_BYTES_MAX: Final = 600
WORDS: Final = (b"a", b"orders.new", b"\xff\x80", b"x" * 50, b"_INBOX.abc", b"'", b"{}")


def any_blank(rng: random.Random) -> bytes:
    return rng.choice((b" ", b" ", b" ", b" ", b"\t", b"  ", b" \t "))


def any_case(rng: random.Random, word: bytes) -> bytes:
    return rng.choice((word, word, word.lower(), word.title()))


def any_number(rng: random.Random, likely: int) -> bytes:
    if rng.random() < 0.97:
        return rng.choice((b"%d", b"%d", b"%d", b"00%d")) % likely
    return rng.choice(
        (b"", b"-1", b"+1", b"1e3", b"0x1", b"9" * 18, b"9" * 19, b"18446744073709551616", b"4999", b"5001", b"\xb2")
    )


def any_message(rng: random.Random) -> bytes:
    payload = rng.randbytes(rng.choice((0, 0, 1, 5, 128, 1000)))
    if rng.random() < 0.2:
        payload = rng.choice((b"\r\n", b"MSG a 1 0\r\n\r\n", b"PING\r\n"))
    words = [rng.choice(WORDS), any_number(rng, rng.choice((*SIDS, 3, 1000)))]
    if rng.random() < 0.4:
        words.append(rng.choice(WORDS))
    name = b"MSG"
    if rng.random() < 0.4:
        name = b"HMSG"
        words.append(any_number(rng, rng.choice((0, len(payload), rng.randint(0, len(payload))))))
    words.append(any_number(rng, len(payload)))
    if rng.random() < 0.02:
        words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
    if rng.random() < 0.02:
        words.pop(rng.randrange(len(words)))
    blank = any_blank(rng)
    line = any_case(rng, name) + any_blank(rng) + blank.join(words) + rng.choice((b"", b"", b" "))
    return line + rng.choice((b"\r\n", b"\r\n", b"\n")) + payload + rng.choice((b"\r\n",) * 30 + (b"\n", b"\n\r", b""))


def any_control(rng: random.Random) -> bytes:
    line = rng.choice(
        (b"PING", b"PONG", b"+OK", b"-ERR 'Slow Consumer'", b'INFO {"max_payload":1}', b"-ERR", b"INFO", b"PING x")
    )
    return any_case(rng, line) + rng.choice((b"", b"", b" ", b"\t")) + rng.choice((b"\r\n", b"\r\n", b"\n"))


def any_nonsense(rng: random.Random) -> bytes:
    return rng.choice(
        (
            rng.randbytes(rng.randint(1, 20)),
            b"\r\n",
            b"\x0bOK\r\n",
            b"\rERR x\r\n",
            b"MSGx a 1 0\r\n\r\n",
            b"MS",
            b"x" * rng.choice((LINE_BYTES_MAX - 1, LINE_BYTES_MAX, LINE_BYTES_MAX + 1)),
            b"INFO " + b"y" * (LINE_BYTES_MAX - rng.randint(4, 9)) + b"\r\n",
            b"MSG a\r 1 0\r\n\r\n",
        )
    )


def any_traffic(rng: random.Random) -> bytes:
    kinds = (any_message,) * 8 + (any_control,) * 3
    parts = [rng.choice(kinds)(rng) for _ in range(rng.randint(0, 12))]
    if rng.random() < 0.3:
        parts.insert(rng.randint(0, len(parts)), any_nonsense(rng))
    data = bytearray(b"".join(parts))
    if data and rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice((rng.randrange(256), 10, 13, 32, 48))
    if rng.random() < 0.3:
        del data[rng.randint(0, len(data)) :]
    return bytes(data)


class Pair:
    """Kernel and twin with the same subscriptions."""

    def __init__(self) -> None:
        self.kernel = NatsReader(message_bytes_max=MESSAGE_BYTES_MAX, line_bytes_max=LINE_BYTES_MAX)
        self.kernel_messages: list[Message] = []
        self.kernel_events: list[tuple[str, bytes]] = []
        self.twin = TwinReader(set(SIDS), MESSAGE_BYTES_MAX, LINE_BYTES_MAX)
        for sid in SIDS:
            self.kernel.attach(sid, CallbackSink(self._taker(sid)))

    def _taker(self, sid: int):  # type: ignore[no-untyped-def]
        return lambda *message: self.kernel_messages.append((sid, *message))

    def feed(self, data: bytes) -> None:
        view = self.kernel.get_buffer()
        assert len(view) >= len(data)
        view[: len(data)] = data
        self.kernel_events += self.kernel.received(len(data))
        self.twin.feed(data)

    def agree(self) -> None:
        # The sinks are served one after the other at the end of a read; among the messages of one the order counts.
        for sid in SIDS:
            of_kernel = [message for message in self.kernel_messages if message[0] == sid]
            assert of_kernel == [message for message in self.twin.messages if message[0] == sid]
        assert self.kernel_events == self.twin.events
        assert bytes(self.kernel.output) == b"PONG\r\n" * self.twin.pongs
        assert self.kernel.unknown == self.twin.unknown
        assert self.kernel.messages == len(self.twin.messages)
        assert self.kernel.waiting_bytes == len(self.twin.rest)
        assert self.kernel.dropped == 0
