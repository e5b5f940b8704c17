"""What becomes of a message on a partition's subject, in plain Python: written from the table of the envelope and the rules of acks."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.parity.twins import twin_messages, twin_producers
from tests.parity.twins.twin_messages import HEADER_ENTRIES_MAX, last_of_each

LEADER, ALL = 0, 1
OK, UNKNOWN, INCORRECT_OFFSET, TOO_LARGE = 0, 1, 2, 3
INVALID_PRODUCER, PRODUCER_FENCED, OUT_OF_SEQUENCE = 1001, 1002, 1003
INBOX_BYTES_MAX = 1900
TOMBSTONE = b"bascule-tombstone"

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class NatsMessage:
    subject: bytes
    payload: bytes
    reply: bytes = b""
    headers: bytes | None = None

    def frame(self, sid: int) -> bytes:
        """As nats-server sends it."""
        names = b" ".join(filter(None, (self.subject, b"%d" % sid, self.reply)))
        if self.headers is None:
            return b"MSG %b %d\r\n%b\r\n" % (names, len(self.payload), self.payload)
        sizes = b"%d %d" % (len(self.headers), len(self.headers) + len(self.payload))
        return b"HMSG %b %b\r\n%b%b\r\n" % (names, sizes, self.headers, self.payload)


@dataclass(frozen=True)
class Stored:
    key: bytes | None
    value: bytes | None
    headers: Headers
    subject: bytes
    reply: bytes


@dataclass(frozen=True)
class Waiting:
    """Somebody to be told: about the record of this offset, or about an error."""

    offset: int
    policy: int
    inbox: bytes
    correlation_id: bytes
    subject: bytes
    error: int
    is_duplicate: bool = False


def nats_headers(block: bytes) -> list[tuple[bytes, bytes]]:
    if not block.startswith(b"NATS/1.0"):
        return []
    pairs = []
    for line in [one.removesuffix(b"\r") for one in block.split(b"\n")][1:]:
        if not line:
            break
        name, colon, value = line.partition(b":")
        if name and colon:
            pairs.append((name, value.strip(b" \t")))
    return pairs


def is_usable_inbox(inbox: bytes) -> bool:
    return 0 < len(inbox) <= INBOX_BYTES_MAX and all(byte > 0x20 and byte != 0x7F for byte in inbox)


@dataclass
class Sink:
    payload_bytes_max: int
    headers_max: int
    headers_bytes_max: int
    key_bytes_max: int
    next_offset: int = 0
    concurrency_control: bool = False
    dropping: bool = False
    stored: list[Stored] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    refused: int = 0
    duplicates: int = 0
    producers: twin_producers.Producers = field(default_factory=lambda: twin_producers.Producers(4096))

    def take(self, message: NatsMessage) -> None:
        envelope = twin_messages.publish_envelope(message.payload)
        record, error = self._record(message)
        producer = None
        verdict, original = twin_producers.NEW, -1
        if self.dropping and not self._payload_too_large(message):
            error = UNKNOWN
        elif not self._payload_too_large(message):
            try:
                producer = twin_producers.producer_of(record.headers)
            except twin_producers.Malformed:
                self._answer(message, INVALID_PRODUCER)
                return
            if producer is not None:
                verdict, original = self.producers.judge(*producer)
            expected = envelope.expected_offset if envelope else 0
            if verdict == twin_producers.FENCED:
                error = PRODUCER_FENCED
            elif verdict == twin_producers.OUT_OF_SEQUENCE:
                error = OUT_OF_SEQUENCE
            elif verdict == twin_producers.DUPLICATE:
                self.duplicates += 1
                self._answer(message, OK, original=original)
                return
            elif self.concurrency_control and expected not in (-1, self.next_offset):
                error = INCORRECT_OFFSET
        self._answer(message, error)
        if not error:
            self.stored.append(record)
            if producer is not None:
                self.producers.note(*producer, self.next_offset)
            self.next_offset += 1

    def _answer(self, message: NatsMessage, error: int, *, original: int | None = None) -> None:
        if error:
            self.refused += 1
        envelope = twin_messages.publish_envelope(message.payload)
        if envelope is None or not is_usable_inbox(envelope.ack_inbox):
            return
        if error or envelope.ack_policy in (LEADER, ALL):
            offset = self.next_offset if original is None else original
            self.waiting.append(
                Waiting(
                    offset=0 if error else offset,
                    policy=envelope.ack_policy,
                    inbox=envelope.ack_inbox,
                    correlation_id=envelope.correlation_id,
                    subject=message.subject,
                    error=error,
                    is_duplicate=original is not None,
                )
            )

    def _payload_too_large(self, message: NatsMessage) -> bool:
        return len(message.payload) + len(message.headers or b"") > self.payload_bytes_max

    def _record(self, message: NatsMessage) -> tuple[Stored, int]:
        envelope = twin_messages.publish_envelope(message.payload)
        pairs = [] if message.headers is None else nats_headers(message.headers)
        key: bytes | None = None
        value: bytes | None = message.payload
        if envelope is not None:
            assert envelope.headers is not None
            pairs += envelope.headers
            key = envelope.key or None
            value = envelope.value
        headers = last_of_each(pairs) if len(pairs) <= HEADER_ENTRIES_MAX else None
        if headers is not None and not value and TOMBSTONE in dict(headers):
            value = None
            headers = tuple(pair for pair in headers if pair[0] != TOMBSTONE)
        error = OK
        if (
            self._payload_too_large(message)
            or headers is None
            or len(headers) > self.headers_max
            or len(twin_messages.record_headers(headers)) > self.headers_bytes_max
            or len(key or b"") > self.key_bytes_max
        ):
            error = TOO_LARGE
        return Stored(key, value, headers or (), message.subject, message.reply), error
