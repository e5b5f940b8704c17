"""The Python of the guide to tables runs, from top to bottom: pyarrow, pandas, Polars, DuckDB, plain Arrow Flight."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from bascule.client.arrow.reader import FlightConnection
from tests.support.archives import archive_rows
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess, clean_environ
from tests.support.tables import SERVING

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "tables.md"
_BLOCK = re.compile(r"^<!-- not run -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_guide_to_tables_does_what_it_says(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(dict(SERVING), embedded=True)
    environ = clean_environ({"PYTHONPATH": os.pathsep.join(sys.path)})
    said = []
    for code in _BLOCK.findall(GUIDE.read_text("utf-8")):
        # readers have an address by default, which is another broker's here
        code = code.replace("127.0.0.1:9292", broker.address).replace("127.0.0.1:9294", broker.flight_address)
        code = code.replace("/lake/", f"{tmp_path}/lake/")
        code = re.sub(r'read_table\("sales"', f'read_table("sales", servers="{broker.address}"', code)
        result = subprocess.run(
            [sys.executable, "-"],
            input=code,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert result.returncode == 0, f"{code}\n{result.stdout}\n{result.stderr}"
        assert result.stdout, f"a block that prints nothing shows nothing:\n{code}"
        said.append(result.stdout)
        if len(said) == 1:
            _archive(broker, tmp_path / "lake" / "sales")
    assert "1000 rows," in said[0]
    assert any("rows in the file" in text for text in said)
    assert any("1000 rows of archive and log" in text for text in said)
    assert len(said) >= 13


def _archive(broker: BrokerProcess, path: Path) -> None:
    """The first half of each partition."""
    with FlightConnection(broker.address) as connection:
        stream = connection.offsets(["sales"])["sales"]
        for number, ends in stream["partitions"].items():
            archive_rows(path, stream["id"], connection.read("sales", number, 0, ends["high_watermark"] // 2))
