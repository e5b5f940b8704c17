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
from bascule.errors import JavaNotFound

INSTALL: Final = '`pip install "bascule[spark]"`'

WANTED: Final[tuple[tuple[str, tuple[int, ...], tuple[int, ...] | None], ...]] = (
    ("pyspark", (4, 2), None),
    ("pyarrow", (18,), None),
    ("pandas", (2, 2), (3,)),
)
"""Packages, their minimum version, and the first unsupported version."""

CONNECT: Final = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")
ASK_SECONDS_MAX: Final = 60.0

_WORKER: Final = "import pyarrow, pyspark_bascule; assert pyspark_bascule.DefaultSource.name() == 'bascule'"


def look(checkpoint: Path | None, run: bool) -> Iterator[Check]:
    """Yield the checks, the quick ones first."""
    yield Check("python", OK, f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}")
    packages = [_package(*wanted) for wanted in WANTED]
    yield from packages
    yield _connect()
    yield from _java()
    yield _workers()
    yield Check("checkpoint", SKIPPED, "no directory was given") if checkpoint is None else _checkpoint(checkpoint)
    if any(check.state == FAILED for check in packages):
        yield Check("job", SKIPPED, "Spark is not installed")
    elif run:
        yield _job()


def _package(name: str, least: tuple[int, ...], too_new: tuple[int, ...] | None) -> Check:
    found = _version(name)
    wanted = f"at least {_dotted(least)}" + ("" if too_new is None else f", below {_dotted(too_new)}")
    if found is None:
        return Check(name, FAILED, "not installed", INSTALL)
    number = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if number < least or (too_new is not None and number >= too_new):
        return Check(name, FAILED, f"{found}, but it must be {wanted}", INSTALL)
    return Check(name, OK, found)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


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
