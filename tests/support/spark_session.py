"""A Spark session for tests: two tasks at a time, no web page, no waiting; and a broker that serves tables.

A JVM takes some twenty seconds of CPU to start, so that one session serves all tests of a process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bascule.spark import java
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "America/St_Johns",  # whoever forgets UTC is found
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    java.prepare()
    directory = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("bascule tests")
    for name, value in {
        **SETTINGS,
        "spark.sql.warehouse.dir": str(directory),
        "spark.local.dir": str(directory),
    }.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # py4j leaves the pipes of its gateway to the garbage collector
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with its own NATS that serves tables, for all Spark tests of a process."""
    broker = BrokerProcess(Path(tmp_path_factory.mktemp(unique_name("tables"))), config=TABLES_CONFIG)
    broker.start()
    yield broker
    broker.kill()


TABLES_CONFIG = {"flight.enabled": True, "cursors.stream.partitions": 1, "cursors.stream.auto.pause.time": 0}
