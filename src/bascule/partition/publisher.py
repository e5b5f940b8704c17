"""Publishing from inside the broker, through NATS like other clients; and the event-loop side of the API's publishing calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from bascule import limits
from bascule.errors import BasculeError, Unavailable
from bascule.kernels.calls.internal import InternalGate
from bascule.kernels.calls.publish import PublishAsyncStream, PublishGate, PublishStream
from bascule.kernels.calls.targets import Targets
from bascule.kernels.ingest.acks import AckRouter
from bascule.names import TOMBSTONE_HEADER, publish_subject_fault, reserved_subject_fault
from bascule.net.grpc.status import GrpcError, Status, status_of
from bascule.net.nats.link import NatsLink
from bascule.proto.api_pb2 import Ack, AckPolicy, PublishRequest
from bascule.security.authorization import Authorizer

_OUTPUT_POLL_SECONDS: Final = 0.002
_SUBJECTS_REMEMBERED_MAX: Final = 1_024

Resume = Callable[[str, int], Awaitable[None]]


def _status(error: BasculeError) -> tuple[int, str]:
    if isinstance(error, Unavailable):
        # Clients know these words: they publish again, instead of reporting that the outcome is unknown.
        return int(Status.UNAVAILABLE), f"{error.message}: the message was not stored, publish it again"
    return int(status_of(error)), error.message


class PublishShell:
    """Flushes, resumes partitions and sets timers for the publishing kernels."""

    def __init__(
        self,
        link: NatsLink,
        authorizer: Authorizer,
        resume_partition: Resume,
        targets: Targets,
        router: AckRouter,
        payload_bytes_max: int,
        namespace: str,
        leader_of: Callable[[str, str], str],
    ) -> None:
        """`leader_of` names the leader of the partition of a stream that has this NATS subject."""
        self._leader_of = leader_of
        self._link = link
        self._authorizer = authorizer
        self._namespace = namespace
        self._subject_faults: dict[bytes, str | None] = {}
        self._resume_partition = resume_partition
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching = False
        self.schedule_flush = link.schedule_flush
        self.call_later = self._loop.call_later
        self.gate = PublishGate(
            targets=targets,
            nats=link.reader,
            receivers=router.receivers,
            inbox_prefix=router.prefix,
            shell=self,
            payload_bytes_max=payload_bytes_max,
            output_bytes_max=limits.PUBLISH_OUTPUT_BYTES_MAX,
            unread_bytes_max=limits.PUBLISH_UNREAD_ACKS_BYTES_MAX,
        )
        self.gate.checks_authorization = authorizer.is_enabled

    def refusal(self, peer: Any, stream: str) -> tuple[int, str] | None:
        """Status and text if the client may not publish to this stream; None if it may."""
        if self._authorizer.allows(peer, stream, "Publish"):
            return None
        return _status(self._authorizer.refused(peer, stream, "Publish"))

    def subject_refusal(self, peer: Any, subject: bytes, field: str) -> tuple[int, str] | None:
        """Status and text if the client may not publish to this subject, which is a request's subject or ack inbox; None if it may."""
        known = self._subject_faults
        if subject not in known:
            if len(known) >= _SUBJECTS_REMEMBERED_MAX:
                known.clear()
            known[subject] = self._subject_fault(subject)
        if (fault := known[subject]) is not None:
            return int(Status.INVALID_ARGUMENT), f"{field} is invalid: {fault}"
        text = subject.decode()
        if self._authorizer.allows_subject(peer, text, "PublishToSubject"):
            return None
        return _status(self._authorizer.refused(peer, text, "PublishToSubject"))

    def _subject_fault(self, subject: bytes) -> str | None:
        try:
            text = subject.decode()
        except UnicodeDecodeError:
            return "it is not UTF-8"
        return publish_subject_fault(text) or reserved_subject_fault(text, self._namespace)

    def full_disk(self, stream: bytes, subject: bytes) -> bytes:
        """The text for a message that its partition's leader could not store, because its disk is full."""
        server = self._leader_of(stream.decode("utf-8", "replace"), subject.decode("utf-8", "replace"))
        return f"the disk of {server} is full: the message was not stored; free space there, or lower the retention of streams".encode()

    def judge_again(self) -> int:
        """End the sessions of clients that may no longer publish to a stream that they published to. Returns how many."""
        ended = 0
        for session in self.gate.sessions:
            for stream, peer in session.granted.items():
                if (refusal := self.refusal(peer, stream.decode("utf-8", "replace"))) is not None:
                    session.finish(*refusal)
                    ended += 1
                    break
        return ended

    def half_closed(self, stream: PublishAsyncStream) -> None:
        self._loop.call_later(limits.PUBLISH_HALF_CLOSE_SECONDS, stream.give_up)

    def resume(self, stream: PublishAsyncStream | PublishStream, name: str, partition: int) -> None:
        task = self._loop.create_task(self._resume(stream, name, partition))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resume(self, stream: PublishAsyncStream | PublishStream, name: str, partition: int) -> None:
        try:
            await self._resume_partition(name, partition)
        except GrpcError as error:
            stream.resumed(error.text)
        else:
            stream.resumed(None)

    def watch_output(self) -> None:
        if not self._watching:
            self._watching = True
            self._loop.call_later(_OUTPUT_POLL_SECONDS, self._look_at_output)

    def _look_at_output(self) -> None:
        if len(self._link.output) > limits.PUBLISH_OUTPUT_BYTES_MAX // 2:
            self._loop.call_later(_OUTPUT_POLL_SECONDS, self._look_at_output)
            return
        self._watching = False
        self.gate.drained()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


