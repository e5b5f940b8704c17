"""The guides, from top to bottom, in the order of the documentation, in one cluster, as they are written, with the installed wheel.

Those that need Spark are in tests/spark/guides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.distribution import installed
from tests.support.guides.machine import Machine
from tests.support.guides.pages import blocks_of_page, guides
from tests.support.guides.reader import Reader, needs_spark
from tests.support.small_disk import NotPermitted


@pytest.fixture
def machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    try:
        with Machine(tmp_path, installed(tmp_path_factory)) as found:
            yield found
    except NotPermitted as error:
        pytest.skip(f"no namespaces on this machine: {error}")


SHOWN = {
    "quickstart": ("stored at offset 0", "b'chair'"),
    "client": ("paused: [2]",),
    "command-line": ("Created stream `parcels`", "Published 1,000 messages", "All checks passed"),
    "exactly-once-publishing": ("three invoices, and this one at 3",),
    "consumer-groups": ("100 jobs done", "from offset 20 of another partition: 20", "mine now: jobs/0"),
    "tables": ("1000 rows,", "1000 rows in the file"),
    "monitoring": ("ready",),
    "encryption": ("value=4111-1111",),
    "auditing": ("Whole: ",),
    "operating-a-cluster": ("`broker-3` is removed from the cluster",),
}
"""Some of what the pages show."""


def follow(reader: Reader, page: Path) -> None:
    shown = reader.follow(page)
    print(f"── {page.name}\n{shown}")
    if shown:
        assert [words for words in SHOWN.get(page.stem, ()) if words not in shown] == [], page


def test_the_guides_run_in_their_order(machine: Machine) -> None:
    reader = Reader(machine)
    for page in guides():
        if not needs_spark(page):
            follow(reader, page)
    assert {*SHOWN} - {"operating-a-cluster"} <= {*reader.followed}


CLUSTERED = (
    "quickstart",
    "client",
    "command-line",
    "publishing-over-nats",
    "exactly-once-publishing",
    "consumer-groups",
    "tables",
    "operating-a-cluster",
    "monitoring",
    "configuring",
)
"""Guides whose commands start no server of their own."""


def test_with_three_brokers_they_run_too(machine: Machine) -> None:
    reader = Reader(machine, has_cluster=True)
    reader.start_cluster()
    for page in guides():
        if page.stem == "operating-a-cluster":
            reader.start_another_server()
        if page.stem in CLUSTERED:
            follow(reader, page)
    assert reader.followed == [page.stem for page in guides() if page.stem in CLUSTERED]


def test_most_blocks_run() -> None:
    """What a mark leaves out has its reason in the mark."""
    blocks = [
        block for page in guides() for block in blocks_of_page(page) if block.is_shell or block.language == "python"
    ]
    left_out = [block for block in blocks if not block.is_run]
    assert len(left_out) < len(blocks) / 4
    assert [str(block) for block in left_out if not any(mark.startswith("not run: ") for mark in block.marks)] == []
