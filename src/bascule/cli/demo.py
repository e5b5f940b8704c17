"""`bascule demo`: a partition log at work. A writer appends, a reader follows, and the screen tells what the disk knows of it."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from bascule.errors import LogClosed, ReaderCancelled
from bascule.log import LogOptions, LogReader, LogStore, PartitionLog, new_batch
from bascule.log.recovery import RecoveryReport

STREAM: Final = "sensors"
BATCHES_PER_SECOND: Final = 100
OPTIONS: Final = LogOptions(segment_bytes_max=16 << 20, retention_bytes_max=256 << 20)


def demo(
    directory: Annotated[Path, typer.Option("--directory", "-d", help="Where the log lives.")] = Path("run/demo"),
    rate: Annotated[int, typer.Option(min=100, max=10_000_000, help="Messages a second.")] = 20_000,
    seconds: Annotated[int, typer.Option(min=0, help="Stop by itself after so long; 0 runs until Ctrl-C.")] = 0,
) -> None:
    """Append to a partition log and follow it. Run it again, or after kill -9: it goes on where it was."""
    with LogStore(directory) as store:
        log = store.log(STREAM, 0, OPTIONS, cleaner_interval_ms=10_000)
        _welcome(log, log.open(), directory)
        stop = threading.Event()
        previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
        try:
            _work(log, rate, seconds, stop)
        finally:
            signal.signal(signal.SIGTERM, previous)
        typer.echo(f"\nstopped cleanly at offset {log.newest_offset}; the next run begins right behind it")


def _welcome(log: PartitionLog, report: RecoveryReport, directory: Path) -> None:
    place = f"{directory}/streams/{STREAM}/0"
    if log.newest_offset < 0:
        typer.echo(f"a new log in {place}")
    else:
        typer.echo(
            f"going on with {log.record_count:,} records, offsets {log.oldest_offset} to {log.newest_offset}, in {place}"
        )
    for line in report.lines():
        typer.echo(f"recovery: {line}")
    if report.verified_bytes:
        typer.echo(f"recovery: verified {report.verified_bytes:,} bytes that were written after the last checkpoint")
    typer.echo("\nwhile this runs, in another terminal:")
    typer.echo(f"  bascule log inspect {place}              what lies on the disk")
    typer.echo(f"  bascule log inspect {place} --records    the records themselves")
    typer.echo(f"  bascule log verify {place}               every checksum, every record")
    typer.echo("  kill -9 $(pgrep -f 'bascule demo')              then run it again: nothing is lost")
    typer.echo("Ctrl-C stops it\n")


class _Follower:
    """Reads what the writer commits and checks that no offset is missing."""

    def __init__(self, log: PartitionLog) -> None:
        self.reader = LogReader(log, log.log_end_offset)
        self.received = 0
        self.gaps = 0
        self.thread = threading.Thread(target=self._run, name="demo-reader")

    def _run(self) -> None:
        expected = self.reader.next_offset
        try:
            while (found := self.reader.read()) is not None:
                self.gaps += found.first_offset != expected
                self.received += found.next_offset - found.first_offset
                expected = found.next_offset
        except (ReaderCancelled, LogClosed):
            return


def _work(log: PartitionLog, rate: int, seconds: int, stop: threading.Event) -> None:
    follower = _Follower(log)
    follower.thread.start()
    writer = threading.Thread(target=_write, args=(log, rate, stop), name="demo-writer")
    writer.start()
    started = time.monotonic()
    try:
        while not stop.wait(1.0) and writer.is_alive():
            _tell(log, follower, time.monotonic() - started)
            if seconds and time.monotonic() - started >= seconds:
                break
    except KeyboardInterrupt:
        pass
    finally:
        stop.set()
        writer.join()
        follower.reader.cancel()
        follower.thread.join()


def _write(log: PartitionLog, rate: int, stop: threading.Event) -> None:
    log.begin_epoch(log.latest_epoch + 1)
    batch, size = new_batch(), rate // BATCHES_PER_SECOND
    next_at = time.monotonic()
    while not stop.is_set():
        batch.clear()
        for index in range(size):
            reading = {"sensor": index % 50, "celsius": round(20 + (index * 37 % 100) / 10, 1), "at": time.time()}
            batch.add(b"sensor-%d" % (index % 50), json.dumps(reading).encode(), subject=b"sensors.readings")
        log.append(batch)
        log.advance_high_watermark(log.newest_offset)
        next_at += 1 / BATCHES_PER_SECOND
        stop.wait(max(0.0, next_at - time.monotonic()))


def _tell(log: PartitionLog, follower: _Follower, seconds: float) -> None:
    cpu = time.process_time()
    typer.echo(
        f"offset {log.newest_offset:>10,}   synced {log.synced_end_offset - 1:>10,}   read {follower.received:>10,}"
        f"   gaps {follower.gaps}   segments {len(log.segments)}   {log.size_bytes / 1e6:8.1f} MB"
        f"   cpu {100 * cpu / max(seconds, 1e-9):3.0f} %"
    )
