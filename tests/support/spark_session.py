"""A Spark session for tests: two tasks at a time, no web page, no waiting; and a broker that serves tables.

A JVM takes some twenty seconds of CPU to start, so that one session serves all tests of a process.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bascule.spark import java, session
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.quick_programs import spark_python
from tests.support.spark_classes import SERVING_CONNECT

SETTINGS: dict[str, Any] = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "America/St_Johns",  # whoever forgets UTC is found
    "spark.sql.streaming.pollingDelay": "20ms",
    **SERVING_CONNECT,
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    directory = tmp_path_factory.mktemp("spark")
    places: dict[str, Any] = {"spark.sql.warehouse.dir": directory, "spark.local.dir": directory}
    with warnings.catch_warnings():
        # py4j leaves the pipes of its gateway to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(spark_python(directory)))
            found = session("bascule tests", "local[2]", **SETTINGS, **places)
        java.prepare()  # what tests start themselves gets the usual Python
        yield found
        found.stop()


@pytest.fixture(scope="session")
def connect_url(spark: SparkSession) -> str:
    """Where the session's Java serves Spark Connect."""
    java: Any = spark.sparkContext._jvm
    service = getattr(getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    return f"sc://127.0.0.1:{service.localPort()}"


@pytest.fixture(scope="session")
def connect_spark(connect_url: str) -> Iterator[Any]:
    """A session of Spark Connect. Made from Connect's own class: the usual way refuses a process that has a classic session."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    found = ConnectSession.builder.remote(connect_url).getOrCreate()
    yield found
    found.stop()


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with its own NATS that serves tables, for all Spark tests of a process."""
    broker = BrokerProcess(Path(tmp_path_factory.mktemp(unique_name("tables"))), config=TABLES_CONFIG)
    broker.start()
    yield broker
    broker.kill()


TABLES_CONFIG = {"flight.enabled": True, "cursors.stream.partitions": 1, "cursors.stream.auto.pause.time": 0}
