"""Messages as a subscriber receives them: single ones, and batches as columns."""

from collections.abc import Iterable, Iterator
from typing import final

from typing_extensions import Buffer

@final
class Message:
    """One message. Texts and headers are decoded on access."""

    def __init__(
        self,
        offset: int = 0,
        value: bytes | None = b"",
        *,
        key: bytes | None = None,
        timestamp: int = 0,
        stream: str = "",
        partition: int = 0,
        subject: str = "",
        reply: str = "",
        headers: dict[str, bytes] | None = None,
    ) -> None:
        """For tests and tools; messages of a subscription are made by it."""
    @property
    def offset(self) -> int:
        """Position in the partition."""
    @property
    def timestamp(self) -> int:
        """When the partition's leader received it, nanoseconds since 1970."""
    @property
    def key(self) -> bytes | None:
        """None without a key; the wire format has no empty key."""
    @property
    def value(self) -> bytes | None:
        """None for a tombstone, a message that has no value and deletes its key in a compacted stream."""
    @property
    def stream(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def subject(self) -> str:
        """The NATS subject it arrived on."""
    @property
    def reply(self) -> str:
        """The NATS reply subject it arrived with, or empty."""
    @property
    def headers(self) -> dict[str, bytes]:
        """The publisher's headers. The dict is this message's own."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class MessageBatch:
    """Messages that were received together, as columns. It is immutable, and its memory lives as long as it is referenced.

    Value i is `value_bytes[value_offsets[i]:value_offsets[i + 1]]`, likewise key i; these are also the buffers of an Arrow
    `large_binary` array. A tombstone has no bytes there; `value(i)` is None for it. The memoryviews have format `q` (int64) and `B`.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Message]: ...
    def __getitem__(self, index: int) -> Message: ...
    def messages(self) -> list[Message]: ...
    def matching(self, key: bytes | None = None, headers: dict[str, bytes | None] | None = None) -> MessageBatch:
        """The messages that have this key and all these headers; a header's value of None means any. The batch itself if all match."""
    def value(self, index: int) -> bytes | None: ...
    def key(self, index: int) -> bytes | None: ...
    def subject(self, index: int) -> str: ...
    def reply(self, index: int) -> str: ...
    def headers(self, index: int) -> dict[str, bytes]: ...
    def values(self) -> list[bytes | None]: ...
    def keys(self) -> list[bytes | None]: ...
    @property
    def stream(self) -> str:
        """Of the first message: a subscription has one stream and partition."""
    @property
    def partition(self) -> int: ...
    @property
    def first_offset(self) -> int:
        """Of the first message; −1 without messages."""
    @property
    def last_offset(self) -> int:
        """Of the last message; −1 without messages."""
    @property
    def nbytes(self) -> int:
        """Memory in use."""
    @property
    def offsets(self) -> memoryview: ...
    @property
    def timestamps(self) -> memoryview: ...
    @property
    def value_bytes(self) -> memoryview: ...
    @property
    def value_offsets(self) -> memoryview:
        """One more than messages; the first is 0."""
    @property
    def value_ends(self) -> memoryview:
        """`value_offsets` without the 0, as publishers give columns."""
    @property
    def key_bytes(self) -> memoryview: ...
    @property
    def key_offsets(self) -> memoryview: ...
    @property
    def key_ends(self) -> memoryview: ...

def decode_message(data: Buffer) -> Message:
    """A `Message` of the API. ValueError for anything that is not protobuf."""

def decode_batch(messages: Iterable[Buffer]) -> MessageBatch:
    """The same for several messages."""
