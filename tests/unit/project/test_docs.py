"""Documentation that is run: Python blocks, `bascule` commands and links of every page do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.quick_programs import bascule_command

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SKIP = "<!-- not run -->"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path, text: str) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(text):
        before = text[: match.start()].rstrip()
        if not before.endswith(SKIP):
            found.append(Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2]))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page, page.read_text("utf-8"))]
PYTHON = [block for block in BLOCKS if block.language == "python"]
SHELL = [
    block for block in BLOCKS if block.language in ("bash", "sh") and re.search(r"^bascule ", block.code, re.MULTILINE)
]


def run(command: list[str], directory: Path, code: str) -> None:
    """Run code in an empty directory, with a `bascule` on the path that is the one under test."""
    tools = directory / "bin"
    work = directory / "work"
    tools.mkdir()
    work.mkdir()
    bascule_command(tools)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BASCULE_", "LIFTBRIDGE_"))}
    environ["PATH"] = f"{tools}:{Path(sys.executable).parent}:{environ.get('PATH', '')}"
    environ["PYTHONPATH"] = str(ROOT / "src")
    result = subprocess.run(
        command, input=code, cwd=work, env=environ, capture_output=True, text=True, timeout=400, check=False
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_a_python_block_runs(block: Block, tmp_path: Path) -> None:
    run([sys.executable, "-W", "error", "-"], tmp_path, block.code)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_block_of_bascule_commands_runs(block: Block, tmp_path: Path) -> None:
    run(["bash", "-euo", "pipefail"], tmp_path, block.code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text("utf-8"))
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name} links to {target}"
        if fragment:
            assert fragment in anchors(path), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """Headings as GitHub turns them into fragments."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reachable_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target in _LINK.findall(index.read_text("utf-8"))}
    assert {page for page in PAGES if (ROOT / "docs") in page.parents} - linked == {index}


def test_blocks_are_found_and_marked_ones_skipped() -> None:
    text = f"a\n\n```python\nx\n```\n\n{SKIP}\n```python\ny\n```\n"
    assert [(block.line, block.code) for block in blocks_of(Path("p"), text)] == [(3, "x\n")]
    assert PYTHON
    assert SHELL


_SOURCE = re.compile(r"`((?:[\w*]+/)*[\w*]+\.pyx?)(?::\w+)?`")


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "internals").glob("*.md")), ids=lambda page: page.name)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    """A page may leave out the first folders of a path."""
    named = sorted(set(_SOURCE.findall(page.read_text("utf-8"))))
    tops = ROOT / "src", ROOT / "tests", ROOT / "tools", ROOT / "bench"
    assert [
        name
        for name in named
        if not any(any(top.parent.glob(f"{top.name}/**/{name}")) or any(ROOT.glob(name)) for top in tops)
    ] == []


OWN_CLUSTER = (
    "auditing",
    "authentication",
    "authorization",
    "hardening",
    "moving-from-liftbridge",
    "operating-a-cluster",
)
"""Guides whose commands start servers of their own."""
_CREATED = re.compile(r"""bascule stream create ([\w-]+)|create_stream\(\s*"([\w-]+)\"""")


def test_guides_do_not_create_a_stream_that_another_guide_has_created() -> None:
    """A reader who follows them in turn, on one broker, meets no error."""
    owners: dict[str, set[str]] = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))):
        if page.stem not in OWN_CLUSTER:
            for command, call in _CREATED.findall(page.read_text("utf-8")):
                owners.setdefault(command or call, set()).add(page.name)
    assert "orders" in owners
    assert {name: pages for name, pages in owners.items() if len(pages) > 1} == {}
