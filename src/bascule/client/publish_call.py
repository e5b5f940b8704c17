"""A publish as a call of its own: for what needs a correlation id of the caller's, wants no ack, goes to a subject, or is large.

A broker ends a whole session for one message that is larger than it takes. Large ones therefore travel alone, and fail alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.client.brokers import Brokers
from bascule.client.failures import ack_failure, error_of, unary_publish_failure, unknown_outcome
from bascule.client.retry import Backoff, Deadline
from bascule.errors import Unavailable
from bascule.kernels.publish_window import Ack, decode_publish_response
from bascule.net.grpc_channel import Channel, GrpcStatusError
from bascule.net.status import Status

LARGE_BYTES: Final = 1 << 20
"""Beyond it a message travels alone. Far below what any server takes in one message of gRPC, 4 MiB."""


def is_large(value: bytes, key: bytes | None, headers: Mapping[str, bytes] | None) -> bool:
    size = len(value) + (0 if key is None else len(key))
    if headers is not None:
        size += sum(len(name) + len(one) for name, one in headers.items())
    return size > LARGE_BYTES


async def call_publish(brokers: Brokers, method: str, request: bytes, seconds: float) -> Ack | None:
    """A publish as a call of its own. Made again only when the broker has surely not seen it."""
    deadline = Deadline.after(seconds)
    backoff = Backoff()
    while True:
        try:
            channel: Channel = await brokers.any_channel(deadline)
            answer = await brokers.ask(channel, method, request, deadline)
            ack, _, _ = decode_publish_response(answer)
        except GrpcStatusError as error:
            problem = (error_of if error.unprocessed else unary_publish_failure)(error.status, error.text)
            if error.status == Status.UNAVAILABLE and not error.unprocessed:
                raise unknown_outcome("the message was sent", error.text) from None
            if not isinstance(problem, Unavailable):
                raise problem from None
        except Unavailable as unreachable:
            problem = unreachable
        else:
            failure = None if ack is None else ack_failure(ack.error)
            if failure is not None:
                raise failure
            return ack
        if not await backoff.wait(deadline):
            raise problem from None
