"""A publish as a call of its own: for what needs a correlation id of the caller's, wants no ack, goes to a subject, or is large.

A broker ends a whole session for one message that is larger than it takes. Large ones therefore travel alone, and fail alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from bascule.client.connection.brokers import Brokers
from bascule.client.connection.failures import NOT_STORED, ack_failure, error_of, unary_publish_failure, unknown_outcome
from bascule.client.connection.retry import LEADER_CHECK_SECONDS, Backoff, Deadline
from bascule.errors import BasculeError, OutcomeUnknown, Unavailable
from bascule.kernels.window.window import Ack, decode_publish_response
from bascule.net.grpc.channel import Channel, GrpcStatusError
from bascule.net.grpc.status import Status

LARGE_BYTES: Final = 1 << 20
"""Beyond it a message travels alone. Far below what any server takes in one message of gRPC, 4 MiB."""


def is_large(value: bytes, key: bytes | None, headers: Mapping[str, bytes] | None) -> bool:
    size = len(value) + (0 if key is None else len(key))
    if headers is not None:
        size += sum(len(name) + len(one) for name, one in headers.items())
    return size > LARGE_BYTES


async def call_publish(
    brokers: Brokers, method: str, request: bytes, seconds: float, *, resend_to: tuple[str, int] | None = None
) -> Ack | None:
    """A publish as a call of its own. Made again only when the message is surely not stored, or to the partition `resend_to`."""
    resends = resend_to is not None
    deadline = Deadline.after(seconds)
    backoff = Backoff()
    while True:
        problem: BasculeError
        try:
            channel: Channel = await brokers.any_channel(deadline)
            call = brokers.ask(channel, method, request, deadline)
            answer = await (call if resend_to is None else _while_it_leads(brokers, resend_to, call, deadline))
            ack, _, _ = decode_publish_response(answer)
        except GrpcStatusError as error:
            problem = _problem(error)
            if not isinstance(problem, Unavailable) and not (resends and isinstance(problem, OutcomeUnknown)):
                raise problem from None
        except OutcomeUnknown as unknown:
            problem = unknown
        except Unavailable as unreachable:
            problem = unreachable
        else:
            failure = None if ack is None else ack_failure(ack.error)
            if failure is None:
                return ack
            if not isinstance(failure, Unavailable) and not (resends and isinstance(failure, OutcomeUnknown)):
                raise failure
            problem = failure
        if not await backoff.wait(deadline):
            raise problem from None


async def _while_it_leads(
    brokers: Brokers, place: tuple[str, int], call: Coroutine[Any, Any, bytes], deadline: Deadline
) -> bytes:
    """The answer. Raises OutcomeUnknown when another broker leads the partition meanwhile: no ack of the one before will come."""
    asking = asyncio.create_task(call)
    try:
        led_by = await brokers.leader(*place, deadline)
        while not (await asyncio.wait([asking], timeout=LEADER_CHECK_SECONDS))[0]:
            brokers.forget(place[0])
            leader = await brokers.leader(*place, deadline)
            if leader and leader != led_by and not asking.done():
                raise unknown_outcome("the message was sent", "another broker leads the partition by now")
        return await asking
    finally:
        asking.cancel()


def _problem(error: GrpcStatusError) -> BasculeError:
    if error.unprocessed:
        return error_of(error.status, error.text)
    if error.status == Status.UNAVAILABLE and NOT_STORED not in error.text:
        return unknown_outcome("the message was sent", error.text)
    return unary_publish_failure(error.status, error.text)
