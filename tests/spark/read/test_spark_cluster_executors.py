"""Executors with processes of their own, which get the package as docs/guides/spark.md says: in an archive, and from nowhere else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bascule.client.blocking import BlockingClient
from bascule.spark import java
from tests.spark.conftest import MakeStream
from tests.spark.write.test_spark_sink import values
from tests.support.broker_process import ROOT, BrokerProcess, clean_environ
from tests.support.spark_home import spark_home

JOB = """
import json, sys
import bascule.spark

servers, source, target, checkpoint = sys.argv[1:]
spark = bascule.spark.session("job")
rows = spark.read.format("bascule").option("servers", servers).load(source)

def look(batches):
    import os, bascule, bascule.kernels.records.records, pyarrow
    found = [os.path.relpath(each.__file__) for each in (bascule, bascule.kernels.records.records)]
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict(
            {"at": [os.getcwd()], "package": [found[0]], "kernel": [found[1]], "n": [batch.num_rows]})

seen = rows.mapInArrow(look, "at string, package string, kernel string, n bigint").collect()
query = (
    spark.readStream.format("bascule").options(servers=servers, startingOffsets="earliest").load(source)
    .select("key", "value").writeStream.format("bascule")
    .options(servers=servers, stream=target, delivery="exactly-once", checkpointLocation=checkpoint)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
print(json.dumps({"driver": bascule.__file__, "executors": [row.asDict() for row in seen]}))
"""


@pytest.fixture
def deps(tmp_path: Path) -> Path:
    """What `pip install --target deps bascule` makes, of what is built here."""
    found = tmp_path / "deps"
    for name in ("bascule", "pyspark_bascule"):
        shutil.copytree(ROOT / "src" / name, found / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyx", "*.c"))
    return found


def commands_of_the_guide() -> str:
    """Without the first one, which the fixture stands for."""
    section = (ROOT / "docs/guides/spark.md").read_text("utf-8").partition("## On a cluster")[2]
    block = section.partition("```bash\n")[2].partition("```")[0]
    first, _, rest = block.partition("\n")
    assert first.startswith("pip install --target deps "), first
    assert "\n    --archives deps.tar.gz#deps " in rest, rest
    return rest


@pytest.mark.soak
def test_executors_get_the_package_in_an_archive(
    tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, deps: Path, tmp_path: Path
) -> None:
    source, target = make_stream(100, partitions=4), make_stream(partitions=2)
    (tmp_path / "job.py").write_text(JOB)
    home = spark_home(tmp_path)
    # The driver's path, where no archive is unpacked. Executors would have it too if nobody said otherwise.
    environ = clean_environ(
        {"PYTHONPATH": str(deps), "SPARK_HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    )
    java.prepare(environ)
    arguments = [tables.address, source, target, str(tmp_path / "checkpoint")]
    commands = commands_of_the_guide().replace("spark://master:7077", "'local-cluster[2,1,1024]'")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands.replace("job.py", f"job.py {' '.join(arguments)}")],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-8_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["driver"] == str(deps / "bascule/__init__.py")
    assert {row["package"] for row in found["executors"]} == {"deps/bascule/__init__.py"}
    assert {Path(row["kernel"]).suffix for row in found["executors"]} == {".so"}
    assert len({row["at"] for row in found["executors"]}) == 2, "two executors, each with a folder of its own"
    assert all(Path(row["at"]).is_relative_to(home / "work") for row in found["executors"])
    assert sum(row["n"] for row in found["executors"]) == 400
    assert sorted(values(client, target)) == sorted(values(client, source))
