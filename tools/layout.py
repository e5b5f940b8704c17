"""The rings of `src/bascule/`, and the sizes a reader can hold: checked, not hoped for. `python -m tools.layout`

    core      decides; pure: no clock, no file, no socket, no chance     → errors, limits
    kernels   are fast                                                  → nothing of ours
    log       keeps                                                     → core, kernels, errors, limits
    raft      keeps what consensus must not forget                      → core, kernels, log, errors, limits
    net       talks: bytes and sockets, not streams                     → kernels, errors, limits
    config    is what can be set                                        → errors, limits
    proto     is generated                                              → nothing of ours
    flight    is what both ends of Arrow Flight share, and the end that reads → client, kernels, errors, limits
    lake      is archives: commits, Parquet files, the proof of them      → client, flight, kernels, errors, limits
    broker    wires                                                     → everything
    client, spark, pipeline, console, cli                               → everything but broker

An import counts wherever it stands: in a function, behind TYPE_CHECKING, as a cimport.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "bascule"

FILE_LINES_MAX: Final = 650
FUNCTION_LINES_MAX: Final = 80

EVERYTHING: Final = frozenset(
    {
        "errors",
        "limits",
        "config",
        "core",
        "kernels",
        "log",
        "raft",
        "net",
        "proto",
        "broker",
        "client",
        "flight",
        "lake",
        "spark",
        "pipeline",
        "console",
        "cli",
    }
)
ALL_BUT_BROKER: Final = EVERYTHING - {"broker"}

MAY_IMPORT: Final[dict[str, frozenset[str]]] = {
    "": frozenset({"errors", "client", "flight"}),  # bascule/__init__.py, the public face
    "errors": frozenset(),
    "limits": frozenset(),
    "config": frozenset({"errors", "limits"}),
    "core": frozenset({"errors", "limits"}),
    "kernels": frozenset(),
    "log": frozenset({"core", "kernels", "errors", "limits"}),
    "raft": frozenset({"core", "kernels", "log", "errors", "limits"}),
    "net": frozenset({"kernels", "errors", "limits"}),
    "proto": frozenset(),
    "broker": EVERYTHING,
    "client": ALL_BUT_BROKER,
    "flight": frozenset({"client", "kernels", "errors", "limits"}),
    "lake": frozenset({"client", "flight", "kernels", "errors", "limits"}),
    "spark": ALL_BUT_BROKER,
    "pipeline": ALL_BUT_BROKER,
    "console": ALL_BUT_BROKER,
    "cli": ALL_BUT_BROKER,
}

IMPURE: Final[dict[str, str]] = {
    **dict.fromkeys(("datetime", "time"), "a clock"),
    **dict.fromkeys(("random", "secrets", "uuid"), "chance"),
    **dict.fromkeys(("fcntl", "glob", "io", "mmap", "os", "pathlib", "shutil", "tempfile"), "the file system"),
    **dict.fromkeys(("select", "selectors", "socket", "ssl", "urllib"), "the network"),
    **dict.fromkeys(("asyncio", "concurrent", "multiprocessing", "signal", "subprocess", "threading"), "concurrency"),
    **dict.fromkeys(("ctypes", "logging"), "an effect"),
}
"""What `core` may not import: everything that has an answer of its own, or an effect."""

_CYTHON_IMPORT: Final = re.compile(r"^\s*(?:from\s+(\.*[\w.]*)\s+c?import\s+(.+)|c?import\s+(.+))", re.MULTILINE)
_CYTHON_FUNCTION: Final = re.compile(r"^( *)(?:def|cdef|cpdef)\b(?!\s+class\b)[^=#]*\(")


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule."""

    file: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}"


def check_tree(root: Path) -> list[Violation]:
    """Every violation below `root`, the directory that holds `src/`."""
    found: list[Violation] = []
    for path in sorted((root / "src" / PACKAGE).rglob("*")):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
            found += check_imports(path, root / "src")
    for directory in ("src", "tools", "bench"):
        for path in sorted((root / directory).rglob("*")):
            if path.suffix in (".py", ".pyx", ".pxd"):
                found += check_sizes(path)
    return found


