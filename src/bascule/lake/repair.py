"""Writes lost and damaged files of an archive again, from the log, as far as it still has their messages.

A file is restored only if the rows of the log have the checksum that its commit says: a repaired archive is the one that was
written. Each file is one commit, which removes the damaged one and adds the new one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bascule.errors import ArchiveDamaged, BasculeError
from bascule.lake.archive import Archive
from bascule.lake.compaction import checked_rows
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import ArchiveState, Commit, DataFile
from bascule.lake.files import WriteTask, file_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.arrow.reader import FlightConnection


@dataclass(slots=True)
class RepairReport:
    checked: int = 0
    repaired: list[str] = field(default_factory=list)
    """Paths of the files that were written again."""
    failed: list[str] = field(default_factory=list)
    """Why a file could not be."""


def repair_files(archive: Archive, tables: FlightConnection) -> RepairReport:
    """Holds the archive's lock. Raises ArchiveDamaged if the table's log itself is damaged: then nothing is changed."""
    report = RepairReport()
    with archive.writing():
        state = archive.state()
        archive.must_be_as(state)
        for one in state.in_order():
            report.checked += 1
            why = damage(archive.place, one)
            if why is not None:
                _repair(archive, state, one, why, tables, report)
    return report


def damage(place: LakePlace, one: DataFile) -> str | None:
    """What is wrong with a file; None if it is what was written."""
    try:
        size, digest = file_bytes(place, one.path)
        if size == one.bytes and digest == one.sha256:
            return None
        for _ in checked_rows(place, one):
            continue
    except FileNotFoundError:
        return "it is gone"
    except (OSError, ArchiveDamaged):
        return "it cannot be read, or its rows are not those that were written"
    return "its bytes are not those that were written"


def _repair(
    archive: Archive, state: ArchiveState, one: DataFile, why: str, tables: FlightConnection, report: RepairReport
) -> None:
    try:
        new = _written(archive.place, one, tables)
        commit = archive.commit(
            Commit(state.number + 1, "repair", time.time_ns(), added=(new,), removed=(one.path,)), state
        )
    except BasculeError as error:
        report.failed.append(
            f"{one.path}, offsets {one.first_offset} to {one.last_offset} of {one.stream}/{one.partition}: {why}; {error.message}"
        )
        return
    state.apply(commit)
    archive.place.remove(one.path)
    report.repaired.append(one.path)


def _written(place: LakePlace, one: DataFile, tables: FlightConnection) -> DataFile:
    """The file anew, from the log. Raises if the log does not have all its messages as they were."""
    floor = {(one.stream, one.partition): one.first_offset}
    files = list(WriteTask(place, floor, file_bytes=1 << 62).write(_logged(one, tables)))
    if len(files) == 1 and (files[0].rows, files[0].crc32c, files[0].date) == (one.rows, one.crc32c, one.date):
        return replace(files[0], stream_id=one.stream_id)
    for file in files:
        place.remove(file.path)
    found = sum(file.rows for file in files)
    raise ArchiveDamaged(f"the log has {found} of its {one.rows} messages, or other ones")


def _logged(one: DataFile, tables: FlightConnection) -> Iterator[pa.RecordBatch]:
    return tables.read(one.stream, one.partition, one.first_offset, one.last_offset + 1, stream_id=one.stream_id)
