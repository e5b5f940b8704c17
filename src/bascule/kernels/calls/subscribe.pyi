"""A Subscribe call: record batches in, messages out."""

from collections.abc import Callable
from typing import Final, Protocol

from typing_extensions import Buffer

from bascule.kernels.grpc.server import GrpcStream

ALL: Final[int]
BUDGET: Final[int]
END: Final[int]
DAMAGED: Final[int]

class _Subscription(Protocol):
    def on_room(self) -> None: ...
    def on_closed(self) -> None: ...

class SubscribeStream(GrpcStream):
    subscription: _Subscription | None
    def __init__(self, shell: Callable[[SubscribeStream, bytes], None]) -> None:
        """`shell` is called with the request once the client has sent it."""
    @property
    def is_over(self) -> bool:
        """Finished or closed: nothing goes out any more."""
    def greet(self, stream: bytes, partition: int) -> None:
        """The empty message that tells a client that its subscription stands."""
    def send(self, message: bytes) -> None:
        """One `Message` that was encoded elsewhere."""
    def has_room(self) -> bool: ...
    def load(self, batches: Buffer, first_offset: int, end_offset: int) -> None:
        """Clear record batches, of which the records `first_offset <= offset < end_offset` are to be delivered."""
    def unload(self) -> None: ...
    @property
    def loaded_bytes(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """Behind the last message that was written."""
    def deliver(self) -> int:
        """Write messages as long as there is room: ALL, END (the next record is at `end_offset` or beyond), DAMAGED or BUDGET."""
    @property
    def messages(self) -> int: ...
    @property
    def message_bytes(self) -> int: ...
