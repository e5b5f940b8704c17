"""The offsets that an archive has of a partition, and the files in which they are."""

from __future__ import annotations

from bascule.lake.coverage import Coverage
from bascule.lake.facts import DataFile

FILES: tuple[DataFile, ...] = tuple(
    DataFile(f"data/{first}", "orders", 7, 0, first, first + 9, 10, 100, 0, "2026-11-15") for first in (0, 10, 20)
)
COVERAGE = Coverage(0, 30, FILES, lost=((5, 7),))


def test_offsets_from_its_start_to_its_end_are_there_except_those_that_are_lost() -> None:
    assert [offset for offset in range(-1, 32) if offset in COVERAGE] == [*range(5), *range(7, 30)]


def test_the_files_of_a_range_are_those_that_have_offsets_of_it() -> None:
    for start in range(30):
        for end in range(start + 1, 31):
            wanted = {offset // 10 for offset in range(start, end)}
            assert COVERAGE.files_in(start, end) == tuple(FILES[number] for number in sorted(wanted))
