"""A server's name: chosen once, kept with the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.errors import FormatTooNew, InvalidConfig, StorageError
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import PosixDisk
from bascule.metadata.identity import FILE_NAME, server_id

DISK = PosixDisk()


def test_a_generated_id_is_kept(tmp_path: Path) -> None:
    first = server_id(DISK, str(tmp_path))
    assert len(first) == 22
    assert first.isalnum()
    assert server_id(DISK, str(tmp_path)) == first
    assert server_id(DISK, str(tmp_path / "other")) != first


def test_a_configured_id_is_kept_and_what_is_stored_wins(tmp_path: Path) -> None:
    assert server_id(DISK, str(tmp_path), "alpha") == "alpha"
    assert server_id(DISK, str(tmp_path), "beta") == "alpha"
    assert server_id(DISK, str(tmp_path)) == "alpha"


@pytest.mark.parametrize("name", ["a b", "a.b", "a*", "a>", "a\n"])
def test_an_id_that_cannot_be_part_of_a_subject_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match=r"clustering\.server\.id"):
        server_id(DISK, str(tmp_path), name)
    assert not (tmp_path / FILE_NAME).exists()


def test_any_damaged_byte_stops_the_start_and_changes_nothing(tmp_path: Path) -> None:
    server_id(DISK, str(tmp_path), "alpha")
    path = tmp_path / FILE_NAME
    good = path.read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x04
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match="damaged"):
            server_id(DISK, str(tmp_path), "beta")
        assert path.read_bytes() == damaged
    path.write_bytes(b"")
    with pytest.raises(StorageError):
        server_id(DISK, str(tmp_path))


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    line = b'{"version":2,"server_id":"alpha"}'
    (tmp_path / FILE_NAME).write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    with pytest.raises(FormatTooNew, match="version 2"):
        server_id(DISK, str(tmp_path))
