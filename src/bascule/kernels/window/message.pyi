"""A message on its way to a partition, and the lane that keeps its order."""

from asyncio import Future
from collections.abc import Callable
from typing import Any, final

from bascule.kernels.window.window import Ack

class PublishLane:
    """Counts the messages of one partition that were sent and not answered. `bascule.client.publish.lane.Lane` extends it."""

    in_flight: int
    next_sequence: int
    partition: int
    """The partition in the acks of its messages."""
    on_idle: Callable[[], object] | None
    """Called when `in_flight` has become 0."""
    def left(self) -> None:
        """One message is no longer in flight."""

@final
class PublishMessage:
    """A message, its future, and the state of its delivery. It is the waiter of its slot in a PublishWindow: an ack settles it."""

    def __init__(
        self,
        lane: PublishLane,
        value: bytes,
        key: bytes | None,
        headers: dict[str, bytes] | None,
        expected_offset: int,
        future: Future[Any],
        deadline: float,
        is_alone: bool = False,
        call: tuple[str, bytes] | None = None,
    ) -> None: ...
    @property
    def lane(self) -> Any: ...
    @property
    def value(self) -> bytes: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> dict[str, bytes] | None: ...
    @property
    def expected_offset(self) -> int:
        """-1 when any offset will do."""
    @property
    def future(self) -> Future[Any]: ...
    @property
    def deadline(self) -> float:
        """On the monotonic clock: when the message is given up."""
    @property
    def is_alone(self) -> bool:
        """It is sent as a unary call, after the messages before it were answered and before the ones after it are sent."""
    @property
    def call(self) -> tuple[str, bytes] | None:
        """Method and request of that call, if they are not made from the fields above."""
    sequence: int
    """Position in its lane, from 0; -1 before it was first sent."""
    carrier: Any
    """The session, or other transport, that the last attempt went out on; None while no attempt is in flight."""
    led_by: str
    """The partition's leader when it was sent; empty if unknown."""
    sent_at: float
    is_in_doubt: bool
    """An attempt ended without an answer: it may be stored."""
    error: Any
    """Why the last attempt failed."""
    @property
    def is_settled(self) -> bool: ...
    def sent(self, carrier: Any, led_by: str, now: float) -> None:
        """Note an attempt. The first one gives the message its sequence."""
    def settle(self, ack: Ack | None) -> None:
        """Stored, or sent without an ack: give the future its result. Ignored if the message is settled already."""
    def fail(self, error: Exception) -> None:
        """Given up: give the future this error. Ignored if the message is settled already."""
    def quiet_since(self) -> float:
        """When the last attempt was made."""
    def withdraw(self, error: Exception) -> None:
        """Count the attempt in flight as failed."""
    def done(self) -> bool: ...
    def set_result(self, ack: Ack, /) -> None: ...