# ── rings ────────────────────────────────────────────────────────────────────────────────────────


def check_imports(path: Path, source: Path) -> Iterator[Violation]:
    """Imports that this file's ring may not have."""
    module = path.relative_to(source).with_suffix("").parts
    ring = "" if module == (PACKAGE, "__init__") else module[1]
    if ring not in MAY_IMPORT:
        yield Violation(path, 1, f"`{ring}` is no ring yet: say in tools/layout.py what it may import")
        return
    text = path.read_text("utf-8")
    imports = _cython_imports(text, module) if path.suffix in (".pyx", ".pxd") else _python_imports(text, module)
    for line, name in imports:
        top, _, rest = name.partition(".")
        if top == PACKAGE:
            yield from _check_ours(path, line, ring, rest.partition(".")[0])
        elif ring == "core" and top in IMPURE:
            yield Violation(path, line, f"`core` is pure and may not import `{top}`: it is {IMPURE[top]}")
    if ring == "core" and path.suffix == ".py":
        yield from _check_opens(path, text)


def _check_ours(path: Path, line: int, ring: str, target: str) -> Iterator[Violation]:
    # A bare `import bascule` runs the public face, which is how the version is read.
    if target in ("", ring, "__version__") or target in MAY_IMPORT[ring]:
        return
    where = f"`{ring}`" if ring else "the public face"
    yield Violation(path, line, f"{where} may not import `{PACKAGE}.{target}`")


def _check_opens(path: Path, text: str) -> Iterator[Violation]:
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print", "input")
        ):
            yield Violation(path, node.lineno, f"`core` is pure and may not call `{node.func.id}`")


def _python_imports(text: str, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), module)
            yield from ((node.lineno, _imported(base, alias.name)) for alias in node.names)


def _cython_imports(text: str, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for match in _CYTHON_IMPORT.finditer(text):
        line = text.count("\n", 0, match.start(match.lastindex or 0)) + 1
        if match[3] is not None:
            yield from ((line, part.split()[0]) for part in match[3].split("#")[0].split(",") if part.strip())
        else:
            base = _absolute(match[1], module)
            # A list in parentheses may go on below; what it names in `bascule` itself then counts as everything.
            names = [part.split()[0] for part in match[2].split("#")[0].split(",") if part.strip()]
            yield from ((line, _imported(base, name)) for name in names)


def _imported(base: str, name: str) -> str:
    """`from bascule import log` imports bascule.log; below that the ring is in the base already."""
    return f"{base}.{name}" if base == PACKAGE else base


def _absolute(name: str, module: tuple[str, ...]) -> str:
    """A relative import spelled out."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    package = module[: len(module) - level]
    return ".".join([*package, *filter(None, [name.lstrip(".")])])


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


def check_sizes(path: Path) -> Iterator[Violation]:
    """A file or a function that no longer fits a reader's head."""
    text = path.read_text("utf-8")
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield Violation(path, 1, f"{lines} lines; a file has at most {FILE_LINES_MAX}")
    functions = _python_functions(text) if path.suffix == ".py" else _cython_functions(text)
    for line, name, length in functions:
        if length > FUNCTION_LINES_MAX:
            yield Violation(path, line, f"`{name}` has {length} lines; a function has at most {FUNCTION_LINES_MAX}")


def _python_functions(text: str) -> Iterator[tuple[int, str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def _cython_functions(text: str) -> Iterator[tuple[int, str, int]]:
    """Cython has no parser of its own to ask: a function ends where a line is not indented deeper than its `def`."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = _CYTHON_FUNCTION.match(line)
        if match is None:
            continue
        end = last = number
        while end + 1 < len(lines) and _belongs(lines[end + 1], len(match[1])):
            end += 1
            last = end if lines[end].strip() else last
        name = line.partition("(")[0].split()[-1]
        yield number + 1, name, last - number + 1


def _belongs(line: str, indent: int) -> bool:
    return not line.strip() or len(line) - len(line.lstrip()) > indent or line.lstrip().startswith(")")


if __name__ == "__main__":
    violations = check_tree(ROOT)
    print("\n".join(map(str, violations)) or "The layout holds.")
    sys.exit(1 if violations else 0)
