"""Record batches: check, scan, search, decode, rewrite. The format is drawn on top of `records.pyx`."""

from typing import Final, final

from typing_extensions import Buffer

HEADER_BYTES: Final[int]
MAGIC: Final[int]
VERSION: Final[int]
CODEC_MASK: Final[int]
CODEC_NONE: Final[int]
CODEC_ZSTD: Final[int]
ENCRYPTED: Final[int]
FOLLOWS_GAP: Final[int]
PRODUCERS: Final[int]
OFFSET_MAX: Final[int]

REASONS: Final[tuple[str, ...]]
"""Why bytes are not a good batch, in the order the checks are made:

`incomplete` the buffer ends inside the batch · `bad length` · `bad magic` · `future version` · `bad attributes` ·
`bad checksum` · `bad offsets` (does not continue) · `bad timestamps` (goes backwards) · `bad epoch` (goes backwards) ·
`bad records` (the body does not parse).
"""

class BatchError(ValueError):
    """Bytes that are not a good batch. `reason` is one of `REASONS`; `position` is where the batch begins."""

    reason: str
    position: int
    def __init__(self, reason: str, position: int) -> None: ...

@final
class Record:
    """One record as a Python object, for the few callers that want them."""

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
    """The 56 bytes in front of a batch, as numbers."""

    @property
    def crc(self) -> int: ...
    @property
    def length(self) -> int: ...
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
        """Compressed or encrypted: the body must be opened before records can be read."""

@final
class Scan:
    """What a run over consecutive batches found."""

    @property
    def end(self) -> int:
        """Position behind the last good batch."""
    @property
    def next_offset(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def first_timestamp(self) -> int:
        """Of the first batch seen, −1 when there was none."""
    @property
    def last_timestamp(self) -> int: ...
    @property
    def last_epoch(self) -> int: ...
    @property
    def reason(self) -> str | None:
        """Why the run stopped in front of the end of the bytes; None when it did not."""

@final
class Selection:
    """A run of whole, checked batches inside a buffer."""

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """Offset behind the last batch selected; the one asked for when nothing was."""
    @property
    def reason(self) -> str | None:
        """Why the run stopped at `stop` other than by its limits."""

def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, its length, magic, version and attributes checked; the checksum is not."""

def check(data: Buffer, position: int = 0) -> int:
    """Check one batch wholly (checksum and, unless it is sealed, every record); returns its length."""

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
    """Walk over batches from `start` to the end of `data` and stop at the first that is not good.

    `gap` lets the very first batch begin behind `next_offset`. `marks` receives (offset, position, first_timestamp) of a batch
    for at least every `interval` bytes, the first batch included, with `position` added. `epochs` receives (epoch, base_offset)
    whenever the epoch rises above `last_epoch`.
    """

def find_offset(data: Buffer, offset: int, start: int = 0) -> int:
    """Position of the first batch that ends at or behind `offset`; −1 when the bytes end before. Hops over headers only."""

def find_timestamp(data: Buffer, timestamp: int, start: int = 0) -> int:
    """Position of the first batch that holds records and whose max_timestamp is at or behind `timestamp`; −1 when none."""

def select(data: Buffer, offset: int, end_offset: int, bytes_max: int, start: int = 0) -> Selection:
    """The checked batches from the one that holds `offset` on, below `end_offset`; at least one, then up to `bytes_max` bytes.

    Stops in front of a batch that begins at or behind `end_offset`, is incomplete, fails its check or does not continue the one before.
    """

def resync(data: Buffer, start: int, offset: int) -> int:
    """Position of the next good batch at or behind `start` with a base offset at or behind `offset`; −1 when there is none."""

def decode(data: Buffer, first_offset: int = 0, end_offset: int = ..., start: int = 0, stop: int = -1) -> list[Record]:
    """Records of all batches in `data[start:stop]` whose offsets lie in [first_offset, end_offset). Bodies must be in the clear."""

def offset_at(data: Buffer, timestamp: int, position: int = 0) -> int:
    """Offset of the first record of this batch with a time at or behind `timestamp`; −1 when there is none."""

def edges(data: Buffer, position: int = 0) -> tuple[int, int]:
    """Offsets of the first and last record stored in this batch; (−1, −1) when it holds none."""

def with_body(batch: Buffer, body: Buffer, attributes: int) -> bytes:
    """The batch with another body and other codec/encryption bits: how batches are sealed and opened. Checksum and length follow."""

def trim(batch: Buffer, end_offset: int) -> bytes:
    """The batch without its records at or behind `end_offset`; it ends right before that offset."""
