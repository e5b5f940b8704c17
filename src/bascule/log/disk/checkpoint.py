"""What a log remembers across restarts besides its records. Losing it costs time, never data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from bascule.errors import FormatTooNew
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import Disk, read_file, replace_file

FILE_NAME = "checkpoint"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    recovery_point: int = 0
    """Every byte of offsets below it is known to be on the platter."""

    active_base: int = 0
    active_position: int = 0
    active_records: int = 0
    active_first_timestamp: int = -1
    """Where the recovery point lies, and what its segment holds up to there."""

    last_timestamp: int = 0
    last_epoch: int = 0
    high_watermark: int = -1
    log_start_offset: int = 0
    cleaned_to: int = 0
    compacted: bool = False
    """Whether compaction ever ran: holes between segments are then no damage."""

    front_gap_start: int = -1
    front_gap_end: int = -1
    """What compaction, not retention, took from the front of the log, if the log still begins at its end; −1 for nothing."""

    cutting: bool = False
    """Whether a truncation was under way: what is gone may be gone from memory only."""


def encode(checkpoint: LogCheckpoint) -> bytes:
    line = json.dumps({"version": VERSION, **asdict(checkpoint)}, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode(data: bytes, path: str) -> LogCheckpoint | None:
    """None for anything damaged. Raises FormatTooNew for an intact checkpoint of a later version."""
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
        known = {field.name for field in fields(LogCheckpoint)}
        found = LogCheckpoint(**{name: value for name, value in content.items() if name in known})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if _is_plausible(found) else None


def _is_plausible(checkpoint: LogCheckpoint) -> bool:
    """Whether every field is of its kind and in the range that batches can have. Epochs use all 64 bits."""
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
    """Power loss leaves this one or the one before it; with `durable` it is this one."""
    replace_file(disk, f"{directory}/{FILE_NAME}", encode(checkpoint), sync=True, durable=durable)
