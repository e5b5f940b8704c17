"""Rows on the screen, to look at while a pipeline is made."""

from __future__ import annotations

from bascule.pipeline.sinks.base import BatchSink, SinkBatch


class ConsoleBatches(BatchSink):
    def __init__(self, rows_max: int) -> None:
        super().__init__("console")
        self._rows_max = rows_max

    def write(self, batch: SinkBatch) -> int:
        if not batch.count:
            return 0
        more = batch.count - self._rows_max
        print(f"batch {batch.id}", flush=True)
        frame = batch.rows.visible
        readable = [
            f"CAST({_quoted(name)} AS STRING) AS {_quoted(name)}" if kind == "binary" else _quoted(name)
            for name, kind in frame.dtypes
        ]
        frame.selectExpr(*readable).show(self._rows_max, truncate=60)
        if more > 0:
            print(f"… and {more} more", flush=True)
        return batch.count


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
