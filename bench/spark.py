"""Streams in Spark, beside what Spark does on its own: the same rows in Parquet, and in record batches that lie ready in memory.

Every comparison alternates within one run, in one Spark of two tasks: other work on the machine hits both sides alike. CPU is that of
all processes that have a part in it: the JVM, its Python workers, the broker.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bascule import blocking
from bascule.client.arrow.reader import FlightConnection
from bench.load_tools import run
from bench.processes import TICKS
from bench.report import LoadRow, Row, at_least, measured
from bench.systems import Broker, Streams, Systems

SIZE: Final = 128
MESSAGES: Final = 2_000_000
ROUNDS: Final = 5
ARCHIVE_ROUNDS: Final = 3
PARTITIONS: Final = 2
SCALING: Final = (1, 2, 4)
FRESH_SECONDS: Final = 12.0
FRESH_EACH_SECONDS: Final = 0.05
PARQUET_MIN: Final = 0.7
READY_MADE_MIN: Final = 0.9
ARCHIVE_MIN: Final = 0.8
HISTORY_MIN: Final = 0.9


def rows(systems: Systems) -> Iterator[Row | LoadRow]:
    broker = systems.brokers[0]
    messages = systems.messages(MESSAGES)
    with tempfile.TemporaryDirectory(prefix="bascule-bench-spark-") as name, _spark(Path(name)) as spark:
        bench = Bench(spark, broker, Path(name), ROUNDS if not systems.quick else 1)
        with broker.streams(1, PARTITIONS) as streams:
            bench.fill(streams, messages)
            yield from bench.reads(streams.names[0], messages)
            yield from bench.archives(streams.names[0], messages)
            yield from bench.histories(streams.names[0], messages)
            yield bench.replays(streams.names[0], messages)
        yield from bench.scaling(messages)
        yield from bench.freshness(FRESH_SECONDS if not systems.quick else 3.0)


@contextlib.contextmanager
def _spark(directory: Path) -> Iterator[Any]:
    from bascule.spark import session

    os.environ["PYTHONPATH"] = ":".join([str(Path(__file__).resolve().parent.parent), *filter(None, sys.path)])
    conf = {"spark.local.dir": directory / "spark", "spark.sql.warehouse.dir": directory / "warehouse"}
    found = session("bascule bench", "local[2]", **conf)
    try:
        yield found
    finally:
        found.stop()


@dataclass(slots=True)
class Measured:
    """Of one way to do something: how long each round took, and what CPU."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Bench:
    def __init__(self, spark: Any, broker: Broker, directory: Path, rounds: int) -> None:
        self._spark = spark
        self._broker = broker
        self._directory = directory
        self._rounds = rounds
        self._servers = f"127.0.0.1:{broker.port}"

    def fill(self, streams: Streams, messages: int) -> None:
        run("nats_load", "blast", port=self._broker.nats_port, subjects=streams.subjects, messages=messages, size=SIZE)
        stored, _ = self._broker.await_stored(streams, messages)
        if stored != messages:
            raise RuntimeError(f"{self._broker.name} stored {stored:,} of {messages:,} messages")

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def reads(self, stream: str, messages: int) -> Iterator[Row]:
        ready, parquet = self._directory / "ready", self._directory / "parquet"
        self._copy(stream, ready)
        self._stream(stream).write.parquet(str(parquet))
        from bench.spark_ready import ReadyMade
        from bench.spark_wire import WireSource

        self._spark.dataSource.register(ReadyMade)
        self._spark.dataSource.register(WireSource)
        ways = {
            "stream": lambda: _all_of(self._stream(stream)),
            "stream over Flight": lambda: _all_of(self._stream(stream, "bascule-wire")),
            "Parquet": lambda: _all_of(self._spark.read.parquet(str(parquet))),
            "ready-made Arrow": lambda: _all_of(self._spark.read.format("ready-made").load(str(ready))),
        }
        found = self._alternate(ways, self._rounds)
        conditions = f"{messages:,} rows of {SIZE} B, {PARTITIONS} partitions, local[2], all columns"
        for name, one in found.items():
            yield measured(f"Spark read, {name}", messages / one.median, "rows/s", conditions)
        for name, one in found.items():
            cpu = statistics.median(one.cpu) / messages * 1e6
            yield measured(f"Spark read, {name}: CPU of all processes", cpu, "s/M rows", conditions)
        yield at_least("Spark read: of Parquet's rows/s", _ratio(found, "Parquet"), "×", conditions, PARQUET_MIN)
        ratio = _ratio(found, "ready-made Arrow")
        yield at_least("Spark read: of ready-made Arrow's rows/s", ratio, "×", conditions, READY_MADE_MIN)
        ratio = _ratio(found, "ready-made Arrow", "stream over Flight")
        yield measured("Spark read over Flight: of ready-made Arrow's rows/s", ratio, "×", conditions)

    def _stream(self, stream: str, source: str = "bascule", **options: Any) -> Any:
        return self._spark.read.format(source).options(servers=self._servers, stream=stream, **options).load()

    def _copy(self, stream: str, ready: Path) -> None:
        """The same rows in the schema that Spark wants, as files that are mapped into memory."""
        import pyarrow as pa

        from bascule.spark.options.schema import TABLE, arrow_schema

        ready.mkdir()
        with FlightConnection(self._servers) as tables:
            for number in tables.offsets([stream])[stream]["partitions"]:
                with pa.ipc.new_file(str(ready / f"{number}.arrow"), arrow_schema(TABLE)) as writer:
                    for batch in tables.read(stream, number):
                        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=arrow_schema(TABLE)))

    def _alternate(self, ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Measured]:
        """One after the other, again and again; the first round warms the JVM up and does not count."""
        found = {name: Measured() for name in ways}
        for number in range(rounds + 1):
            for name, act in ways.items():
                cpu, begun = self._cpu(), time.monotonic()
                said = act()
                seconds = said if isinstance(said, float) else time.monotonic() - begun
                if number:
                    found[name].seconds.append(seconds)
                    found[name].cpu.append(self._cpu() - cpu)
        return found

    def _cpu(self) -> float:
        """Of the JVM, what it has started, and the broker, so far."""
        java = self._spark.sparkContext._gateway.proc.pid
        return sum(_cpu_of(pid) for pid in (java, *_descendants(java), self._broker.process.pid))

    # ── archiving ────────────────────────────────────────────────────────────────────────────────

    def archives(self, stream: str, messages: int) -> Iterator[Row]:
        parquet = self._directory / "parquet"
        ways = {"stream": lambda: self._archive(stream), "Parquet": lambda: self._rewrite(parquet)}
        found = self._alternate(ways, min(self._rounds, ARCHIVE_ROUNDS))
        conditions = f"{messages:,} rows of {SIZE} B, {PARTITIONS} partitions, local[2], zstd; time of the batches"
        yield measured("Archive", messages / found["stream"].median, "rows/s", conditions)
        yield measured("Parquet to Parquet", messages / found["Parquet"].median, "rows/s", conditions)
        for name, title in (("stream", "Archive"), ("Parquet", "Parquet to Parquet")):
            cpu = statistics.median(found[name].cpu) / messages * 1e6
            yield measured(f"{title}: CPU of all processes", cpu, "s/M rows", conditions)
        yield at_least("Archive: of Parquet to Parquet", _ratio(found, "Parquet"), "×", conditions, ARCHIVE_MIN)

    def _archive(self, stream: str) -> float:
        """A whole archive; the seconds of its batches, without the start of the query."""
        from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions

        path = self._directory / "archive"
        shutil.rmtree(path, ignore_errors=True)
        job = ArchiveJob(
            self._spark, ArchiveOptions(streams=(stream,), path=str(path), servers=self._servers, cursor="")
        )
        job.open()
        try:
            query = job.start(once=True)
            query.awaitTermination()
            return sum(float(one.durationMs["triggerExecution"]) for one in query.recentProgress) / 1000
        finally:
            job.close()

    def _rewrite(self, parquet: Path) -> None:
        frame = self._spark.read.parquet(str(parquet))
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(self._directory / "copy"))

    # ── reading what is archived ─────────────────────────────────────────────────────────────────

    def histories(self, stream: str, messages: int) -> Iterator[Row]:
        """The whole stream out of its archive: through `bascule.spark.table`, and through the source, which reads files in Python."""
        import bascule.spark

        parquet, archive = self._directory / "parquet", str(self._directory / "archive")
        ways = {
            "table": lambda: _all_of(bascule.spark.table(self._spark, stream, history=archive, servers=self._servers)),
            "source": lambda: _all_of(self._stream(stream, history=archive)),
            "Parquet": lambda: _all_of(self._spark.read.parquet(str(parquet))),
        }
        found = self._alternate(ways, self._rounds)
        conditions = f"{messages:,} rows of {SIZE} B, {PARTITIONS} partitions, local[2], all columns"
        for name, one in found.items():
            yield measured(f"Spark history, {name}", messages / one.median, "rows/s", conditions)
            cpu = statistics.median(one.cpu) / messages * 1e6
            yield measured(f"Spark history, {name}: CPU of all processes", cpu, "s/M rows", conditions)
        ratio = _ratio(found, "Parquet", "table")
        yield at_least("Spark history: table, of Parquet's rows/s", ratio, "×", conditions, HISTORY_MIN)
        yield measured(
            "Spark history: source, of Parquet's rows/s", _ratio(found, "Parquet", "source"), "×", conditions
        )

    # ── replaying ────────────────────────────────────────────────────────────────────────────────

    def replays(self, stream: str, messages: int) -> Row:
        from bascule.pipeline.jobs.replay import Replay, ReplayOptions
        from bascule.pipeline.jobs.replay_source import LogSource

        target = f"{stream}-again"
        with FlightConnection(self._servers) as tables, blocking.connect(self._servers) as client:
            cpu, begun = time.process_time(), time.monotonic()
            broker_cpu = _cpu_of(self._broker.process.pid)
            report = Replay(client, tables, LogSource(tables, stream), ReplayOptions(target=target, create=True)).run()
            seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
            broker_cpu = _cpu_of(self._broker.process.pid) - broker_cpu
            client.delete_stream(target)
        millions = report.messages / 1e6
        conditions = (
            f"{SIZE} B, {PARTITIONS} partitions; CPU-s/M: here {cpu / millions:.2f}, broker {broker_cpu / millions:.2f}"
        )
        return measured("Replay of a stream into another", messages / seconds, "rows/s", conditions)

    # ── more partitions ──────────────────────────────────────────────────────────────────────────

    def scaling(self, messages: int) -> Iterator[Row]:
        with contextlib.ExitStack() as stack:
            ways: dict[str, Callable[[], object]] = {}
            for count in SCALING:
                streams = stack.enter_context(self._broker.streams(1, count))
                self.fill(streams, messages)
                frame = self._stream(streams.names[0])
                ways[f"{count}"] = lambda frame=frame: _all_of(frame)  # type: ignore[misc]
            found = self._alternate(ways, min(self._rounds, 3))
        for partitions, one in found.items():
            conditions = f"{messages:,} rows of {SIZE} B, local[2]"
            yield measured(f"Spark read, partitions: {partitions}", messages / one.median, "rows/s", conditions)

    # ── freshness ────────────────────────────────────────────────────────────────────────────────

    def freshness(self, seconds: float) -> Iterator[Row]:
        """From a publish until its row is in a Parquet file that a commit names, with an archive that runs as fast as it can."""
        with self._broker.streams(1) as streams:
            waits = sorted(_fresh(self._spark, self._servers, streams.names[0], self._directory / "fresh", seconds))
        conditions = f"{len(waits)} messages, one each {FRESH_EACH_SECONDS * 1000:g} ms, archive without a pause"
        yield measured("Freshness: publish to committed Parquet, p50", waits[len(waits) // 2] * 1000, "ms", conditions)
        yield measured(
            "Freshness: publish to committed Parquet, p99", waits[int(len(waits) * 0.99)] * 1000, "ms", conditions
        )


def _fresh(spark: Any, servers: str, stream: str, path: Path, seconds: float) -> list[float]:
    from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions

    committed: list[tuple[int, float]] = []

    def note(commit: Any) -> None:
        committed.extend((one.end, time.monotonic()) for one in commit.covered)

    options = ArchiveOptions(streams=(stream,), path=str(path), servers=servers, trigger_seconds=0.001, cursor="")
    job = ArchiveJob(spark, options, note)
    job.open()
    published: list[float] = []
    try:
        query = job.start()
        with blocking.connect(servers) as client:
            client.publish(stream, b"first")  # whose batch is slow: everything is done for the first time
            _until(lambda: bool(committed), 60)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                published.append(time.monotonic())
                client.publish(stream, b"x" * SIZE)
                time.sleep(max(0.0, published[-1] + FRESH_EACH_SECONDS - time.monotonic()))
            _until(lambda: committed[-1][0] > len(published), 60)
        query.stop()
    finally:
        job.close()
    return [
        next(at for end, at in committed if end > offset) - begun for offset, begun in enumerate(published, start=1)
    ]


def _until(is_true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    waiting = threading.Event()
    while not is_true():
        if time.monotonic() > deadline:
            raise RuntimeError("the archive does not go on")
        waiting.wait(0.01)


def _all_of(frame: Any) -> None:
    """Every row and column, into nothing."""
    frame.write.format("noop").mode("overwrite").save()


def _ratio(found: dict[str, Measured], baseline: str, way: str = "stream") -> float:
    """Of the stream's rows in a second to the baseline's: the median over rounds, of which each had the same neighbours."""
    pairs = zip(found[way].seconds, found[baseline].seconds, strict=True)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def _cpu_of(pid: int) -> float:
    """Seconds, with those of children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(fields[place]) for place in (11, 12, 13, 14)) / TICKS
