"""The rooms of `src/bascule/`: what each may import, and how large things may get. `python -m tools.layout` checks them.

A room is a folder, or one of the modules beside them. `ROOMS` lists the rooms from the bottom up, each with exactly the rooms that it
imports: a room that needs more has to say so here, a room that needs less has to give it up, and no room imports one further down
the list. An import counts wherever it is: in a function, under TYPE_CHECKING, as a cimport. Rooms named `core` are pure: they have no
clock, file, socket, thread or randomness.

`python -m tools.layout --derive` prints what each room imports now; `--table` prints the table of CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "bascule"
FACE: Final = "__init__"
"""The room of `bascule/__init__.py`, the public face."""

FILE_LINES_MAX: Final = 650
FUNCTION_LINES_MAX: Final = 80
FOLDER_FILES_MAX: Final = 15

_LISTED: Final = """
errors
limits
names                   limits
producers               limits
child_process
exits                   errors
proto
kernels
kernels.memory
kernels.wire            kernels.memory
kernels.records         kernels.wire
kernels.envelope        kernels.wire
kernels.nats            kernels.wire
kernels.headers         kernels.wire
kernels.http2           kernels.memory kernels.wire kernels.headers
kernels.grpc            kernels.memory kernels.wire kernels.headers kernels.http2
kernels.batches         kernels.records kernels.envelope
kernels.ingest          kernels.wire kernels.records kernels.envelope kernels.nats kernels.batches
kernels.calls           kernels.wire kernels.records kernels.envelope kernels.nats kernels.grpc kernels.ingest
kernels.arrow           kernels.wire kernels.records
kernels.window          kernels.wire kernels.envelope
kernels.client          kernels.wire kernels.envelope kernels.grpc kernels.window
net                     errors limits
net.nats                errors limits kernels.wire kernels.nats net
net.grpc                errors limits proto kernels.memory kernels.http2 kernels.grpc net
net.http                errors limits net net.grpc
config.values           errors limits net
config.sections         limits names config.values
config                  errors limits net config.values config.sections
metadata.core.model     limits
metadata.core           errors limits names metadata.core.model
log.core                errors limits
log.disk                errors limits kernels.wire kernels.records log.core
log.segments            errors limits kernels.wire kernels.records log.core log.disk
log.recovery            errors limits kernels.wire kernels.records log.core log.disk log.segments
log.sync                errors limits log.disk log.segments log.recovery
log.partition           errors limits kernels.wire kernels.records log.core log.disk log.segments log.recovery
                        log.sync
log.cleaning            errors limits kernels.records log.core log.disk log.segments log.recovery log.partition
log                     errors limits names log.core log.disk log.segments log.sync log.partition log.cleaning
raft.core.model         errors limits
raft.core               errors limits raft.core.model
raft.disk               errors limits kernels.wire log.disk raft.core.model
raft                    errors limits net.nats raft.core.model raft.core
partition.core          limits
security.policy         errors limits names
security                errors limits kernels.grpc net net.grpc config.sections security.policy
security.audit          errors limits net.grpc security
metadata                errors limits names proto kernels.wire net net.nats net.grpc config.values config.sections config
                        metadata.core.model metadata.core log.disk log raft.core.model raft.core raft.disk raft
partition.replication   errors limits proto kernels.nats kernels.ingest net.nats metadata.core.model log.disk
                        log.partition log partition.core metadata
partition               errors limits names proto kernels.records kernels.nats kernels.batches kernels.ingest kernels.calls
                        net.nats net.grpc config.sections metadata.core.model metadata.core log.disk log.recovery
                        log.partition log raft partition.core security metadata partition.replication
readers                 errors limits names proto kernels.records kernels.calls net net.nats net.grpc metadata.core.model
                        log.disk log.segments log raft metadata partition.replication partition
operations              errors limits proto net net.nats net.grpc config.sections metadata.core.model metadata.core
                        log.disk raft.core.model raft metadata partition readers
liftbridge              errors limits names proto kernels.wire kernels.records net.nats config.sections config
                        metadata.core.model log.disk log metadata readers
flight                  errors limits kernels.arrow
client.connection       errors limits names kernels.grpc net net.grpc
client.publish          errors producers kernels.nats kernels.window kernels.client net.nats net.grpc
                        client.connection
