"""Publishes that are unary calls: large messages, messages without an ack or with the caller's correlation id, subjects.

A broker ends a whole PublishAsync call for one message that is larger than it accepts. So large messages are sent as calls of their
own, and fail alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from bascule.client.connection.brokers import Brokers
from bascule.client.connection.failures import call_failure, publish_failure, unknown_outcome
from bascule.client.connection.retry import TimeLimit
from bascule.client.publish.carrier import Carrier, Parcel
from bascule.errors import BasculeError
from bascule.kernels.window.message import PublishMessage
from bascule.kernels.window.window import Ack, decode_publish_response, encode_publish_request, refusal
from bascule.net.grpc.channel import GrpcStatusError

LARGE_BYTES: Final = 1 << 20
"""A larger message is sent as a call of its own. Well below what servers accept in one gRPC message, 4 MiB."""


def is_large(value: bytes, key: bytes | None, headers: Mapping[str, bytes] | None) -> bool:
    size = len(value) + (0 if key is None else len(key))
    if headers is not None:
        size += sum(len(name) + len(one) for name, one in headers.items())
    return size > LARGE_BYTES


class UnaryCarrier(Carrier):
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._calls: dict[PublishMessage, asyncio.Task[None]] = {}

    @property
    def is_usable(self) -> bool:
        return True

    def post(self, message: PublishMessage, headers: dict[str, bytes] | None, until: float) -> bool:
        call = message.call or ("Publish", _request(message, headers))
        self._calls[message] = asyncio.create_task(self._publish(message, *call, TimeLimit(until)), name="publish")
        return True

    def pending(self) -> list[Parcel]:
        return list(self._calls)

    async def wait_for_room(self, _deadline: TimeLimit) -> None:
        """There always is: each message is a call of its own."""

    def retire(self) -> None:
        """The next call may go to another broker anyway."""

    def close(self) -> None:
        for task in self._calls.values():
            task.cancel()

    async def _publish(self, message: PublishMessage, method: str, request: bytes, deadline: TimeLimit) -> None:
        lane = message.lane
        ack: Ack | None = None
        error: BasculeError | None
        try:
            channel = await self._brokers.any_channel(deadline)
            answer = await self._brokers.ask(channel, method, request, deadline)
            ack, _, _ = decode_publish_response(answer)
            if ack is not None:
                ack.partition = lane.partition if lane.target.stream else partition_of(ack)
            error = None if ack is None or not ack.error else publish_failure(*refusal(ack.error))
        except GrpcStatusError as status:
            error = call_failure(status)
        except BasculeError as failure:
            error = failure
        except ValueError as fault:
            error = unknown_outcome("the message was sent", f"the answer cannot be decoded, {fault}")
        except asyncio.CancelledError:
            lane.failed(message, self, unknown_outcome("the message was sent", "the publisher was closed"))
            raise
        finally:
            if self._calls.get(message) is asyncio.current_task():
                del self._calls[message]
        if error is None:
            message.settle(ack)
        else:
            lane.failed(message, self, error)


def partition_of(ack: Ack) -> int:
    """The partition of a message that was published to a subject; −1 if the subject has wildcards and does not tell it."""
    subject, own = ack.message_subject, ack.partition_subject
    if subject == own:
        return 0
    number = subject.removeprefix(f"{own}.")
    return int(number) if number != subject and number.isascii() and number.isdigit() else -1


def _request(message: PublishMessage, headers: dict[str, bytes] | None) -> bytes:
    return encode_publish_request(
        message.lane.target, message.value, message.key, headers, expected_offset=message.expected_offset
    )
