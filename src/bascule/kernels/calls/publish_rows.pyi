"""Many messages published from inside the broker under one ack inbox."""

from collections.abc import Callable
from typing import Final, final

from bascule.kernels.calls.publish import InternalReceiver, PublishGate

SENT: Final[int]
MALFORMED: Final[int]
"""No publish request, or one that asks for no ack."""
NO_PARTITION: Final[int]
READONLY: Final[int]
PAUSED: Final[int]
DISCONNECTED: Final[int]
TOO_LARGE: Final[int]

@final
class RowPublisher(InternalReceiver):
    def __init__(self, gate: PublishGate, requests: list[bytes], callback: Callable[[], None]) -> None:
        """Of encoded PublishRequests, each of which asks for an ack. Close it in the end, or acks are waited for for ever."""
    def send(self, rows: int, window: int, window_bytes: int) -> int:
        """Publish at most `rows` more, while fewer than `window` rows and `window_bytes` wait for acks, and NATS takes them.

        SENT, or why row `sent` was not. Nothing is sent any more once an ack said an error.
        """
    @property
    def sent(self) -> int: ...
    @property
    def acked(self) -> int: ...
    @property
    def unacked(self) -> int: ...
    @property
    def unacked_bytes(self) -> int: ...
    @property
    def error(self) -> int:
        """Of the first ack that said one; 0 while none has."""
    @property
    def is_lost(self) -> bool:
        """The connection to NATS was lost while rows waited for acks."""
    def wait(self, unacked: int) -> bool:
        """True: the callback will be called, once, when at most `unacked` rows wait, or something is wrong. False: it is so now."""
    def offsets(self) -> list[int]:
        """In the order of the rows; −1 of those that are not acked."""
    def close(self) -> None: ...
