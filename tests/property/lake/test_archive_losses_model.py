"""An archive job that goes on whatever retention takes: every offset is in the archive, or noted as lost, or compaction took it.

Messages come; retention and compaction remove them, before a batch is planned, before its tasks read, and while they read; batches come
again; the checkpoint is lost. The source, the job, its tasks and the proof are the real ones, brokers and Spark are played.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.flight.schema import COLUMNS
from bascule.lake.files import read_file
from bascule.lake.verification import Verification
from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.options.schema import TABLE
from bascule.spark.read import cluster as cluster_module
from bascule.spark.read.stream_reader import StreamReader
from tests.support.memory_cluster import MemoryCluster

CHUNK = 4


class Brokers(MemoryCluster):
    """Reads come in pieces, and anything may happen between them."""

    def __init__(self) -> None:
        super().__init__()
        self.compacted: set[int] = set()
        self.meanwhile: Callable[[], None] = lambda: None

    def read(self, stream: str, partition: int, start: int, end: int, **options: Any) -> Iterator[pa.RecordBatch]:
        for first in range(start, end, CHUNK):
            self.meanwhile()
            for batch in super().read(stream, partition, first, min(end, first + CHUNK), **options):
                there = [at not in self.compacted for at in range(first, min(end, first + CHUNK))]
                yield batch.filter(pa.array(there))

    def tables(self) -> Any:
        """As the proof sees them."""

        def offsets(_: Collection[str]) -> dict[str, Any]:
            log = self.there["orders"]
            return {"orders": {"id": log.id, "partitions": {0: {"log_start": log.partitions[0].log_start}}}}

        def read(stream: str, partition: int, start: int, end: int, columns: Any, *, stream_id: int) -> Any:
            return self.read(stream, partition, start, end, columns=columns or COLUMNS, stream_id=stream_id)

        return SimpleNamespace(offsets=offsets, read=read)


class Frame:
    """As much of a DataFrame as the job uses."""

    dtypes = [(name, "binary" if name == "value" else "any") for name in COLUMNS]  # noqa: RUF012

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches

    def select(self, *_: str) -> Frame:
        return self

    def mapInArrow(self, task: Callable[[Iterator[Any]], Iterator[Any]], _: str) -> Frame:  # noqa: N802
        return Frame(task(iter(self._batches)))

    def collect(self) -> list[Any]:
        rows = [row for batch in self._batches for row in batch.to_pylist()]
        return [SimpleNamespace(asDict=lambda row=row: row) for row in rows]


class World:
    """A stream, an archive of it, and a job that is told to go on whatever is lost."""

    def __init__(self, folder: Path, is_own_query: bool, offsets_max: int) -> None:
        self.brokers = Brokers()
        self.brokers.create("orders")
        self.is_own_query = is_own_query
        source = {"onDataLoss": "skip", "maxOffsetsPerTrigger": str(offsets_max)}
        self.options = ArchiveOptions(
            streams=("orders",), path=str(folder / "lake"), source=source, cursor="", compact_every=3
        )

    def start(self) -> None:
        numbers = SimpleNamespace(range=lambda _, end, *__: Frame([pa.record_batch({"id": [*range(end)]})]))
        self.job = ArchiveJob(numbers, self.options)  # type: ignore[arg-type]
        self.job._is_own_query = self.is_own_query
        self.job.open()
        self.reader = StreamReader(source_options(self.options.source_options(), STREAMING), TABLE)
        self.notes: list[dict[str, Any]] = []

    def lose_the_checkpoint(self) -> None:
        self.job.close()
        shutil.rmtree(self.options.checkpoint_path, ignore_errors=True)
        self.start()

    def remove(self, count: int) -> None:
        log = self.brokers.there["orders"].partitions[0]
        log.log_start = min(log.end, log.log_start + count)

    def compact(self, count: int) -> None:
        """Every third message of the oldest that are not archived: what is in the archive stays there."""
        start = self.brokers.there["orders"].partitions[0].log_start
        archived = max(self.job.archive.state().next_offsets.values(), default=0)
        self.brokers.compacted |= set(range(max(start, archived), start + count, 3))

    def batch(self, step: Step) -> None:
        start = self.notes[-1] if self.notes else self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit())))
        if self.notes and end == self.notes[-1]:
            return
        self.notes.append(end)
        place = self.options.checkpoint_path / "offsets"
        place.mkdir(parents=True, exist_ok=True)
        (place / str(len(self.notes) - 1)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
        takes = iter(step.taken_while_reading)
        self.brokers.meanwhile = lambda: self.remove(next(takes, 0))
        for _ in range(1 + step.comes_again):
            tasks = self.reader.partitions(start, end)
            rows = itertools.chain.from_iterable(self.reader.read(task) for task in tasks)
            self.job.write(Frame(rows), len(self.notes) - 1)  # type: ignore[arg-type]
        self.brokers.meanwhile = lambda: None

    def take(self, step: Step) -> None:
        self.brokers.append("orders", step.published)
        self.remove(step.taken)
        self.compact(step.compacted)
        if step.loses_the_checkpoint:
            self.lose_the_checkpoint()
        self.batch(step)

    # ── what must hold ───────────────────────────────────────────────────────────────────────────

    def check_offsets(self) -> None:
        state = self.job.archive.state()
        for key, end in state.next_offsets.items():
            archived = [
                offset
                for one in state.in_order()
                for batch in read_file(self.job.archive.place, one)
                for offset in batch["offset"].to_pylist()
            ]
            lost = [at for one in state.lost.get(key, []) for at in range(one.start, one.end)]
            assert len(archived) == len(set(archived)) and len(lost) == len(set(lost))
            assert not set(archived) & set(lost)
            assert all(state.began[key] <= at < end for at in (*archived, *lost))
            missing = set(range(state.began[key], end)) - set(archived) - set(lost)
            assert missing <= self.brokers.compacted, "what is in neither was taken by compaction"

    def check_proof(self) -> None:
        report = Verification(self.job.archive, self.brokers.tables(), lambda _: None).run()
        assert report.faults == []
        assert self.brokers.compacted or not any("no longer shows why" in text for text in report.unchecked)


@dataclass(frozen=True, slots=True)
class Step:
    """What happens, and then a batch."""

    published: int
    taken: int
    """By retention, before the batch is planned."""
    taken_while_reading: tuple[int, ...]
    """Before each piece of it is read."""
    compacted: int
    comes_again: bool
    loses_the_checkpoint: bool


steps = st.builds(
    Step,
    published=st.integers(0, 30),
    taken=st.sampled_from([0, 0, 3, 10, 40]),
    taken_while_reading=st.lists(st.sampled_from([0, 0, 2, 7]), max_size=6).map(tuple),
    compacted=st.sampled_from([0, 0, 0, 12]),
    comes_again=st.booleans(),
    loses_the_checkpoint=st.sampled_from([False, False, False, True]),
)


@pytest.mark.parametrize("is_own_query", [True, False])
@settings(max_examples=12, deadline=None)
@given(offsets_max=st.sampled_from([7, 15, 1000]), happens=st.lists(steps, min_size=3, max_size=8))
def test_every_offset_is_archived_or_lost_or_compacted(
    is_own_query: bool, offsets_max: int, happens: list[Step]
) -> None:
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bascule-losses-")))
        world = World(folder, is_own_query, offsets_max)
        for patch in (
            mock.patch.object(cluster_module, "connect", lambda _: world.brokers),
            mock.patch.object(ArchiveOptions, "stream_ids", lambda _: {"orders": 1}),
            mock.patch("os.fsync"),  # nobody loses power here, and disks are slow
            mock.patch.object(ArchiveJob, "_logs", lambda _, names: dict(world.brokers.streams(names))),
        ):
            held.enter_context(patch)
        world.start()
        for step in happens:
            world.take(step)
            world.check_offsets()
        world.check_proof()
        world.job.close()
