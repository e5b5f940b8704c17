"""What docs/guides/spark.md shows is run, block after block, in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from tests.spark.conftest import MakeStream, forget
from tests.support.archives import archive_rows
from tests.support.broker_process import BrokerProcess

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "spark.md"


def test_the_guide_does_what_it_says(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    forget(spark, client, "orders", "returns")
    for name in ("orders", "returns"):
        make_stream(name=name)
    client.publish_many("orders", [b'{"id": 1, "item": "lamp", "price": 12.5}', b"oops"], keys=[b"a", b"b"])
    with FlightConnection(tables.address) as connection:
        rows = connection.read("orders", 0, 0, 1)
        archive_rows(tmp_path / "lake" / "archived", connection.offsets(["orders"])["orders"]["id"], rows)
    names = {"spark": spark}
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        code = block.replace("127.0.0.1:9292", tables.address).replace("lake/", f"{tmp_path}/lake/")
        exec(compile(code, str(GUIDE), "exec"), names)
    assert spark.read.parquet(f"{tmp_path}/lake/orders").count() == 2
    assert "12.50" in capfd.readouterr().out
