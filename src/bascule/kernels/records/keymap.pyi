"""The newest offset of every key in a fixed amount of memory, and the filter of batches that compaction uses."""

from typing import final

from typing_extensions import Buffer

def siphash128(data: Buffer, secret: bytes) -> bytes:
    """SipHash-2-4 with 128 bits and a 16-byte secret, by which the map identifies a key; public for tests."""

@final
class KeyMap:
    """Open-addressing map from a 128-bit keyed hash (SipHash-2-4) of a key to an offset.

    24 bytes per slot, never resized, at most three quarters full. The secret makes collisions unpredictable for publishers.
    """

    def __init__(self, bytes_max: int, secret: bytes) -> None: ...
    @property
    def capacity(self) -> int:
        """The maximum number of keys."""
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def put(self, key: Buffer, offset: int) -> bool:
        """Store the offset if it is higher than the known one; False if the map is full and the key is new."""
    def get(self, key: Buffer) -> int:
        """Return the stored offset, −1 for an unknown key."""
    def learn(self, data: Buffer, end_offset: int, start: int = 0, first_offset: int = 0) -> Learned:
        """Store the keys of [first_offset, end_offset) in the whole batches of `data`; stops at a sealed or incomplete batch."""

@final
class Learned:
    @property
    def stop(self) -> int:
        """The position after the last batch."""
    @property
    def next_offset(self) -> int:
        """All keys below this offset are in the map; −1 if no batch was read."""
    @property
    def full(self) -> bool:
        """The map is full; the batch at `stop` was read up to `next_offset`."""
    @property
    def reason(self) -> str | None:
        """Why it stopped before its limits: "sealed", or one of `records.REASONS`."""

@final
class Sifted:
    @property
    def stop(self) -> int:
        """The position after the last batch."""
    @property
    def kept(self) -> int: ...
    @property
    def removed(self) -> int: ...
    @property
    def gap(self) -> bool:
        """Whether the batches after `stop` follow a gap."""
    @property
    def first_held(self) -> int:
        """The offset of the first superseded record that was kept because of its age; OFFSET_MAX if there is none."""
    @property
    def oldest_tombstone(self) -> int:
        """The timestamp of the oldest tombstone below `end_offset` that was kept because of its age; OFFSET_MAX if there is none."""
    @property
    def reason(self) -> str | None:
        """Why it stopped before the end of the bytes: "sealed", or one of `records.REASONS`."""

def sift(
    keys: KeyMap,
    data: Buffer,
    out: bytearray,
    *,
    end_offset: int,
    keep_since: int,
    tombstones_before: int,
    gap: bool,
    start: int = 0,
) -> Sifted:
    """Append the records that compaction keeps to `out`, from the whole, checked, plain batches in `data`.

    A record is removed if it has a key, is below `end_offset`, is older than `keep_since`, and either a higher offset is known for
    its key or it is a tombstone older than `tombstones_before`. A batch that loses no record is copied unchanged; a batch that loses
    all records leaves a gap, and `gap` marks the batch after it. Stops before a sealed or incomplete batch.
    """
