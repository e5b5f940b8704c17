"""What Java says of a full disk becomes an error that names the folder, if it is the one we know of."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.errors import BasculeError, DataLost, DiskFull, PipelineFailed
from bascule.spark.errors.full_disk import with_folder
from tests.support.small_disk import NotPermitted, SmallDisk

SAID = "Query [id = 7] terminated with exception: java.io.IOException: No space left on device"


@pytest.mark.parametrize("error", [PipelineFailed("a task failed"), DataLost("No space left on device")])
def test_other_errors_are_left_alone(tmp_path: Path, error: BasculeError) -> None:
    assert with_folder(error, tmp_path) is error


def test_a_disk_that_has_room_is_not_blamed(tmp_path: Path) -> None:
    found = with_folder(PipelineFailed(SAID), tmp_path / "made/later")
    assert (type(found), found.message) == (
        DiskFull,
        "no room on a disk that the query writes to: No space left on device",
    )


def test_the_folder_of_sparks_notes_is_named_when_its_disk_is_full(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path / "small", 2 << 20)
    except (NotPermitted, OSError) as error:
        pytest.skip(f"mounting a file system is not permitted here: {error}")
    try:
        disk.fill()
        found = with_folder(PipelineFailed(SAID), disk.path / "checkpoint")
        assert (
            found.message
            == f"no room in {disk.path}/checkpoint for the checkpoint of the query: No space left on device"
        )
    finally:
        disk.close()
