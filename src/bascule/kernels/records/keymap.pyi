"""The newest offset of every key, in a fixed amount of memory, and the sieve that compaction pours batches through."""

from typing import final

from typing_extensions import Buffer

def siphash128(data: Buffer, secret: bytes) -> bytes:
    """SipHash-2-4 with 128 bits of output under a 16-byte secret: what the map knows a key by."""

@final
class KeyMap:
    """Open-addressing map from a 128-bit keyed hash (SipHash-2-4) of a key to an offset.

    24 bytes a slot, never resized, never more than three quarters full. The secret makes collisions unpredictable to publishers.
    """

    def __init__(self, bytes_max: int, secret: bytes) -> None: ...
    @property
    def capacity(self) -> int:
        """How many keys it takes."""
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def put(self, key: Buffer, offset: int) -> bool:
        """Remember the higher of the known and the given offset; False when the map is full and the key new."""
    def get(self, key: Buffer) -> int:
        """The remembered offset, −1 for an unknown key."""
    def learn(self, data: Buffer, end_offset: int, start: int = 0, first_offset: int = 0) -> Learned:
        """Put every keyed record of [first_offset, end_offset) in the whole batches of `data`; stops at a sealed or incomplete one."""

@final
class Learned:
    @property
    def stop(self) -> int:
        """Position behind the last batch learned."""
    @property
    def next_offset(self) -> int:
        """Everything below is in the map; −1 when no batch was looked at."""
    @property
    def full(self) -> bool:
        """A new key did not fit; the batch at `stop` was taken in up to `next_offset`."""
    @property
    def reason(self) -> str | None:
        """Why it stopped other than by its limits: "sealed", or one of `records.REASONS`."""

@final
class Sifted:
    @property
    def stop(self) -> int:
        """Position behind the last batch taken in."""
    @property
    def kept(self) -> int: ...
    @property
    def removed(self) -> int: ...
    @property
    def gap(self) -> bool:
        """The batches behind `stop` would follow a hole."""
    @property
    def first_held(self) -> int:
        """Offset of the first record that is superseded but was kept because it is too young; OFFSET_MAX when there is none."""
    @property
    def oldest_tombstone(self) -> int:
        """Timestamp of the oldest tombstone below `end_offset` that was kept for its time; OFFSET_MAX when there is none."""
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
    """Append to `out` what compaction keeps of the whole, checked, clear batches in `data`.

    A record goes when it has a key, lies below `end_offset`, is older than `keep_since`, and either a higher offset is known for its
    key or it is a tombstone older than `tombstones_before`. A batch that loses nothing is copied as it is; a batch that loses
    everything leaves a hole, and `gap` marks the batch behind it. Stops in front of a sealed or incomplete batch.
    """