class InternalPublisher:
    """Publishes for the broker itself. With a cluster secret its messages to internal streams are sealed."""

    def __init__(self, gate: InternalGate, resume: Resume) -> None:
        self._gate = gate
        self._resume = resume

    async def publish(
        self,
        stream: str,
        partition: int,
        *,
        key: bytes = b"",
        value: bytes | None = b"",
        headers: Mapping[str, bytes] | None = None,
        ack_policy: int,
        timeout: float,
        correlation_id: str = "",
        expected_offset: int = -1,
    ) -> Ack | None:
        """Publish and return the ack, or None without an ack policy. A value of None makes a tombstone. Raises GrpcError as the API
        would."""
        request = PublishRequest(
            stream=stream,
            partition=partition,
            key=key,
            value=value or b"",
            headers=(headers or {}) if value is not None else {**(headers or {}), TOMBSTONE_HEADER: b"1"},
            ackPolicy=AckPolicy.Name(ack_policy),
            correlationId=correlation_id,
            expectedOffset=expected_offset,
        ).SerializeToString()
        try:
            async with asyncio.timeout(timeout):
                return await self._publish(request, stream, partition)
        except TimeoutError:
            raise GrpcError(Status.DEADLINE_EXCEEDED, f"no ack within {timeout:g} s") from None

    async def wait_for_leader(self, stream: str, partition: int) -> None:
        """Return when the leader of a partition has started it. What is published earlier may be lost. Raises GrpcError."""
        await self._resume(stream, partition)

    async def _publish(self, request: bytes, stream: str, partition: int) -> Ack | None:
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        found = self._gate.publish(request, lambda ack: None if answered.done() else answered.set_result(ack))
        if isinstance(found, tuple):
            status, _, text, is_paused = found
            if not is_paused:
                raise GrpcError(Status(status), text.decode())
            await self._resume(stream, partition)
            return await self._publish(request, stream, partition)
        if found is None:
            return None
        try:
            data = await answered
        finally:
            self._gate.cancel(found)
        if data is None:
            raise GrpcError(
                Status.UNKNOWN, "the connection to NATS was lost: the message may or may not have been stored"
            )
        ack = Ack.FromString(data)
        if ack.ackError != Ack.Error.OK:
            raise GrpcError(Status.UNKNOWN, f"the message was not stored: {Ack.Error.Name(ack.ackError)}")
        return ack


class InFlight:
    """Messages that this server's clients have published and that may not have come back from NATS yet."""

    def __init__(self, gate: PublishGate, link: NatsLink) -> None:
        self._gate = gate
        self._link = link
        self._arrived = 0

    @property
    def is_empty(self) -> bool:
        return self._gate.published == self._arrived

    async def arrive(self) -> None:
        """Wait until everything published so far has arrived at its partitions, or NATS does not answer."""
        published = self._gate.published
        with contextlib.suppress(Unavailable):
            await self._link.flush(limits.PUBLISH_ARRIVAL_SECONDS)
        self._arrived = max(self._arrived, published)


POLICIES: Final = {"none": AckPolicy.NONE, "leader": AckPolicy.LEADER, "all": AckPolicy.ALL}
"""Ack policies by their names in the configuration."""
