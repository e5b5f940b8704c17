"""Makes an archive of the former format a Delta table, in place: the files stay where they are, and a log is added.

Every file is read and compared with its checksum first: an archive that is damaged is not upgraded. The log has two commits, the empty
table and all files. After a crash between them, or before the former description is renamed, the upgrade is run again and continues.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bascule.errors import ArchiveDamaged, CallerError
from bascule.lake.archive import Archive
from bascule.lake.compaction import checked_rows
from bascule.lake.delta.documents import sync_directory, writing
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import ArchiveState, Began, Commit, Covered, DataFile
from bascule.lake.files import fact_range, file_bytes
from bascule.lake.former.manifest import DESCRIPTION, describe_former, read_former

RENAMED: Final = "_bascule/former-archive.json"


def upgrade(path: str | Path) -> ArchiveState:
    """The archive afterwards. Raises CallerError if there is nothing to upgrade, ArchiveDamaged with the reason why it cannot be."""
    place = LakePlace.of(path)
    if place.local is None:
        raise CallerError(f"{place} is in an object store: archives of the former format are in folders")
    folder = place.local
    if not (folder / DESCRIPTION).is_file():
        raise CallerError(f"{folder} is no archive of the former format", hint="nothing has to be upgraded")
    archive = Archive(place)
    with archive.writing():
        described, former = describe_former(folder), read_former(folder)
        if not (folder / "_delta_log").is_dir():
            about = {name: described[name] for name in ("pattern", "subject") if name in described}
            archive.begin_log(list(described["streams"]), **about)
        state = archive.state(upgrading=True)
        if state.number == 0:
            commit = archive.commit(_commit(place, former), state)
            state.apply(commit)
        if set(state.files) != set(former.files):
            raise ArchiveDamaged(
                f"{folder} has a Delta log of other files than its manifest",
                hint="move `_delta_log` away, and run it again",
            )
        with writing(folder, RENAMED):
            (folder / DESCRIPTION).rename(folder / RENAMED)
            sync_directory(folder / "_bascule")
    return state


def _commit(place: LakePlace, former: ArchiveState) -> Commit:
    return Commit(
        1,
        "upgrade",
        time.time_ns(),
        added=tuple(_with_facts(place, one) for one in former.in_order()),
        covered=tuple(Covered(*key, end, end) for key, end in sorted(former.next_offsets.items())),
        lost=tuple(one for _, ranges in sorted(former.lost.items()) for one in ranges),
        began=tuple(Began(*key, offset) for key, offset in sorted(former.began.items())),
    )


def _with_facts(place: LakePlace, one: DataFile) -> DataFile:
    """What a file has to be known by, beside what the manifest says. Raises ArchiveDamaged."""
    first_us, last_us, epoch = fact_range(checked_rows(place, one))
    size, digest = file_bytes(place, one.path)
    if size != one.bytes:
        raise ArchiveDamaged(f"{place}/{one.path} has {size} bytes, its commit says {one.bytes}")
    return replace(one, first_us=first_us, last_us=last_us, epoch=epoch, sha256=digest)
