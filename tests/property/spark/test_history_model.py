"""A query over archive and log while both change: whatever happens in whatever order, it reads every message once and in order.

Messages come; they are archived, but not always at once; retention removes what is archived; the archive is compacted; triggers read
with any limit; the query is started anew, its last batch repeated or not. What is planned may run much later than it was planned.
"""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyspark.sql.types import LongType, StructField, StructType

from bascule.lake.archive import Archive
from bascule.spark.options.declaration import BATCH, STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.read import cluster as cluster_module
from bascule.spark.read.batch_reader import BatchReader, ReadTask
from bascule.spark.read.stream_reader import StreamReader
from tests.support.archives import archive_offsets, compact
from tests.support.memory_cluster import MemoryCluster

OFFSETS = StructType([StructField("offset", LongType())])
counts = st.integers(1, 30)


class Reading(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="bascule-history-"))
        self.lake = self.folder / "lake"
        self.cluster = MemoryCluster()
        self.patch = mock.patch.object(cluster_module, "connect", lambda _: self.cluster)
        self.patch.start()
        self.cluster.create("orders")
        self.archived = 0
        self.log: list[dict[str, Any]] = []
        self.rows: list[int] = []

    @initialize(
        offsets_max=st.one_of(st.integers(1, 15), st.none()),
        bytes_max=st.one_of(st.none(), st.integers(1, 8_000)),
        tasks_min=st.one_of(st.none(), st.integers(2, 5)),
        first=st.integers(20, 60),
        archived=st.lists(counts, max_size=3),
    )
    def begin(
        self, offsets_max: int | None, bytes_max: int | None, tasks_min: int | None, first: int, archived: list[int]
    ) -> None:
        wanted = {"maxOffsetsPerTrigger": offsets_max, "maxBytesPerTrigger": bytes_max, "minPartitions": tasks_min}
        self.options = {name: str(value) for name, value in wanted.items() if value is not None}
        Archive(self.lake).create(["orders"])
        self.start()
        self.publish(first)
        for count in archived:
            self.archive(count)

    def start(self) -> None:
        place = {"stream": "orders", "history": str(self.lake), "onDataLoss": "archive"}
        given = {**place, "startingOffsets": "earliest", **self.options}
        self.reader = StreamReader(source_options(given, STREAMING), OFFSETS)
        self.batch = BatchReader(source_options(place, BATCH), OFFSETS)

    @property
    def log_end(self) -> int:
        return self.cluster.there["orders"].partitions[0].end

    # ── what happens to the stream ───────────────────────────────────────────────────────────────

    @rule(count=counts)
    def publish(self, count: int) -> None:
        self.cluster.append("orders", count)

    @rule(count=counts)
    def archive(self, count: int) -> None:
        end = min(self.log_end, self.archived + count)
        if self.archived == end:
            return
        archive_offsets(self.lake, self.cluster, "orders", self.archived, end)
        self.archived = end

    @rule(count=counts)
    def remove(self, count: int) -> None:
        """Retention that takes nothing that was not archived."""
        log = self.cluster.there["orders"].partitions[0]
        log.log_start = min(self.archived, log.log_start + count)

    @rule()
    def compact(self) -> None:
        if self.archived > 0:
            compact(self.lake)

    # ── what the query does ──────────────────────────────────────────────────────────────────────

    @rule(
        meanwhile=st.lists(
            st.sampled_from(["compact", "remove", "archive", "publish", "restart"]), min_size=1, max_size=5
        ),
        count=counts,
    )
    def trigger(self, meanwhile: list[str], count: int) -> None:
        """A batch, and what happens between its planning and its reading."""
        start = self.log[-1] if self.log else self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit())))
        if self.log and end == self.log[-1]:
            return
        self.log.append(end)
        tasks = self.reader.partitions(start, end)
        for name in meanwhile:
            if name == "restart":
                tasks = self.repeat(tasks)
            elif name == "compact":
                self.compact()
            else:
                getattr(self, name)(count)
        for task in pickle.loads(pickle.dumps(tasks)):
            for found in self.reader.read(task):
                self.rows += found["offset"].to_pylist()

    def repeat(self, tasks: list[ReadTask]) -> list[ReadTask]:
        """The driver dies with a batch in the offset log that has not run: it is planned again, and cut as before."""
        self.start()
        before = self.log[-2] if len(self.log) > 1 else self.reader.initialOffset()
        again = self.reader.partitions(before, self.log[-1])
        assert cuts(again) == cuts(tasks)
        return again

    @rule()
    def read_in_batch(self) -> None:
        self.start()
        tasks = pickle.loads(pickle.dumps(self.batch.partitions()))
        found = [offset for task in tasks for rows in self.batch.read(task) for offset in rows["offset"].to_pylist()]
        assert found == list(range(self.log_end))

    @invariant()
    def every_message_once_and_in_order(self) -> None:
        assert self.rows == list(range(len(self.rows)))
        if self.log:
            assert len(self.rows) == self.log[-1]["orders"]["0"]

    def teardown(self) -> None:
        self.patch.stop()
        shutil.rmtree(self.folder)


def cuts(tasks: list[ReadTask]) -> list[list[tuple[int, int]]]:
    return [[(one.start, one.end) for one in task.ranges] for task in tasks]


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
