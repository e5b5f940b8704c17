"""What carries messages to brokers and brings their acks back: a PublishAsync call, a NATS connection, or unary calls."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from bascule.client.connection.failures import publish_failure, unknown_outcome
from bascule.client.connection.retry import TimeLimit
from bascule.errors import BasculeError, Unavailable
from bascule.kernels.window.message import PublishMessage

if TYPE_CHECKING:
    from bascule.client.publish.rows import ColumnRows

EXPIRY_SECONDS: Final = 0.05
"""Interval at which a carrier looks for publishes whose deadline has passed."""

OnFailure = Callable[[BasculeError], None]


Parcel: TypeAlias = "PublishMessage | ColumnRows"
"""What a lane sends, and sends again, as one."""


class Carrier(ABC):
    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """It takes messages, as soon as it has room."""

    @abstractmethod
    def post(self, message: PublishMessage, headers: dict[str, bytes] | None, until: float) -> bool:
        """Send a message. False when there is no room, and nothing was sent."""

    def post_rows(self, _rows: ColumnRows, _until: float) -> None:
        """Send rows of columns. Only sessions do."""
        raise TypeError(f"{type(self).__name__} sends no columns")

    @abstractmethod
    def pending(self) -> list[Parcel]:
        """Parcels that were sent and not answered, oldest first."""

    @abstractmethod
    async def wait_for_room(self, deadline: TimeLimit) -> None:
        """Return when a message can be sent, or when the carrier is no longer usable. Raises TimeoutError."""

    @abstractmethod
    def retire(self) -> None:
        """Take no new messages; those in flight may still be answered."""


class Route(NamedTuple):
    carrier: Carrier
    leader: str
    """The partition's leader when the carrier was chosen; empty if unknown."""


class Routes(Protocol):
    """Finds the carrier for a partition."""

    def ready(self, stream: str, partition: int) -> Route | None:
        """The route that the partition had, while its carrier is usable."""

    async def get(self, stream: str, partition: int, deadline: TimeLimit) -> Route:
        """Raises Unavailable when no broker can be reached, StreamNotFound for a partition that does not exist."""

    async def has_moved(self, stream: str, partition: int, led_by: str) -> bool:
        """Whether another broker than `led_by` leads the partition now. Its route is forgotten then."""

    def carriers(self) -> list[Carrier]: ...

    def close(self) -> None: ...


class WindowCarrier(Carrier):
    """A carrier with a PublishWindow in the kernel: answers find their message there, and a timer gives up the late ones."""

    def __init__(self, on_failure: OnFailure) -> None:
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Everything was sent and answered."""

    @abstractmethod
    def expire(self, now: float) -> None:
        """Give up publishes whose deadline has passed."""

    @abstractmethod
    def _reason(self) -> str:
        """Why an answer will not come."""

    def arm(self) -> None:
        """Start the timer, unless it runs."""
        if self._expiry is None:
            self._expiry = self._loop.call_later(EXPIRY_SECONDS, self._expire)

    def disarm(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        self._expiry = None
        self.expire(monotonic())
        if not self.is_idle:
            self.arm()

    # ── callbacks of the kernel ──────────────────────────────────────────────────────────────────

    def _failed(self, message: PublishMessage | None, _number: int, code: int, text: str) -> None:
        error = publish_failure(code, text)
        if message is None:
            self._on_failure(error)  # the message wanted no ack: nothing else is known of it
        else:
            message.lane.failed(message, self, error)

    def _lost(self, publishes: list[tuple[int, PublishMessage | None]], *, was_sent: bool = True) -> None:
        reason = self._reason()
        for _, message in publishes:
            if message is not None:
                error: BasculeError = unknown_outcome("the message was sent", reason)
                if not was_sent:
                    error = Unavailable(f"the message was not sent: {reason}")
                message.lane.failed(message, self, error)
