"""The checkpoint of a log: its state besides the records. Without it, opening the log takes longer, and no data is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Final

from bascule.errors import FormatTooNew
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import Disk, read_file, replace_file

FILE_NAME = "checkpoint"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    recovery_point: int = 0
    """Records below this offset are synced."""

    active_base: int = 0
    active_position: int = 0
    active_records: int = 0
    active_first_timestamp: int = -1
    """The position of the recovery point in its segment, and the totals of the segment up to there."""

    last_timestamp: int = 0
    last_epoch: int = 0
    high_watermark: int = -1
    log_start_offset: int = 0
    cleaned_to: int = 0
    compacted: bool = False
    """Whether compaction has run: gaps between segments are then not damage."""

    front_gap_start: int = -1
    front_gap_end: int = -1
    """The offsets that compaction, not retention, removed from the start of the log; −1 if there are none."""

    cutting: bool = False
    """Whether a truncation had begun and may be incomplete on disk."""


_NAMES: Final = tuple(field.name for field in fields(LogCheckpoint))


def encode(checkpoint: LogCheckpoint) -> bytes:
    values = {name: getattr(checkpoint, name) for name in _NAMES}
    line = json.dumps({"version": VERSION, **values}, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode(data: bytes, path: str) -> LogCheckpoint | None:
    """Return the checkpoint, or None if it is damaged. Raises FormatTooNew for a later version."""
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        return None
    try:
        content = json.loads(line)
        version = content.pop("version")
        if version != VERSION:
            raise FormatTooNew(
                f"{path} has version {version!r}, this Bascule knows {VERSION}",
                hint="open the directory with the version of Bascule that wrote it, or a later one",
            )
        found = LogCheckpoint(**{name: value for name, value in content.items() if name in _NAMES})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if _is_plausible(found) else None


def _is_plausible(checkpoint: LogCheckpoint) -> bool:
    """Return whether every field has its type and a valid range. Epochs use all 64 bits."""
    for field in fields(checkpoint):
        value = getattr(checkpoint, field.name)
        high = 1 << (64 if field.name == "last_epoch" else 63)
        is_of_its_kind = type(value) is type(field.default)
        if not is_of_its_kind or not -1 <= value < high:
            return False
    return True


def read_checkpoint(disk: Disk, directory: str) -> LogCheckpoint | None:
    path = f"{directory}/{FILE_NAME}"
    data = read_file(disk, path)
    return None if data is None else decode(data, path)


def write_checkpoint(disk: Disk, directory: str, checkpoint: LogCheckpoint, *, durable: bool = False) -> None:
    """Replace the checkpoint. Power loss leaves the old one or the new one; with `durable` the new one."""
    replace_file(disk, f"{directory}/{FILE_NAME}", encode(checkpoint), sync=True, durable=durable)
