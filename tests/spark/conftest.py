"""Spark sessions and brokers for the tests of source, sink and pipelines.

A Java takes many seconds to start: there is one for the whole test process, with a server of Spark Connect inside, and both sessions
work on it. `make test` runs this directory in a process of its own, since every process that runs a part of it starts a Java.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from bascule.spark.sessions import session
from tests.support.broker_fixtures import (
    api,
    broker,
    make_stream,
    nats_server,
    pytest_runtest_makereport,
    shared_broker,
    start_broker,
    unique_name,
)
from tests.support.broker_process import ROOT

__all__ = [
    "api",
    "broker",
    "make_stream",
    "nats_server",
    "pytest_runtest_makereport",
    "shared_broker",
    "start_broker",
]

CONNECT_PLUGIN: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic session on `local[2]`, for everybody: whoever changes its settings puts them back."""
    directory = tmp_path_factory.mktemp("spark")
    found = session("tests", "local[2]", **spark_settings(directory))
    yield found
    for query in found.streams.active:
        query.stop()
    found.stop()


def spark_settings(directory: Path) -> dict[str, Any]:
    """Everything that a session writes goes below `directory`; its workers find bascule in this source tree."""
    return {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory} -Djava.io.tmpdir={tempfile.gettempdir()}",
        "spark.plugins": CONNECT_PLUGIN,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": 0,
    }


@pytest.fixture(scope="session")
def connect_url(spark: SparkSession) -> str:
    """Where the session's Java serves Spark Connect."""
    java: Any = spark.sparkContext._jvm
    service = getattr(getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    return f"sc://127.0.0.1:{service.localPort()}"


@pytest.fixture(scope="session")
def connect_spark(connect_url: str) -> Iterator[Any]:
    """A session of Spark Connect on the same Java. Made from Connect's own class: one process may have a classic session besides."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    found = ConnectSession.builder.remote(connect_url).getOrCreate()
    yield found
    found.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a stream that does not exist yet."""
    return unique_name(request.node.name)