client.consume          errors kernels.client net.grpc client.connection
client.admin            errors client.connection
client                  errors kernels.window kernels.client net.nats client.connection client.publish
                        client.consume client.admin
client.arrow            errors limits kernels.records kernels.arrow kernels.window net flight client.connection
                        client.publish client
__init__                errors client.connection client.consume client client.admin client.arrow
broker.api              errors limits names proto kernels.calls net.grpc config.values config.sections config
                        metadata.core.model metadata.core log security.policy security security.audit metadata partition
                        readers operations flight
broker.flight           errors limits kernels.arrow net net.grpc config.values config.sections
                        metadata.core.model log.segments log.partition log security metadata partition flight
broker.metrics          errors limits names proto net net.nats net.grpc net.http metadata.core.model metadata.core log.disk
                        log.partition log security security.audit metadata partition.replication partition readers operations
broker.http             errors limits net net.grpc net.http config.sections security broker.metrics
broker                  errors limits names child_process exits proto kernels.nats kernels.calls net net.nats net.grpc config.values
                        config.sections config metadata.core.model log.disk log security.policy security security.audit metadata
                        partition readers operations liftbridge broker.api broker.flight broker.metrics broker.http
lake.delta              errors
lake                    errors limits kernels.wire flight client.arrow lake.delta
lake.former             errors kernels.wire lake.delta lake
lake.latest             errors kernels.wire flight client.arrow lake.delta lake
spark.options           errors limits config.values config.sections flight client.connection lake.delta
spark.errors            errors config.values
spark.values            errors spark.options
spark.read              errors limits config.values client client.arrow lake.delta lake spark.options spark.values
spark.write             errors config.values client client.arrow spark.options
spark.executors         errors spark.errors
spark                   errors spark.options spark.values spark.read spark.write spark.executors
history                 errors names flight kernels.client client.connection client.consume client.arrow spark.options spark.read
pipeline.restarts       errors
pipeline.spec           errors config.values lake.delta spark.options pipeline.restarts
pipeline.steps          errors config.values flight spark.options spark.values pipeline.spec
pipeline.jobs           errors flight client client.arrow lake.delta lake lake.latest spark.options spark.errors spark.read
pipeline.sinks          errors lake lake.latest spark.options spark.write pipeline.spec pipeline.steps pipeline.jobs
pipeline.runs           errors pipeline.spec
pipeline                errors exits config.values client lake.delta lake spark.options spark.errors spark.values spark.read spark
                        pipeline.restarts pipeline.spec pipeline.steps pipeline.jobs pipeline.sinks pipeline.runs
pipeline.trials         errors config.values flight spark.options spark.errors spark.read pipeline.spec pipeline.steps
                        pipeline.sinks pipeline
pipeline.hosting        errors config.values spark.options spark.errors pipeline.restarts pipeline.spec pipeline
cli.terminal            errors exits config.values client
cli.target              errors config.values client.connection client cli.terminal
cli.stream              errors exits config.values client.connection client.publish client.consume client client.admin
                        lake.delta cli.terminal cli.target
cli.cluster             errors config.values client.connection client client.admin cli.terminal cli.target
                        cli.stream
cli.pipeline            errors exits config.values client client.arrow lake.delta lake lake.former lake.latest
                        spark.options spark.errors spark.executors spark pipeline.restarts pipeline.spec pipeline.jobs
                        pipeline.sinks pipeline.runs pipeline pipeline.trials pipeline.hosting cli.terminal cli.target
cli.server              errors names exits kernels.nats kernels.records net net.nats config.values config log.core log.disk log.segments
                        log.recovery liftbridge client.connection client client.admin spark.executors spark cli.terminal
                        cli.target
cli.access              errors exits names net.nats config.values config.sections security.policy security security.audit
                        client client.admin cli.terminal cli.target
