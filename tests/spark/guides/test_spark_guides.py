"""The README and the guides that need Spark, as tests/guides follows the others. All of them share one Java and do not notice it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.distribution import installed
from tests.support.guides.machine import Machine
from tests.support.guides.pages import guides
from tests.support.guides.reader import Reader, needs_spark
from tests.support.small_disk import NotPermitted

SHOWN = {
    "README": ("b'lamp'", "|count|"),
    "spark": ("12.50",),
    "pipelines": ("is ready to run", "equal: "),
    "archiving": ("equal: ",),
    "replaying": ("messages of /lake/orders to orders-again",),
}
"""Some of what the pages show."""


@pytest.fixture
def machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """`shared_classes` has set the options of Java."""
    options = {name: os.environ[name] for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")}
    archives = re.findall(r"SharedArchiveFile=(\S+)", options["SPARK_SUBMIT_OPTS"])
    folders = [Path(archive).parent for archive in archives]
    try:
        with Machine(tmp_path, installed(tmp_path_factory), folders=folders, environ=options) as found:
            yield found
    except NotPermitted as error:
        pytest.skip(f"no namespaces on this machine: {error}")


def test_the_guides_to_spark_run_in_their_order(machine: Machine) -> None:
    reader = Reader(machine)
    for page in guides():
        if needs_spark(page):
            shown = reader.follow(page)
            print(f"── {page.name}\n{shown}")
            assert [words for words in SHOWN.get(page.stem, ()) if words not in shown] == [], page
    assert {*SHOWN} <= {*reader.followed}
