"""Shared by the tests of the partition log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.log.log_helpers import Logs


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    opened = Logs(tmp_path)
    yield opened
    opened.close()
