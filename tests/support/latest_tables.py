"""Histories of messages, a table of their latest ones that is written without Spark, and what it must hold: a dict."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from bascule.flight.schema import table_schema
from bascule.lake.latest.bucket import BucketTask
from bascule.lake.latest.merge import DELETED
from bascule.lake.latest.table import read_latest
from bascule.lake.latest.writer import LatestWriter

STREAM = "orders"
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Message:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    seconds: int
    epoch: int = 1

    @property
    def order(self) -> tuple[Any, ...]:
        return self.seconds, self.epoch, self.offset, STREAM, self.partition

    def row(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "value": self.value,
            "stream": STREAM,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": BEGIN + timedelta(seconds=self.seconds),
            "subject": STREAM,
            "replySubject": None,
            "headers": [("n", b"%d" % self.offset)],
            "leaderEpoch": self.epoch,
        }


def table_of(messages: Sequence[Message]) -> pa.Table:
    """A batch as tasks get it."""
    rows = pa.Table.from_pylist([message.row() for message in messages], table_schema())
    return rows.append_column(DELETED, pa.array([message.value is None for message in messages], pa.bool_()))


def latest(messages: Iterable[Message]) -> dict[Any, Message]:
    """The model: by key, or by place where there is none."""
    found: dict[Any, Message] = {}
    for message in messages:
        key = ("key", message.key) if message.key is not None else (message.partition, message.offset)
        if key not in found or message.order > found[key].order:
            found[key] = message
    return {key: message for key, message in found.items() if message.value is not None}


def places(messages: Iterable[Message]) -> list[tuple[Any, ...]]:
    return sorted((one.partition, one.offset, one.key or b"", one.value) for one in messages)


def stored(path: Path) -> list[tuple[Any, ...]]:
    rows = read_latest(path).to_pylist()
    return sorted((row["partition"], row["offset"], row["key"] or b"", row["value"]) for row in rows)


class Table:
    """Written as the job writes it, but by this process: a batch is cut into buckets, merged, and committed."""

    def __init__(self, path: Path, writer: LatestWriter, task_class: type[BucketTask] = BucketTask) -> None:
        self.path = path
        self.writer = writer
        self._task_class = task_class

    @classmethod
    def opened(cls, path: Path, task_class: type[BucketTask] = BucketTask, **options: Any) -> Table:
        writer = LatestWriter(str(path), **{"buckets": 3, **options})
        writer.open([STREAM], "key")
        return cls(path, writer, task_class)

    def write(self, messages: Sequence[Message], batch: int = 0) -> bool:
        """Whether it changed the table."""
        task = self.writer.task(table_schema(), "key")
        task = self._task_class(*(getattr(task, name) for name in BucketTask.__slots__))
        by_bucket: dict[int, list[Message]] = {}
        for message in messages:
            text = message.key if message.key is not None else b"%d/%d" % (message.partition, message.offset)
            by_bucket.setdefault(zlib.crc32(text) % self.writer.buckets, []).append(message)
        merged = [task.merge(number, table_of(some)) for number, some in by_bucket.items()]
        return self.writer.commit(merged, batch, {STREAM: 7}, table_schema()) is not None

    def close(self) -> None:
        self.writer.close()
