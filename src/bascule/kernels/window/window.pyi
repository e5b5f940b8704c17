"""Publishes that wait for their ack, and the codec of requests, envelopes, responses and acks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, final

from typing_extensions import Buffer

STORED: Final[int]
"""Stored, at the offset in the same row of `offsets`."""
WAITING: Final[int]
"""Not sent yet, or not answered."""
OUTCOME_UNKNOWN: Final[int]
"""Sent, and no answer will come: it may be stored or not."""
NOT_SENT: Final[int]
"""Never sent: the call ended, or its deadline passed, before its turn."""
SENT: Final[int]
"""Sent; no ack was requested."""
FAILED: Final[int]
"""FAILED + the code of a PublishAsyncError: refused."""

@final
class Ack:
    """Where a message was stored."""

    partition: int
    """The partition that has the message; −1 if the publisher does not know it."""
    @property
    def stream(self) -> str: ...
    @property
    def partition_subject(self) -> str:
        """The subject of the stream."""
    @property
    def message_subject(self) -> str:
        """The subject that the message arrived on."""
    @property
    def offset(self) -> int: ...
    @property
    def ack_inbox(self) -> str: ...
    @property
    def correlation_id(self) -> str:
        """As it was on the wire."""
    @property
    def ack_policy(self) -> int: ...
    @property
    def reception_timestamp(self) -> int:
        """When the leader received the message, ns: the message's timestamp."""
    @property
    def commit_timestamp(self) -> int:
        """When the ack was sent, ns."""
    @property
    def error(self) -> int:
        """0, or why the message was not stored: bascule.kernels.envelope.messages names the numbers."""
    @property
    def duplicate(self) -> bool:
        """The message was stored before: `offset` is the original's, −1 when that is not known any more."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PublishTarget:
    """A partition and an ack policy, encoded once for many messages."""

    def __init__(self, stream: str, partition: int = 0, ack_policy: int = 0) -> None: ...
    @property
    def stream(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def ack_policy(self) -> int: ...

class Waiter(Protocol):
    """Waits for an ack: a Future of asyncio, or an object like one. `set_result` is called only if `done()` is false."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> Any: ...

@final
class PublishColumns:
    """Many messages for one target, and the outcome of each. `waiter` gets this object as its result when every row has one.

    Either lists of bytes, or a buffer and the int64 positions where messages end in it. The buffers must not change until all was sent.
    `headers` are encoded already, by `publish_headers.encode_publish_headers`.
    """

    def __init__(
        self,
        target: PublishTarget,
        values: Sequence[bytes] | Buffer,
        value_ends: Buffer | None = None,
        keys: Sequence[bytes | None] | Buffer | None = None,
        key_ends: Buffer | None = None,
        *,
        headers: Buffer | None = None,
        header_ends: Buffer | None = None,
        waiter: Waiter | None = None,
        deadline: float = 0.0,
    ) -> None: ...
    deadline: float
    """On the monotonic clock, for PublishWindow.expire(); 0 without."""
    @property
    def target(self) -> PublishTarget: ...
    def __len__(self) -> int: ...
    @property
    def sent(self) -> int:
        """Messages sent so far, from the front."""
    @property
    def answered(self) -> int:
        """Messages with an outcome."""
    @property
    def failed(self) -> int:
        """Messages whose outcome is neither STORED nor SENT."""
    @property
    def done(self) -> bool: ...
    @property
    def offsets(self) -> memoryview:
        """int64, −1 where there is none."""
    @property
    def outcomes(self) -> memoryview:
        """int32: STORED, WAITING, OUTCOME_UNKNOWN, NOT_SENT, SENT, or FAILED + code."""
    @property
    def texts(self) -> dict[int, str]:
        """For each outcome from FAILED on, the text of the first such error."""

class PublishWindow:
    """Publishes that were sent and not answered, at most `size` of them (a power of two).

    Their correlation id on the wire is a number that says which slot they have; answers may come in any order, a late answer to
    a publish that was given up is recognised and ignored. `number` counts the publishes of a window, from 0.
    """

    def __init__(
        self,
        size: int = 8192,
        *,
        on_failed: Callable[[Any, int, int, str], object] | None = None,
        on_lost: Callable[[list[tuple[int, Any]]], object] | None = None,
    ) -> None: ...
    on_failed: Callable[[Any, int, int, str], object] | None
    """Called with waiter, number, code of PublishAsyncError and text. The waiter is None for a message without one; then the number is
    −1 if it is unknown."""
    on_lost: Callable[[list[tuple[int, Any]]], object] | None
    """Called with (number, waiter) of all publishes that are given up, oldest first. Rows of columns are marked in their columns
    instead."""
    @property
    def size(self) -> int: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def published(self) -> int:
        """Publishes so far: the number that the next one gets."""
    @property
    def acknowledged(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def strays(self) -> int:
        """Answers that match no publish in the window."""
    def take(self, waiter: Waiter | None = None, deadline: float = 0.0) -> bytes | None:
        """Take a slot and return its correlation id. None when the window is full."""
    def resolve_envelope(self, data: Buffer) -> bool:
        """Answer a publish with an ack envelope, as it comes over NATS. False for other bytes, and for an ack of another publish."""
    def pending(self) -> list[Any]:
        """The waiters of unanswered publishes, oldest first, without rows of columns."""
    def expire(self, now: float) -> int:
        """Give up publishes whose deadline has passed, through on_lost. Returns their number."""
    def lose_all(self) -> int:
        """Give up all publishes, through on_lost."""

def encode_publish_request(
    target: PublishTarget,
    value: bytes,
    key: bytes | None = None,
    headers: Mapping[str, bytes] | None = None,
    correlation_id: bytes = b"",
    expected_offset: int = -1,
    ack_inbox: bytes = b"",
) -> bytes:
    """A `PublishRequest`."""

def encode_publish_envelope(
    value: bytes,
    key: bytes | None = None,
    headers: Mapping[str, bytes] | None = None,
    correlation_id: bytes = b"",
    expected_offset: int = -1,
    ack_inbox: bytes = b"",
    ack_policy: int = 0,
) -> bytes:
    """A publish envelope, for the NATS subject of a partition."""

def encode_publish_to_subject(
    subject: str,
    value: bytes,
    key: bytes | None = None,
    headers: Mapping[str, bytes] | None = None,
    correlation_id: bytes = b"",
    ack_inbox: bytes = b"",
    ack_policy: int = 0,
) -> bytes:
    """A `PublishToSubjectRequest`."""

def refusal(error: int) -> tuple[int, str]:
    """Code and text of a PublishAsyncError for the error in an ack."""

def decode_ack(data: Buffer) -> Ack:
    """ValueError when it is not protobuf."""

def decode_ack_envelope(data: Buffer) -> Ack | None:
    """None for bytes that are not an ack envelope."""

def decode_publish_response(data: Buffer) -> tuple[Ack | None, tuple[int, str] | None, str]:
    """Ack, error (code, text) and correlation id of a `PublishResponse`. Its first part is also that of a `PublishToSubjectResponse`.
    ValueError when it is not protobuf."""