cli                     exits cli.stream cli.cluster cli.pipeline cli.server cli.access
demo                    errors child_process exits net net.nats config broker lake
"""

ROOMS: Final[dict[str, tuple[str, ...]]] = {
    room: tuple(targets) for room, *targets in map(str.split, re.split(r"\n(?! )", _LISTED.strip()))
}
"""Each room with the rooms that it imports, as listed above."""

IMPURE: Final[dict[str, str]] = {
    **dict.fromkeys(("datetime", "time"), "a clock"),
    **dict.fromkeys(("random", "secrets", "uuid"), "randomness"),
    **dict.fromkeys(("fcntl", "glob", "io", "mmap", "os", "pathlib", "shutil", "tempfile"), "the file system"),
    **dict.fromkeys(("select", "selectors", "socket", "ssl", "urllib"), "the network"),
    **dict.fromkeys(("asyncio", "concurrent", "multiprocessing", "signal", "subprocess", "threading"), "concurrency"),
    **dict.fromkeys(("ctypes", "logging"), "an effect"),
}
"""Modules that a core may not import, and why."""

SOURCES: Final = (".py", ".pyi", ".pyx", ".pxd", ".h")

_CYTHON_IMPORT: Final = re.compile(
    r"^\s*(?:from\s+(\.*[\w.]*)\s+c?import\s+(\([^)]*\)|.+)|c?import\s+(.+))", re.MULTILINE
)
_CYTHON_FUNCTION: Final = re.compile(r"^( *)(?:def|cdef|cpdef)\b(?!\s+class\b)[^=#]*\(")


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule."""

    file: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}"


def check_tree(root: Path, rooms: dict[str, tuple[str, ...]] = ROOMS) -> list[Violation]:
    """Every violation below `root`, the directory that holds `src/`."""
    package = root / "src" / PACKAGE
    found = [*check_imports(package, rooms), *check_folders(package), *check_class_names(package)]
    for directory in ("src", "tools", "bench"):
        for path in _files(root / directory, ".py", ".pyx", ".pxd"):
            found += check_sizes(path)
    return found


def _files(directory: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.suffix in suffixes and "_pb2" not in path.name)


# ── rooms ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Import:
    """One import of ours: where it is, and which rooms it connects."""

    file: Path
    line: int
    room: str
    target: str


def check_imports(package: Path, rooms: dict[str, tuple[str, ...]]) -> Iterator[Violation]:
    """Imports that a room may not have, rooms that `ROOMS` lists and nothing imports, and rooms that it does not know."""
    order = list(rooms)
    used: set[tuple[str, str]] = set()
    for each in _room_imports(package):
        used.add((each.room, each.target))
        if each.room in rooms and each.target not in rooms[each.room]:
            yield Violation(each.file, each.line, f"`{each.room}` may not import `{each.target}`")
    present = {_room_of(path.relative_to(package)): path for path in reversed(_files(package, *SOURCES))}
    for room, path in sorted(present.items()):
        if room not in rooms:
            yield Violation(path, 1, f"`{room}` is not a room: add it to ROOMS in tools/layout.py")
            continue
        for target in rooms[room]:
            if (room, target) not in used:
                yield Violation(path, 1, f"`{room}` does not import `{target}`: remove it from ROOMS")
            if target not in rooms or order.index(target) >= order.index(room):
                yield Violation(path, 1, f"`{room}` imports `{target}`, which has to come before it in ROOMS")
    for path in _files(package, ".py"):
        if "core" in path.relative_to(package).parent.parts:
            yield from _check_pure(path)


def _room_imports(package: Path) -> Iterator[Import]:
    for path in _files(package, ".py", ".pyi", ".pyx", ".pxd"):
        module = (PACKAGE, *path.relative_to(package).with_suffix("").parts)
        text = path.read_text("utf-8")
        read = _cython_imports if path.suffix in (".pyx", ".pxd") else _python_imports
        room = _room_of(path.relative_to(package))
        for line, name in read(text, module):
            target = _room_named(name, package)
            if target is not None and target != room:
                yield Import(path, line, room, target)


def _room_of(path: Path) -> str:
    """The room of a file, by its path inside the package."""
    return ".".join(path.parent.parts) or path.stem


def _room_named(name: str, package: Path) -> str | None:
    """The room that `import name` reaches. None for modules that are not ours, and for the package itself: it holds the version."""
    top, *parts = name.split(".")
    if top != PACKAGE or not parts or parts[0] == "__version__":
        return None
    if not (package / parts[0]).is_dir():
        return parts[0] if (package / f"{parts[0]}.py").exists() else FACE
    while len(parts) > 1 and not package.joinpath(*parts).is_dir():
        parts.pop()
    return ".".join(parts)


