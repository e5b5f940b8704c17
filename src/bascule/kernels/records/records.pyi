"""Record batches: check, scan, search, decode, rewrite. `records.pyx` shows the format."""

from typing import Final, final

from typing_extensions import Buffer

HEADER_BYTES: Final[int]
MAGIC: Final[int]
VERSION: Final[int]
"""The newest format version, that of encrypted batches: their associated data names the stream and the partition."""
VERSION_PLAIN: Final[int]
"""The version of all other batches, and of encrypted ones that were written before version 2."""
CODEC_MASK: Final[int]
CODEC_NONE: Final[int]
CODEC_ZSTD: Final[int]
ENCRYPTED: Final[int]
FOLLOWS_GAP: Final[int]
PRODUCERS: Final[int]
OFFSET_MAX: Final[int]

REASONS: Final[tuple[str, ...]]
"""Why bytes are not a valid batch, in the order of the checks:

`incomplete` the buffer ends inside the batch · `bad length` · `bad magic` · `future version` · `bad attributes` ·
`bad checksum` · `bad offsets` (does not continue) · `bad timestamps` (goes backwards) · `bad epoch` (goes backwards) ·
`bad records` (the body does not parse).
"""

class BatchError(ValueError):
    """The bytes are not a valid batch. `reason` is one of `REASONS`; `position` is that of the batch."""

    reason: str
    position: int
    def __init__(self, reason: str, position: int) -> None: ...

@final
class Record:
    """One record as a Python object."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]: ...
    @property
    def subject(self) -> bytes: ...
    @property
    def reply(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class BatchHeader:
    """The 56 bytes at the start of a batch, as numbers."""

    @property
    def crc(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def is_sealed(self) -> bool:
        """Whether the body is compressed or encrypted, and must be opened before records can be read."""

@final
class Scan:
    """The result of a scan over consecutive batches."""

    @property
    def end(self) -> int:
        """The position after the last good batch."""
    @property
    def next_offset(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def first_timestamp(self) -> int:
        """That of the first batch, −1 if there is none."""
    @property
    def last_timestamp(self) -> int: ...
    @property
    def last_epoch(self) -> int: ...
    @property
    def reason(self) -> str | None:
        """Why the scan stopped before the end of the bytes; None if it did not."""

@final
class Selection:
    """Consecutive whole, checked batches in a buffer."""

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """The offset after the last selected batch; the requested one if there is none."""
    @property
    def reason(self) -> str | None:
        """Why the selection stopped at `stop` before its limits."""

def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`. Checks length, magic, version and attributes, not the checksum."""

def check(data: Buffer, position: int = 0) -> int:
    """Check one batch: its checksum and, unless it is sealed, all records. Returns its length."""

def scan(
    data: Buffer,
    next_offset: int,
    last_timestamp: int = 0,
    last_epoch: int = 0,
    start: int = 0,
    *,
    gap: bool = False,
    checksums: bool = True,
    structure: bool = False,
    position: int = 0,
    interval: int = 0,
    marks: list[tuple[int, int, int]] | None = None,
    epochs: list[tuple[int, int]] | None = None,
) -> Scan:
    """Scan batches from `start` to the end of `data`, and stop at the first bad one.

    `gap` allows the first batch to begin after `next_offset`. `marks` receives (offset, position, first_timestamp) of a batch
    for at least every `interval` bytes, the first batch included, with `position` added. `epochs` receives (epoch, base_offset)
    whenever the epoch rises above `last_epoch`.
    """

def find_offset(data: Buffer, offset: int, start: int = 0) -> int:
    """Return the position of the first batch that ends at or after `offset`; −1 if there is none. Reads headers only."""

def find_timestamp(data: Buffer, timestamp: int, start: int = 0) -> int:
    """Return the position of the first batch with records whose max_timestamp is at or after `timestamp`; −1 if there is none."""

def select(data: Buffer, offset: int, end_offset: int, bytes_max: int, start: int = 0) -> Selection:
    """Select the batches from the one that holds `offset`, below `end_offset`; at least one, then up to `bytes_max` bytes.

    Stops before a batch that begins at or after `end_offset`, is incomplete, fails its check or does not continue the one before.
    """

def resync(data: Buffer, start: int, offset: int) -> int:
    """Return the position of the next good batch from `start` with a base offset at or after `offset`; −1 if there is none."""

def decode(data: Buffer, first_offset: int = 0, end_offset: int = ..., start: int = 0, stop: int = -1) -> list[Record]:
    """Return the records in [first_offset, end_offset) of all batches in `data[start:stop]`, which must not be sealed."""

def offset_at(data: Buffer, timestamp: int, position: int = 0) -> int:
    """Return the offset of the first record of this batch at or after `timestamp`; −1 if there is none."""

def with_body(batch: Buffer, body: Buffer, attributes: int) -> bytes:
    """Return the batch with another body and other codec and encryption bits, and with a new length and checksum."""

def trim(batch: Buffer, end_offset: int) -> bytes:
    """Return the batch without its records at or after `end_offset`; it ends right before that offset."""
