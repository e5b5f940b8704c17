"""A planted bug: a replacement in one source file, and the test that must fail with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    killer: str
    """The test, as pytest names it."""
    builds: str = ""
    """The kernel to compile, for a bug in a .pxd file; a .pyx file is compiled itself."""

    @property
    def kernel(self) -> str | None:
        """The .pyx file that is compiled again; None for a bug in Python."""
        return self.builds or (self.file if self.file.endswith(".pyx") else None)


def applied(mutant: Mutant, root: Path) -> str:
    """The source with the bug in it. Raises ValueError when the place is not there, or there more than once."""
    text = (root / mutant.file).read_text("utf-8")
    if (count := text.count(mutant.old)) != 1:
        raise ValueError(f"`{mutant.name}`: its place occurs {count} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)
