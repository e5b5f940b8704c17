"""Messages between the replicas of partitions, over their own connection to NATS.

    link = ReplicationLink(nats_link, namespace, server_id)
    link.on_request, link.on_answer = …           # called in the event loop, with the sender and the partition
    link.start()
    link.send("server-2", (stream_id, 0), Fetch(…))

Entries for a server that are sent in one turn of the event loop leave together, in as few NATS messages as possible and in their order
within each kind. The link repeats nothing and keeps nothing: without a connection it drops entries, and after each reconnect followers
fetch again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from bascule import limits
from bascule.errors import RejectedEnvelope
from bascule.kernels.nats.protocol import CallbackSink, publish
from bascule.net.nats import envelope
from bascule.net.nats.envelope import MessageType
from bascule.net.nats.link import NatsLink
from bascule.net.nats.seal import SealedChannel
from bascule.net.nats.subjects import ControlSubjects
from bascule.partition.core import codec
from bascule.partition.core.codec import Answer, MalformedReplication, PartitionKey, Request
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Message, Notice
from bascule.partition.replication.half_answers import HalfAnswers

_logger = logging.getLogger(__name__)

_TYPES: Final[dict[type[Message], MessageType]] = {
    Fetch: MessageType.REPLICATION_REQUEST,
    EpochQuery: MessageType.LEADER_EPOCH_OFFSET_REQUEST,
    FetchAnswer: MessageType.REPLICATION_RESPONSE,
    EpochAnswer: MessageType.LEADER_EPOCH_OFFSET_RESPONSE,
    Notice: MessageType.PARTITION_NOTIFICATION,
}
_REQUESTS: Final[dict[int, Callable[[memoryview], tuple[str, list[tuple[PartitionKey, Any]]]]]] = {
    MessageType.REPLICATION_REQUEST: codec.decode_fetches,
    MessageType.LEADER_EPOCH_OFFSET_REQUEST: codec.decode_epoch_queries,
}
_ANSWERS: Final[dict[int, Callable[[memoryview], tuple[str, list[tuple[PartitionKey, Any]]]]]] = {
    MessageType.LEADER_EPOCH_OFFSET_RESPONSE: codec.decode_epoch_answers,
    MessageType.PARTITION_NOTIFICATION: codec.decode_notices,
}
_PLAIN: Final = envelope.MAGIC + bytes((envelope.VERSION, envelope.HEADER_BYTES, 0))
"""How an envelope without a checksum begins; the type follows."""

_COMPLAINT_NS: Final = 1_000_000_000
"""Minimum interval between log messages about malformed messages."""

_JOINED_BYTES_MAX: Final = 16 * limits.KIB
"""Larger messages are not copied into one buffer."""

_Parts = list[bytes | memoryview]


@dataclass(slots=True)
class ReplicationLinkStats:
    """Counted since the link was created. A message is one of NATS; an entry is for one partition."""

    messages_in: int = 0
    entries_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    entries_out: int = 0
    bytes_out: int = 0
    entries_dropped: int = 0
    """Dropped: no connection, addressed to this server itself, or larger than `max_payload`."""
    messages_malformed: int = 0
    """Received messages that no broker can have sent."""


class ReplicationLink:
    def __init__(self, link: NatsLink, namespace: str, server_id: str, channel: SealedChannel | None = None) -> None:
        """Sets the callbacks of `link`. `channel` seals its messages; None: they are not authenticated."""
        self.link = link
        self.channel = channel
        if channel is not None:
            # A server that has just started drops messages until this server has answered its challenge: they are sent again.
            channel.on_accepted = lambda _server: self.on_connected()
        self._reader = link.reader
        self.stats = ReplicationLinkStats()
        self.half_answers = HalfAnswers()
        self.on_request: Callable[[str, PartitionKey, Request, int], None] = _ignore
        """The sender's server id, the partition, the request, and the monotonic time in ns."""
        self.on_answer: Callable[[str, PartitionKey, Answer, int], None] = _ignore
        """The same for answers. Data may be a view of a larger message: copy data that is kept for long."""
        self.on_room: Callable[[], None] = _ignore
        """Called when there is room again after `has_room` was False, or when the connection is lost."""
        self.on_connected: Callable[[], None] = _ignore
        """Called after each connect: messages in flight before it are lost."""
        self.on_state: Callable[[bool, str], None] = _ignore
        """Called with whether the link is connected, and with the server or the reason."""
        self._subjects = ControlSubjects(namespace)
        self._server_id = server_id
        head = codec.encode_head(server_id)
        self._heads = {kind: _PLAIN + bytes((_TYPES[kind],)) + head for kind in _TYPES}
        self._waiting: dict[tuple[str, type[Message]], list[tuple[bytes, bytes | memoryview]]] = {}
        """Entries of this turn of the event loop, with their data."""
        self._waiting_bytes = 0
        self._owes_room = False
        self._complained_ns = -_COMPLAINT_NS
        self._sids: list[int] = []
        link.on_state = self._on_state
        link.on_room = self._check_room

    def start(self) -> None:
        """Subscribe, now and after each reconnect."""
        subscriptions = (
            (self._subjects.replication_leader(self._server_id), self._take_requests),
            (self._subjects.replication_follower(self._server_id), self._take_answers),
        )
        for subject, take in subscriptions:
            self._sids.append(self.link.subscribe(subject.encode(), CallbackSink(take)))

    def stop(self) -> None:
        """Unsubscribe. The owner of the NATS link closes it."""
        for sid in self._sids:
            self.link.unsubscribe(sid)
        self._sids.clear()
        self.half_answers.clear()

    @property
    def has_room(self) -> bool:
        """Whether more data should be sent. After False, `on_room` is called when there is room again."""
        if self._waiting_bytes + self.link.unsent < limits.REPLICATION_OUTPUT_BYTES_MAX:
            return True
        self._owes_room = True
        return False

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    def send(self, server: str, key: PartitionKey, message: Request | Answer) -> None:
        """Send at the end of this turn of the event loop; data must not change until then. The message may be lost."""
        if not self._reader.connected or server == self._server_id:
            self.stats.entries_dropped += 1
            return
        entry = codec.encode_entry(key, message)
        data = message.data if isinstance(message, FetchAnswer) else b""
        self._waiting_bytes += len(entry) + len(data)
        place = (server, type(message))
        waiting = self._waiting.get(place)
        if waiting is not None:
            waiting.append((entry, data))
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
            # After it in the same turn, so that everything leaves in the turn that writes it.
            self.link.schedule_flush()
        self._waiting[place] = [(entry, data)]

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for (server, kind), entries in waiting.items():
            head = self._heads[kind]
            payload_bytes_max = min(self._reader.max_payload, limits.REPLICATION_MESSAGE_BYTES_MAX)
            if self.channel is not None:
                payload_bytes_max -= self.channel.seal_bytes
            if not self._reader.connected or payload_bytes_max - len(head) <= codec.ANSWER_BYTES:
                self.stats.entries_dropped += len(entries)
                continue
            is_request = kind is Fetch or kind is EpochQuery
            name = self._subjects.replication_leader if is_request else self._subjects.replication_follower
            subject = name(server).encode()
            for parts in _messages(head, entries, payload_bytes_max):
                self._publish(subject, parts)
            self.stats.entries_out += len(entries)
        self.link.schedule_flush()
        if self._owes_room:
            asyncio.get_running_loop().call_soon(self._check_room)

    def _publish(self, subject: bytes, parts: _Parts) -> None:
        size = sum(map(len, parts))
        if self.channel is not None:
            parts = [self.channel.seal_parts(subject, parts, size), *parts]
            size += self.channel.seal_bytes
        output = self._reader.output
        if size < _JOINED_BYTES_MAX:
            publish(output, subject, b"".join(parts))
        else:
            output.append(b"PUB %b %d\r\n" % (subject, size))
            for part in parts:
                output.append(part)
            output.append(b"\r\n")
        self.stats.messages_out += 1
        self.stats.bytes_out += size

    def _check_room(self) -> None:
        if self._owes_room and self.has_room:
            self._owes_room = False
            self.on_room()

    # ── receiving ────────────────────────────────────────────────────────────────────────────────

    def _open(self, subject: bytes, reply: bytes, data: bytes) -> bytes | memoryview | None:
        """The message without its seal; None if it is not from a server of this cluster."""
        return data if self.channel is None else self.channel.open(subject, data, reply)

    def _take_requests(self, subject: bytes, reply: bytes, _headers: bytes | None, received: bytes) -> None:
        data = self._open(subject, reply, received)
        if data is None:
            return
        try:
            kind, payload = _unwrap(data, _REQUESTS)
            sender, entries = _REQUESTS[kind](payload)
        except (RejectedEnvelope, MalformedReplication) as error:
            self._refuse(error)
            return
        if self._takes(sender, data):
            self._deliver(self.on_request, sender, entries)

    def _take_answers(self, subject: bytes, reply: bytes, _headers: bytes | None, received: bytes) -> None:
        data = self._open(subject, reply, received)
        if data is None:
            return
        try:
            kind, payload = _unwrap(data, (*_ANSWERS, MessageType.REPLICATION_RESPONSE))
            if kind == MessageType.REPLICATION_RESPONSE:
                sender, pieces = codec.decode_answers(payload)
            else:
                sender, entries = _ANSWERS[kind](payload)
        except (RejectedEnvelope, MalformedReplication) as error:
            self._refuse(error)
            return
        if not self._takes(sender, data):
            return
        if kind == MessageType.REPLICATION_RESPONSE:
            entries = self._put_together(sender, pieces)
        self._deliver(self.on_answer, sender, entries)

    def _put_together(
        self, sender: str, pieces: list[tuple[PartitionKey, FetchAnswer, int, int]]
    ) -> list[tuple[PartitionKey, FetchAnswer]]:
        found = []
        for key, answer, total_bytes, position in pieces:
            if len(answer.data) == total_bytes:
                self.half_answers.drop(sender)
                found.append((key, answer))
            elif (whole := self.half_answers.add(sender, key, answer, total_bytes, position)) is not None:
                found.append((key, whole))
        return found

    def _takes(self, sender: str, data: bytes | memoryview) -> bool:
        if sender == self._server_id:
            self._refuse(MalformedReplication("its sender is this server itself"))
            return False
        self.stats.messages_in += 1
        self.stats.bytes_in += len(data)
        return True

    def _deliver(
        self,
        listener: Callable[[str, PartitionKey, Any, int], None],
        sender: str,
        entries: Iterable[tuple[PartitionKey, Any]],
    ) -> None:
        now_ns = time.monotonic_ns()
        for key, message in entries:
            self.stats.entries_in += 1
            try:
                listener(sender, key, message, now_ns)
            except Exception as error:
                # An error in one partition must not cost the other entries of the message.
                context = {
                    "message": f"the message of {sender} for partition {key} was not handled",
                    "exception": error,
                }
                asyncio.get_running_loop().call_exception_handler(context)

    def _refuse(self, error: Exception) -> None:
        self.stats.messages_malformed += 1
        now_ns = time.monotonic_ns()
        if now_ns - self._complained_ns >= _COMPLAINT_NS:
            self._complained_ns = now_ns
            _logger.warning(
                "a malformed replication message was dropped, number %d: %s", self.stats.messages_malformed, error
            )

    # ── the connection ───────────────────────────────────────────────────────────────────────────

    def _on_state(self, connected: bool, reason: str) -> None:
        self.on_state(connected, reason)
        if connected:
            self.on_connected()
        else:
            self.half_answers.clear()
            self._check_room()


