"""Points in the code of other processes at which they wait to be killed: a death is at a certain step and not at a certain time.

    points = FaultPoints(tmp_path / "faults")
    process = subprocess.Popen(…, env=clean_environ(points.environ))
    points.arm("orders:before-commit")
    pid = points.wait("orders:before-commit")        # it stands there, between its write and its commit
    os.kill(pid, signal.SIGKILL)                     # or points.release(pid), after something else has died

The code itself knows nothing of it. The environment puts a `sitecustomize` on the path of a process and of all Pythons it starts; that
one waits for some modules to be imported, and wraps what they have. A point is armed by a file, and whoever renames it first has
reached it. It is named after the archive's folder, or the stream for what is done with streams:

    <archive>:before-write     the driver has a batch and has written nothing of it
    <archive>:file-begun       a task has written some rows of a file
    <archive>:file-finished    a task has finished a file, and the driver has not heard of it
    <archive>:before-commit    all files are written; `before-compact` and so on for commits of other kinds
    <archive>:in-commit        the commit is written aside, and is not there yet
    <archive>:in-state         the sum of all commits likewise
    <archive>:after-commit     it is there, and Spark has not noted it
    <archive>:rereading        whoever merges files has put some rows of them into the new one
    <stream>:reading           a task has read some rows of a partition
    <stream>:writing           a task has published some rows into it
    <stream>:written           all of its rows are stored, and Spark has not heard of it
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

VARIABLE: Final = "FAULT_POINTS"
HERE: Final = Path(__file__).resolve().parent
STEP_SECONDS: Final = 0.005


# ── in the process of the test ───────────────────────────────────────────────────────────────────


class FaultPoints:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name in ("armed", "reached"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    @property
    def environ(self) -> dict[str, str]:
        """For clean_environ, and so for a process and what it starts."""
        paths = (HERE / "faults", HERE.parents[1] / "src", HERE.parents[1])
        return {VARIABLE: str(self._directory), "PYTHONPATH": os.pathsep.join(map(str, paths))}

    def arm(self, *points: str) -> None:
        """The next process that comes there waits."""
        for point in points:
            (self._directory / "armed" / point).touch()

    def disarm(self) -> None:
        """Of what nobody has reached."""
        for path in (self._directory / "armed").iterdir():
            path.unlink(missing_ok=True)

    def reached(self, point: str) -> int | None:
        """Who stands there, or stood there when it was killed."""
        found = next((self._directory / "reached").glob(f"{point}@*"), None)
        return None if found is None else int(found.name.rpartition("@")[2])

    def wait(self, point: str, process: Any, timeout: float = 120.0) -> int:
        """Who stands there, once somebody does. `process` is to be alive so long."""
        deadline = time.monotonic() + timeout
        while (pid := self.reached(point)) is None:
            assert process.poll() is None, f"it left with {process.returncode} before it came to {point}"
            assert time.monotonic() < deadline, f"nobody came to {point} within {timeout:g} s"
            time.sleep(STEP_SECONDS)
        return pid

    def release(self, point: str) -> None:
        """Let it go on; also to be called for one that was killed, before the point is armed again."""
        for path in (self._directory / "reached").glob(f"{point}@*"):
            path.unlink()


# ── in the processes that are to die ─────────────────────────────────────────────────────────────


def reach(point: str) -> None:
    """Go on, unless the point is armed: then wait for the test."""
    directory = Path(os.environ[VARIABLE])
    mark = directory / "reached" / f"{point}@{os.getpid()}"
    try:
        (directory / "armed" / point).rename(mark)
    except FileNotFoundError:
        return
    while mark.exists():
        time.sleep(STEP_SECONDS)


def _in_archive(module: Any) -> None:
    commit, note_head = module.Archive.commit, module.Archive._note_head

    @functools.wraps(commit)
    def commit_in_steps(self: Any, one: Any, state: Any = None) -> Any:
        kind = "commit" if one.kind == "append" else one.kind
        reach(f"{self.name}:before-{kind}")
        found = commit(self, one, state)
        reach(f"{self.name}:after-{kind}")
        return found

    @functools.wraps(note_head)
    def note_head_in_steps(self: Any, one: Any) -> None:
        reach(f"{self.name}:before-head")
        note_head(self, one)

    module.Archive.commit = commit_in_steps
    module.Archive._note_head = note_head_in_steps


def _in_writer(module: Any) -> None:
    sync = module.DeltaWriter._sync

    @functools.wraps(sync)
    def sync_in_steps(self: Any, version: int) -> None:
        if version:
            reach(f"{self._place.name}:in-commit")  # deltalake has made it, and nobody knows yet
        sync(self, version)

    module.DeltaWriter._sync = sync_in_steps


def _in_files(module: Any) -> None:
    write = module.WriteTask.write

    @functools.wraps(write)
    def write_in_steps(self: Any, batches: Iterator[Any]) -> Iterator[Any]:
        archive = self.place.name

        def fed() -> Iterator[Any]:
            for batch in batches:
                yield batch
                reach(f"{archive}:file-begun")  # the next batch is asked for when this one is written

        for file in write(self, fed()):
            reach(f"{archive}:file-finished")
            yield file

    module.WriteTask.write = write_in_steps
    read = module.read_file

    @functools.wraps(read)
    def read_in_steps(place: Any, one: Any) -> Iterator[Any]:
        for batch in read(place, one):
            yield batch
            reach(f"{place.name}:rereading")

    module.read_file = read_in_steps


def _in_job(module: Any) -> None:
    write = module.ArchiveJob.write

    @functools.wraps(write)
    def write_in_steps(self: Any, batch: Any, batch_id: int) -> Any:
        reach(f"{self.archive.name}:before-write")
        return write(self, batch, batch_id)

    module.ArchiveJob.write = write_in_steps


def _in_reader(module: Any) -> None:
    read = module.FlightConnection.read

    @functools.wraps(read)
    def read_in_steps(self: Any, stream: str, *arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in read(self, stream, *arguments, **options):
            yield batch
            reach(f"{stream}:reading")

    module.FlightConnection.read = read_in_steps


def _in_sink(module: Any) -> None:
    write = module.write_task

    @functools.wraps(write)
    def write_in_steps(options: Any, batches: Iterator[Any]) -> Any:
        stream = options.target.stream

        def fed() -> Iterator[Any]:
            for batch in batches:
                yield batch
                reach(f"{stream}:writing")

        found = write(options, fed())
        reach(f"{stream}:written")
        return found

    module.write_task = write_in_steps


WRAPPERS: Final[dict[str, Callable[[Any], None]]] = {
    "bascule.lake.archive": _in_archive,
    "bascule.lake.delta.writer": _in_writer,
    "bascule.lake.files": _in_files,
    "bascule.pipeline.jobs.archive": _in_job,
    "bascule.client.arrow.reader": _in_reader,
    "bascule.spark.write.task": _in_sink,
}


class _Loader(Protocol):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None: ...

    def exec_module(self, module: ModuleType) -> None: ...


class _WrappingLoader(importlib.abc.Loader):
    def __init__(self, loader: _Loader, wrap: Callable[[Any], None]) -> None:
        self._loader = loader
        self._wrap = wrap

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._wrap(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Has the modules above wrapped when they are imported, whenever that is."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WRAPPERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WrappingLoader(spec.loader, WRAPPERS[name])
        return spec


def install() -> None:
    """What sitecustomize does. A process that has the folder on its path and no points is left alone."""
    if VARIABLE in os.environ:
        sys.meta_path.insert(0, _Finder())
