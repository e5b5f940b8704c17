"""The folder of an archive as a process sees it: what was read of its commits is kept, because Spark reuses its Python workers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from bascule.errors import ArchiveDamaged
from bascule.lake.coverage import Follower
from bascule.lake.manifest import Archive, DataFile

_followed: dict[tuple[int, str], Follower] = {}


def follow(path: str) -> Follower:
    """The archive as this process has seen it last."""
    key = os.getpid(), path
    return _followed.setdefault(key, Follower(Archive(path)))


def look_again(follower: Follower, error: OSError, one: DataFile | None = None) -> None:
    """After a file was not found: a later commit has its successor. Raises when there is none, or when it is another failure."""
    before = follower.version
    if error.errno in (errno.ENOENT, errno.ESTALE):
        follower.look()
        if follower.version != before:
            return
    raise damaged(follower.archive.path, one, error.strerror or str(error)) from None


def damaged(path: Path, one: DataFile | None, why: str) -> ArchiveDamaged:
    """The error for a file that is not what was written."""
    named = "a file"
    if one is not None:
        named = (
            f"{one.path}, which has offsets {one.first_offset} to {one.last_offset} of `{one.stream}`/{one.partition},"
        )
    return ArchiveDamaged(
        f"{named} of the archive {path} cannot be read: {why}",
        hint="`bascule pipeline verify` tells what is wrong; without `history` what the log has is read from there",
    )