def _unwrap(data: bytes | memoryview, kinds: Iterable[int]) -> tuple[int, memoryview]:
    """The type and the payload of an envelope that has one of these types."""
    if len(data) <= envelope.HEADER_BYTES:
        raise MalformedReplication(f"{len(data)} bytes are no envelope with a payload")
    kind = data[7]
    if kind not in kinds:
        raise MalformedReplication(f"type {kind} is not a type of replication messages")
    if data[: len(_PLAIN)] == _PLAIN:
        return kind, memoryview(data)[envelope.HEADER_BYTES :]
    return kind, memoryview(envelope.decode(data, MessageType(kind)))


def _messages(head: bytes, entries: list[tuple[bytes, bytes | memoryview]], payload_bytes_max: int) -> Iterable[_Parts]:
    """The parts of as few messages as possible for these entries. Data is split only if it does not fit one message."""
    parts: _Parts = [head]
    room = empty_room = payload_bytes_max - len(head)
    for entry, data in entries:
        needed = len(entry) + len(data)
        if needed > room and len(parts) > 1:
            yield parts
            parts, room = [head], empty_room
        if needed <= room:
            parts += (entry, data) if data else (entry,)
            room -= needed
            continue
        view = memoryview(data)
        size = room - len(entry)
        for position in range(0, len(data), size):
            piece = view[position : position + size]
            if len(parts) > 1:
                yield parts
            parts = [head, codec.encode_piece(entry, position, len(piece)), piece]
        room = empty_room - len(entry) - len(piece)
    yield parts


def _ignore(*_: object) -> None:
    """The default of a callback."""
