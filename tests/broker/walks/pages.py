"""The tables of docs/internals/walks.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import bascule

SOURCE: Final = Path(bascule.__file__).parent
PAGE: Final = SOURCE.parents[1] / "docs" / "internals" / "walks.md"


def files_of(section: str) -> set[str]:
    """The files that a section of the page lists in its table."""
    text = PAGE.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([a-z0-9_/]+\.py)` \|", text, re.MULTILINE))
