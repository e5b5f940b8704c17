"""The client's streaming calls, Subscribe and PublishAsync. Both are opened with ClientConnection.open() or Channel.start()."""

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import Buffer

from bascule.kernels.client.messages import MessageBatch
from bascule.kernels.grpc.client import ClientStream
from bascule.kernels.window.message import PublishMessage
from bascule.kernels.window.window import PublishColumns, PublishTarget, PublishWindow, Waiter

class SubscribeClientStream(ClientStream):
    """Collects the messages of a Subscribe call into batches. When the consumer does not take them, the server is held back.

    `on_ready` is called, without arguments, when the subscription was confirmed, when there is something to take and was nothing
    before, and when the call has ended. It is called from within the connection, so it should only wake a task.
    What was received before the end can be taken after it.
    """

    on_ready: Callable[[], object] | None

    def __init__(
        self,
        request: Buffer,
        on_ready: Callable[[], object] | None = None,
        *,
        batch_bytes: int = 1 << 20,
        waiting_bytes_max: int = 8 << 20,
    ) -> None:
        """`request` is an encoded SubscribeRequest. A batch that is not taken grows until it has `batch_bytes`; from
        `waiting_bytes_max` on no more is taken from the server than its window allows."""
    def take(self) -> MessageBatch | None:
        """The oldest batch; None without messages."""
    @property
    def confirmed(self) -> bool:
        """The server has confirmed the subscription, by an empty first message or by a message."""
    @property
    def last_offset(self) -> int:
        """Offset of the last message received, taken or not; −1 without."""
    @property
    def waiting(self) -> int:
        """Messages that wait to be taken."""
    @property
    def waiting_bytes(self) -> int: ...
    @property
    def is_held_back(self) -> bool:
        """The consumer is slower than the server."""

class PublishAsyncClientStream(ClientStream):
    """A PublishAsync call: sends messages, and gives each waiter its ack.

    `on_writable` is called, without arguments, when has_room has become true after it was false. `on_ended(status, text)` is called
    once, after on_lost and all waiters of columns.
    """

    on_writable: Callable[[], object] | None
    on_ended: Callable[[int, str], object] | None

    def __init__(
        self,
        window: int = 8192,
        *,
        on_writable: Callable[[], object] | None = None,
        on_failed: Callable[[Any, int, int, str], object] | None = None,
        on_lost: Callable[[list[tuple[int, Any]]], object] | None = None,
        on_ended: Callable[[int, str], object] | None = None,
    ) -> None:
        """`on_failed` and `on_lost` as in PublishWindow."""
    @property
    def window(self) -> PublishWindow: ...
    @property
    def has_room(self) -> bool:
        """publish() accepts a message. If False, on_writable will be called, unless the call has ended."""
    @property
    def is_idle(self) -> bool:
        """Nothing is outstanding and nothing waits to be sent."""
    def publish(
        self,
        target: PublishTarget,
        value: bytes,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        expected_offset: int = -1,
        waiter: Waiter | None = None,
        deadline: float = 0.0,
    ) -> int:
        """Send a message. Returns its number, or −1 when there is no room and nothing was sent. The waiter gets an Ack; pass none with
        the policy NONE."""
    def publish_message(
        self, target: PublishTarget, message: PublishMessage, headers: Mapping[str, bytes] | None, deadline: float
    ) -> bool:
        """Send a message that waits for its own ack. False when there is no room, and nothing was sent."""
    def publish_columns(self, columns: PublishColumns) -> None:
        """Send all of them in order, as fast as the window allows. has_room is false until they are sent."""
    def expire(self, now: float) -> int:
        """Give up publishes whose deadline has passed, and return their number: their outcome is unknown. Rows that were not sent yet
        are not sent."""
