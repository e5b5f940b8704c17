"""How the last run of a broker ended: cleanly, with its process alone, or with the whole machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.broker.run_marker import FILE_NAME, RunMarker
from bascule.log.disk import PosixDisk


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    path = tmp_path / "boot_id"
    path.write_text("first-boot\n")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


def marker(data: Path, boot: Path) -> RunMarker:
    return RunMarker(PosixDisk(), str(data), boot)


def test_a_new_directory_is_clean(data: Path, boot: Path) -> None:
    found = marker(data, boot)
    assert (found.was_clean, found.was_intact) == (True, True)


def test_a_run_that_ended_well_leaves_no_trace(data: Path, boot: Path) -> None:
    first = marker(data, boot)
    first.write()
    assert (data / FILE_NAME).exists()
    first.remove()
    assert list(data.iterdir()) == []
    boot.write_text("second-boot\n")
    assert marker(data, boot).was_clean


def test_a_crash_of_the_process_alone_is_intact(data: Path, boot: Path) -> None:
    marker(data, boot).write()
    found = marker(data, boot)
    assert (found.was_clean, found.was_intact) == (False, True)
    found.write()  # and crashes again
    assert marker(data, boot).was_intact


def test_a_crash_of_the_machine_is_not(data: Path, boot: Path) -> None:
    marker(data, boot).write()
    boot.write_text("second-boot\n")
    found = marker(data, boot)
    assert (found.was_clean, found.was_intact) == (False, False)
    found.write()
    assert marker(data, boot).was_intact, "the run that was told of it counts by its own boot"


def test_a_machine_that_does_not_tell_its_boot_is_never_believed(data: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nothing"
    marker(data, nowhere).write()
    assert not marker(data, nowhere).was_intact


@pytest.mark.parametrize("content", [b"", b"{}\n", b"first-boot\n00000000\n", b"\xff\xfe", b"[]\n5a5a5a5a\n"])
def test_a_file_that_cannot_be_read_is_a_crash(data: Path, boot: Path, content: bytes) -> None:
    (data / FILE_NAME).write_bytes(content)
    found = marker(data, boot)
    assert (found.was_clean, found.was_intact) == (False, False)


@pytest.mark.parametrize("document", [b"[]", b"{}", b'{"boot_id":7}', b"null"])
def test_a_file_of_another_shape_is_a_crash(data: Path, boot: Path, document: bytes) -> None:
    from bascule.kernels.records import crc32c

    (data / FILE_NAME).write_bytes(b"%s\n%08x\n" % (document, crc32c(document)))
    assert not marker(data, boot).was_intact


def test_every_bit_counts(data: Path, boot: Path) -> None:
    marker(data, boot).write()
    whole = (data / FILE_NAME).read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (data / FILE_NAME).write_bytes(damaged)
        assert not marker(data, boot).was_intact, place


def test_the_file_of_another_run_is_not_removed(data: Path, boot: Path) -> None:
    first = marker(data, boot)
    first.write()
    second = marker(data, boot)
    second.write()
    first.remove()
    assert not marker(data, boot).was_clean
    second.remove()
    assert marker(data, boot).was_clean


def test_whoever_never_ran_removes_nothing(data: Path, boot: Path) -> None:
    marker(data, boot).write()
    marker(data, boot).remove()
    assert not marker(data, boot).was_clean