def _check_pure(path: Path) -> Iterator[Violation]:
    text = path.read_text("utf-8")
    for line, name in _python_imports(text, (PACKAGE,)):
        top = name.partition(".")[0]
        if top in IMPURE:
            yield Violation(path, line, f"a core is pure and may not import `{top}`: it is {IMPURE[top]}")
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print", "input")
        ):
            yield Violation(path, node.lineno, f"a core is pure and may not call `{node.func.id}`")


def _python_imports(text: str, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), module)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _cython_imports(text: str, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for match in _CYTHON_IMPORT.finditer(text):
        line = text.count("\n", 0, match.start(match.lastindex or 0)) + 1
        listed = re.sub(r"#.*", "", match[3] if match[3] is not None else match[2]).strip().strip("()")
        names = [part.split()[0] for part in listed.split(",") if part.strip()]
        if match[3] is not None:
            yield from ((line, name) for name in names)
        else:
            base = _absolute(match[1], module)
            yield from ((line, f"{base}.{name}") for name in names)


def _absolute(name: str, module: tuple[str, ...]) -> str:
    """A relative import, spelled out."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    package = module[: len(module) - level]
    return ".".join([*package, *filter(None, [name.lstrip(".")])])


def derived(package: Path) -> dict[str, tuple[str, ...]]:
    """What each room imports now."""
    rooms: dict[str, set[str]] = {_room_of(path.relative_to(package)): set() for path in _files(package, *SOURCES)}
    for each in _room_imports(package):
        rooms[each.room].add(each.target)
    return {room: tuple(sorted(targets)) for room, targets in rooms.items()}


def table(package: Path, rooms: dict[str, tuple[str, ...]] = ROOMS) -> str:
    """The rooms as CONTRIBUTING.md shows them: one row for each folder of the package, with what its rooms import together."""
    lines = ["| Room | Holds | Imports |", "|---|---|---|"]
    tops = list(dict.fromkeys(room.partition(".")[0] for room in rooms if room != FACE))
    for top in tops:
        reached = {each.partition(".")[0] for room, each in _pairs(rooms) if room.partition(".")[0] == top} - {top}
        is_folder = (package / top).is_dir()
        file = package / top / "__init__.py" if is_folder else package / f"{top}.py"
        holds = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n")[0].rstrip(".")
        names = ", ".join(f"`{each}`" for each in tops if each in reached) or "nothing of ours"
        lines.append(f"| `{top}{'/' if is_folder else '.py'}` | {holds} | {names} |")
    return "\n".join(lines) + "\n"


def _pairs(rooms: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for room, targets in rooms.items():
        yield from ((room, target) for target in targets)


# ── sizes and names ──────────────────────────────────────────────────────────────────────────────


def check_folders(package: Path) -> Iterator[Violation]:
    """Folders with more files than a reader takes in at a glance."""
    for folder in sorted({path.parent for path in _files(package, *SOURCES)}):
        count = sum(path.suffix in SOURCES and "_pb2" not in path.name for path in folder.iterdir())
        if count > FOLDER_FILES_MAX:
            yield Violation(folder, 1, f"{count} source files; a folder has at most {FOLDER_FILES_MAX}")


def check_class_names(package: Path) -> Iterator[Violation]:
    """Classes that share their name with another class of ours."""
    places: dict[str, Path] = {}
    for path in _files(package, ".py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and places.setdefault(node.name, path) is not path:
                yield Violation(path, node.lineno, f"class `{node.name}` is also in {places[node.name]}")


def check_sizes(path: Path) -> Iterator[Violation]:
    """A file or a function that is too long to be read in one go."""
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
    """Functions by indentation: one ends at the first line that is indented no deeper than its `def`."""
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.layout", description="Check the layout of the source tree.")
    parser.add_argument("--derive", action="store_true", help="print what each room imports now")
    parser.add_argument("--table", action="store_true", help="print the table of CONTRIBUTING.md")
    options = parser.parse_args()
    package = ROOT / "src" / PACKAGE
    if options.derive:
        for room, targets in derived(package).items():
            print(f"{room:24} {' '.join(targets)}")
        return 0
    if options.table:
        print(table(package), end="")
        return 0
    violations = check_tree(ROOT)
    print("\n".join(map(str, violations)) or "The layout holds.")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
