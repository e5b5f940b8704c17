"""Pages of the documentation, and their blocks of code.

A mark is a comment in the line above a block:

    <!-- not run: reason -->              the block needs something that the tests do not have
    <!-- with a cluster -->               the block runs only where the page is followed with several brokers
    <!-- while the broker is killed -->   the block runs while its broker is killed and started again
    <!-- until stopped -->                the block shows something and goes on; it is interrupted then
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
INDEX: Final = ROOT / "docs" / "README.md"

_BLOCK: Final = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_MARK: Final = re.compile(r"<!-- ([a-z][^>]*?) -->\s*\Z")
_GUIDE: Final = re.compile(r"\]\((guides/[\w-]+\.md)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    marks: frozenset[str]

    @property
    def is_run(self) -> bool:
        return not any(mark.startswith("not run") for mark in self.marks)

    @property
    def is_shell(self) -> bool:
        return self.language in ("bash", "sh")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path, text: str) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(text):
        before, marks = text[: match.start()], set()
        while (mark := _MARK.search(before)) is not None:
            marks.add(mark[1])
            before = before[: mark.start()]
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match[2], dedent(match[3]), frozenset(marks)))
    return found


def blocks_of_page(page: Path) -> list[Block]:
    return blocks_of(page, page.read_text("utf-8"))


def guides() -> list[Path]:
    """The README and the guides, in the order of the documentation's index."""
    return [ROOT / "README.md", *(INDEX.parent / name for name in _GUIDE.findall(INDEX.read_text("utf-8")))]
