"""How the last run of a broker ended: cleanly, with its process alone, with the whole machine, or with other data than is here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bascule.broker.ending import Closing
from bascule.errors import DiskFull
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import PosixDisk
from bascule.metadata.run_marker import FILE_NAME, Ending, RunMarker


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


def test_a_new_server_never_ran(data: Path, boot: Path) -> None:
    assert marker(data, boot).ending(0) is Ending.NEVER_RAN


def test_a_run_that_ended_well_is_clean_also_after_a_reboot(data: Path, boot: Path) -> None:
    first = marker(data, boot)
    first.write_running(7)
    first.write_stopped()
    boot.write_text("second-boot\n")
    assert marker(data, boot).ending(7) is Ending.CLEAN


def test_a_crash_of_the_process_alone_is_intact(data: Path, boot: Path) -> None:
    marker(data, boot).write_running(7)
    found = marker(data, boot)
    assert found.ending(7) is Ending.PROCESS_DIED
    found.write_running(8)  # and crashes again
    assert marker(data, boot).ending(8) is Ending.PROCESS_DIED


def test_a_crash_of_the_machine_is_not(data: Path, boot: Path) -> None:
    marker(data, boot).write_running(7)
    boot.write_text("second-boot\n")
    found = marker(data, boot)
    assert found.ending(7) is Ending.MACHINE_DIED
    found.write_running(8)
    assert marker(data, boot).ending(8) is Ending.PROCESS_DIED, "the run that was told of it counts by its own boot"


@pytest.mark.parametrize("stops", [True, False])
def test_a_directory_that_does_not_know_the_last_run_is_another_one(data: Path, boot: Path, stops: bool) -> None:
    first = marker(data, boot)
    first.write_running(7)
    if stops:
        first.write_stopped()
    assert marker(data, boot).ending(9) is Ending.OTHER_DATA, "an older copy"
    assert marker(data, boot).ending(0) is Ending.OTHER_DATA, "of another cluster"
    (data / FILE_NAME).unlink()
    assert marker(data, boot).ending(7) is Ending.OTHER_DATA, "emptied"


def test_only_what_nothing_can_be_missing_of_is_intact() -> None:
    assert {ending for ending in Ending if not ending.is_intact} == {Ending.MACHINE_DIED, Ending.OTHER_DATA}


def test_a_machine_that_does_not_tell_its_boot_is_never_believed(data: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nothing"
    marker(data, nowhere).write_running(7)
    assert marker(data, nowhere).ending(7) is Ending.MACHINE_DIED


@pytest.mark.parametrize("content", [b"", b"{}\n", b"first-boot\n00000000\n", b"\xff\xfe", b"[]\n5a5a5a5a\n"])
def test_a_file_that_cannot_be_read_is_not_believed(data: Path, boot: Path, content: bytes) -> None:
    (data / FILE_NAME).write_bytes(content)
    assert marker(data, boot).ending(0) is Ending.OTHER_DATA


@pytest.mark.parametrize(
    "document",
    [
        b"[]",
        b"{}",
        b'{"boot_id":7}',
        b"null",
        b'{"boot_id":"first-boot","server_epoch":"0","state":"stopped"}',
        b'{"boot_id":"first-boot","server_epoch":0,"state":"asleep"}',
    ],
)
def test_a_file_of_another_shape_is_not_believed(data: Path, boot: Path, document: bytes) -> None:
    (data / FILE_NAME).write_bytes(b"%s\n%08x\n" % (document, crc32c(document)))
    assert marker(data, boot).ending(0) is Ending.OTHER_DATA


def test_every_bit_counts(data: Path, boot: Path) -> None:
    marker(data, boot).write_running(7)
    whole = (data / FILE_NAME).read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (data / FILE_NAME).write_bytes(damaged)
        assert marker(data, boot).ending(7) is Ending.OTHER_DATA, place


def test_the_file_of_another_run_stays_as_it_is(data: Path, boot: Path) -> None:
    first = marker(data, boot)
    first.write_running(7)
    second = marker(data, boot)
    second.write_running(8)
    first.write_stopped()
    assert marker(data, boot).ending(8) is Ending.PROCESS_DIED
    second.write_stopped()
    assert marker(data, boot).ending(8) is Ending.CLEAN


def test_whoever_never_ran_says_nothing(data: Path, boot: Path) -> None:
    marker(data, boot).write_running(7)
    marker(data, boot).write_stopped()
    assert marker(data, boot).ending(7) is Ending.PROCESS_DIED


def test_a_disk_without_room_for_the_file_does_not_hide_why_a_server_stops(
    data: Path, boot: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full() -> None:
        raise DiskFull("there is no room")

    run = marker(data, boot)
    monkeypatch.setattr(run, "write_stopped", full)
    closing = Closing()
    closing.when_clean(run.write_stopped)
    asyncio.run(closing.run())
    assert "while stopping: there is no room" in caplog.text
