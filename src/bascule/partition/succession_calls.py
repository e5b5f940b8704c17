"""Calls of a leader that hands a partition over to its successor: listen, take, cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from bascule import limits
from bascule.errors import BasculeError, RejectedEnvelope, StateError, Unavailable
from bascule.net.grpc.status import status_of
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.internal_pb2 import Error, SuccessionRequest, SuccessionResponse
from bascule.raft.transport import Bus, publish_quietly

PART_ATTEMPTS: Final = 2
"""How often a part of a note is sent until it is answered."""
PART_BYTES_MAX: Final = 512 * limits.KIB
PART_ROOM_BYTES: Final = 8 * limits.KIB
"""Room in a NATS message for the other fields, the envelope and the seal."""


@dataclass(frozen=True, slots=True)
class HandedPartition:
    """A partition in the epoch of the leader that hands it over."""

    stream: str
    stream_id: int
    number: int
    leader_epoch: int

    def request(self, step: SuccessionRequest.Step) -> SuccessionRequest:
        return SuccessionRequest(
            step=step,
            stream=self.stream,
            stream_id=self.stream_id,
            partition=self.number,
            leader_epoch=self.leader_epoch,
        )


@dataclass(frozen=True, slots=True)
class SuccessionNote:
    """What the leader before has received since it asked its successor to listen."""

    new_leader_epoch: int
    key: bytes
    hashes: bytes
    """8 bytes for each message, in the order of arrival."""
    early: int
    """Number of hashes, from the first one on, of messages that the successor may not have received."""
    messages: bytes
    """Those that it has not stored."""


class SuccessionCalls:
    def __init__(self, bus: Bus, subjects: ControlSubjects, max_payload: Callable[[], int]) -> None:
        self._bus = bus
        self._subjects = subjects
        self._max_payload = max_payload

    async def listen(self, successor: str, partition: HandedPartition, *, timeout: float) -> None:
        """Returns when the successor receives the partition's messages. Raises Unavailable, StateError."""
        await self._call(successor, partition.request(SuccessionRequest.LISTEN), timeout)

    async def take(self, successor: str, partition: HandedPartition, note: SuccessionNote, *, timeout: float) -> None:
        """Send the note in parts. Raises Unavailable, StateError."""
        for request in self._parts(partition, note):
            for attempt in range(PART_ATTEMPTS):
                try:
                    await self._call(successor, request, timeout)
                    break
                except Unavailable:
                    if attempt + 1 == PART_ATTEMPTS:
                        raise

    async def cancel(self, successor: str, partition: HandedPartition) -> None:
        data = pack_message(MessageType.PROPAGATED_REQUEST, partition.request(SuccessionRequest.CANCEL))
        await publish_quietly(self._bus, self._subjects.hand_overs(successor), data)

    def _parts(self, partition: HandedPartition, note: SuccessionNote) -> Iterator[SuccessionRequest]:
        data = note.hashes + note.messages
        size = max(1, min(PART_BYTES_MAX, self._max_payload() - PART_ROOM_BYTES))
        parts = max(1, -(-len(data) // size))
        for part in range(parts):
            request = partition.request(SuccessionRequest.TAKE)
            request.new_leader_epoch = note.new_leader_epoch
            request.key = note.key
            request.hash_bytes = len(note.hashes)
            request.early = note.early
            request.part, request.parts = part, parts
            request.data = data[part * size : (part + 1) * size]
            yield request

    async def _call(self, successor: str, request: SuccessionRequest, timeout: float) -> None:
        data = pack_message(MessageType.PROPAGATED_REQUEST, request)
        answer = await self._bus.request(self._subjects.hand_overs(successor), data, timeout)
        try:
            found = unpack_message(SuccessionResponse, answer, MessageType.PROPAGATED_RESPONSE)
        except RejectedEnvelope:
            raise Unavailable(f"the answer of {successor} to a hand-over is malformed") from None
        if found.HasField("error"):
            raise StateError(found.error.msg)


class Successor(Protocol):
    async def on_request(self, request: SuccessionRequest) -> None:
        """Raises BasculeError."""


class SuccessionAnswers:
    """Answers the calls of other leaders."""

    def __init__(self, bus: Bus, subjects: ControlSubjects, server_id: str, successor: Successor) -> None:
        self._bus = bus
        self._subject = subjects.hand_overs(server_id)
        self._successor = successor

    async def start(self) -> None:
        await self._bus.subscribe(self._subject, self._on_request)

    async def _on_request(self, data: bytes, reply: str) -> None:
        try:
            request = unpack_message(SuccessionRequest, data, MessageType.PROPAGATED_REQUEST)
        except RejectedEnvelope:
            return  # another program's bytes on our subject
        response = SuccessionResponse()
        try:
            await self._successor.on_request(request)
        except BasculeError as error:
            response.error.CopyFrom(Error(code=status_of(error), msg=error.message))
        if reply:
            await publish_quietly(self._bus, reply, pack_message(MessageType.PROPAGATED_RESPONSE, response))
