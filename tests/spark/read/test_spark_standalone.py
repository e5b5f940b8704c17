"""A standalone cluster with two workers whose folders and Python differ from the driver's. They get the package in the pack, and from
nowhere else; the driver has what `pip install "bascule[spark]"` installs. docs/guides/running-on-a-cluster.md is what is run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from bascule.client.blocking import BlockingClient
from bascule.spark import java
from tests.spark.conftest import MakeStream
from tests.spark.write.test_spark_sink import values
from tests.support import cluster_driver
from tests.support.broker_process import ROOT, BrokerProcess
from tests.support.installed import spark_install
from tests.support.spark_classes import FLAGS
from tests.support.spark_standalone import StandaloneCluster

pytestmark = pytest.mark.soak  # six processes of Java

GUIDE = ROOT / "docs/guides/running-on-a-cluster.md"
SECONDS_MAX = 900
DEFAULTS = f"""\
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.executor.memory 512m
spark.executor.extraJavaOptions {FLAGS}
spark.scheduler.minRegisteredResourcesRatio 1.0
spark.scheduler.maxRegisteredResourcesWaitingTime 300s
spark.executorEnv.PYTHONPATH ./mine
spark.plugins org.apache.spark.sql.connect.SparkConnectPlugin
spark.connect.grpc.binding.address 127.0.0.1
spark.connect.grpc.binding.port 0
"""
"""What this machine needs, and a setting that a user has already."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def pipeline(file: Path, servers: str, source: str, target: str) -> str:
    file.write_text(f"""
name: {file.stem}
servers: {servers}
source: {{stream: {source}, options: {{gatherRecordsPerTask: 1}}}}
steps: [where: offset >= 5]
sinks: [{{stream: {target}}}, {{table: {file.stem}-table}}]
checkpoint: {file.stem}-state
""")
    return str(file)


def test_a_cluster_reads_writes_and_runs_pipelines_with_a_pack_alone(
    tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    streams = [make_stream(10, partitions=number, name=f"cluster-{number}") for number in (1, 3, 8)]
    sink, copy, through_connect = (make_stream(name=f"cluster-{name}") for name in ("sink", "copy", "connected"))
    python = spark_install(tmp_path / "driver")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text(DEFAULTS)
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "JAVA_HOME": str(java.choose().home),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        "SPARK_LAUNCHER_OPTS": FLAGS,
    }

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-8_000:]
        return done.stdout

    pack, *_ = blocks("bash")[0].splitlines()
    assert pack == "bascule spark pack deps.tar.gz"
    assert "linux-" in run(python, "-m", "bascule.cli.main", *pack.split()[1:])
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        (block,) = blocks("python")
        given = {
            "block": block.replace("spark://master:7077", cluster.url)
            .replace("broker:9292", tables.address)
            .replace('stream="orders"', f'stream="{streams[1]}"'),
            "servers": tables.address,
            "streams": streams,
            "target": sink,
            "checkpoint": str(tmp_path / "checkpoint"),
            "pipeline": pipeline(tmp_path / "copied.yaml", tables.address, streams[2], copy),
            "connected": pipeline(tmp_path / "connected.yaml", tables.address, streams[2], through_connect),
        }
        (tmp_path / "given.json").write_text(json.dumps(given))
        run(python, cluster_driver.__file__, tmp_path / "given.json", tmp_path / "found.json")
        found = json.loads((tmp_path / "found.json").read_text("utf-8"))
        homes = cluster.homes
    assert found["count"] == 30
    # Each worker ran its own Python, and the modules of the pack that was unpacked in its own folder.
    assert set(found["executors"]) <= {str(home / "python/bin/python3.11") for home in homes}
    rows = [row for stream in streams for row in found[stream]]
    assert {Path(row["kernel"]).suffix for row in rows} == {".so"}
    assert all(Path(row["kernel"]).is_relative_to(Path(row["folder"])) for row in rows)
    assert all("./deps:./mine" in row["path"] for row in rows), "the user's own path stays"
    # A task for each partition, and for eight of them both workers.
    assert [len(found[stream]) for stream in streams] == [1, 3, 8]
    assert all(row["rows"] == 10 for row in rows)
    at = {next(home.name for home in homes if Path(row["folder"]).is_relative_to(home)) for row in found[streams[2]]}
    assert at == {"worker-0", "worker-1"}
    assert sorted(values(client, sink)) == sorted(values(client, streams[2]))
    wanted = sorted(b"%d/%d" % (number, offset) for number in range(8) for offset in range(5, 10))
    assert "connected: 80 messages in 1 batch" in found["connected"], found["connected"]
    assert sorted(values(client, copy)) == sorted(values(client, through_connect)) == wanted
