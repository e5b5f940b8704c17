"""Links of the documentation lead somewhere. tests/guides and tests/spark/guides run its code, on a machine of a reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.guides.pages import PAGES, ROOT, blocks_of, blocks_of_page, guides

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


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


def test_blocks_are_found_with_their_marks() -> None:
    text = "a\n\n```python\nx\n```\n\n<!-- not run: why -->\n<!-- b -->\n```python\ny\n```\n\n1. c\n\n   ```bash\n   z\n   ```\n"
    found = blocks_of(Path("p"), text)
    assert [(block.line, block.code, block.is_run) for block in found] == [
        (3, "x\n", True),
        (9, "y\n", False),
        (15, "z\n", True),
    ]
    assert found[1].marks == {"not run: why", "b"}


def test_code_of_other_pages_than_guides_is_marked_because_nothing_runs_it() -> None:
    blocks = [block for page in PAGES if page not in guides() for block in blocks_of_page(page) if block.is_run]
    shell = [block for block in blocks if block.is_shell and re.search(r"^bascule ", block.code, re.MULTILINE)]
    assert [str(block) for block in blocks if block.language == "python" or block in shell] == []


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
