"""Run a broker with NATS, a sample stream, a publisher that uses plain NATS, an archive, and a live view of them.

Nothing is simulated: the broker runs in this process, nats-server as its child, a plain NATS client publishes, and Spark archives
the stream as Parquet.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import bascule
from bascule.broker.broker import RunningBroker, start_broker
from bascule.broker.ending import BrokerEnding
from bascule.broker.main import loop_factory
from bascule.config import load
from bascule.demo.archive import DemoArchive
from bascule.errors import StreamExists, Unavailable
from bascule.exits import run_to_the_end
from bascule.net.listening import take_listening_socket
from bascule.net.nats.link import LinkOptions, NatsLink

STREAM: Final = "orders"
PARTITIONS: Final = 1
REFRESH_SECONDS: Final = 0.5
STARTING: Final = "Spark is starting…"


def main() -> None:
    run_to_the_end(lambda: _run(sys.argv[1:]))


def _run(arguments: list[str]) -> None:
    options = _parse(arguments)
    with _data_directory(options.directory) as directory, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_demo(options, directory))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bascule demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-d", "--directory", type=Path, help="keep the data here, and continue with it on the next run")
    parser.add_argument("--rate", type=int, default=200, help="messages per second")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after this time; 0 runs until Ctrl-C")
    parser.add_argument("--free-ports", action="store_true", help="let the system choose the ports")
    parser.add_argument("--no-spark", action="store_true", help="do not archive the stream with Spark")
    options = parser.parse_args(arguments)
    if not 1 <= options.rate <= 100_000:
        parser.error(f"--rate is {options.rate}, it must be from 1 to 100000")
    return options


@contextlib.contextmanager
def _data_directory(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
        return
    directory = Path(tempfile.mkdtemp(prefix="bascule-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _demo(options: argparse.Namespace, directory: Path) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    if options.seconds:
        asyncio.get_running_loop().call_later(options.seconds, ending.set)
    config = load(
        flags={
            "data.dir": str(directory),
            "listen": f"127.0.0.1:{_port(9292, options.free_ports)}",
            "nats.embedded": True,
            "nats.embedded.port": _port(4222, options.free_ports),
            "clustering.raft.bootstrap.seed": True,
            "cursors.stream.partitions": 1,
            "logging.level": "warn",
        },
        environ={},
    )
    broker = await start_broker(config, BrokerEnding(), take_listening_socket(config.listener.bind()))
    try:
        await _create_stream(str(broker.address))
        archive = None if options.no_spark else DemoArchive(directory.resolve() / "archive" / STREAM, STREAM)
        publisher = asyncio.create_task(_publish(broker.nats_url, options.rate))
        try:
            if archive is not None:
                await archive.start(str(broker.address), directory / "spark")
            await _show(broker, archive, ending)
        finally:
            publisher.cancel()
            await asyncio.wait([publisher])
            if archive is not None:
                await archive.stop()
    finally:
        await broker.stop()


def _port(usual: int, any_free: bool) -> int:
    """The usual port, or 0 (any free port) if it is in use."""
    if any_free:
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", usual))
        except OSError:
            return 0
    return usual


async def _create_stream(address: str) -> None:
    async with bascule.connect(address) as client:
        with contextlib.suppress(StreamExists):
            await client.create_stream(STREAM, STREAM, partitions=PARTITIONS)


async def _publish(url: str, rate: int) -> None:
    """Publish sample orders as plain NATS messages."""
    link = NatsLink(LinkOptions(servers=(url,), name="sample-publisher"))
    await link.connect()
    try:
        number = 0
        while True:
            for _ in range(max(1, rate // 20)):
                number += 1
                order = {
                    "order": number,
                    "item": random.choice(("lamp", "chair", "desk")),
                    "total": random.randint(5, 500),
                }
                with contextlib.suppress(Unavailable):  # the link reconnects by itself
                    link.publish(STREAM.encode(), json.dumps(order).encode())
            await asyncio.sleep(max(1, rate // 20) / rate)
    finally:
        await link.close()


# ── the screen ───────────────────────────────────────────────────────────────────────────────────


async def _show(broker: RunningBroker, archive: DemoArchive | None, ending: asyncio.Event) -> None:
    console = Console()
    console.print(_welcome(broker, archive), highlight=False, markup=False, soft_wrap=True)
    screen = _Screen(broker, archive)
    if not console.is_terminal:
        while not await _ended(ending, REFRESH_SECONDS * 4):
            console.print(screen.line(), highlight=False, markup=False, soft_wrap=True)
        return
    with Live(screen.tables(), console=console, refresh_per_second=4, transient=True) as live:
        while not await _ended(ending, REFRESH_SECONDS):
            live.update(screen.tables())


async def _ended(ending: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ending.wait(), seconds)
    return ending.is_set()


def _welcome(broker: RunningBroker, archive: DemoArchive | None) -> str:
    address = str(broker.address)
    server = "" if address.endswith(":9292") else f" -s {address}"
    return f"""Bascule serves gRPC on {address}, NATS on {broker.nats_url}.
A NATS client publishes to the subject `{STREAM}`; the stream of the same name keeps every message.

Try next, in another terminal:
  .venv/bin/bascule subscribe {STREAM}{server}         replay it, then follow
  .venv/bin/bascule publish {STREAM} hello{server}     publish, and wait for the ack
  .venv/bin/bascule top{server}                      watch it
{"" if archive is None else _welcome_to(archive, server)}
Any NATS client may publish to `{STREAM}`, any Liftbridge client may read it. Ctrl-C ends it all.
"""


def _welcome_to(archive: DemoArchive, server: str) -> str:
    query = f"SELECT from_json(string(value), 'item STRING').item, count(*) FROM {STREAM} GROUP BY ALL"
    return f"""Spark archives the stream to Parquet, each message exactly once. Ask the archive:
  .venv/bin/bascule pipeline sql "{query}" --archive {STREAM}={archive.folder}{server}"""


class _Screen:
    """The live view: the growth of the stream, and the progress of its archive."""

    def __init__(self, broker: RunningBroker, archive: DemoArchive | None) -> None:
        self._broker = broker
        self._archive = archive
        self._seen = (time.monotonic(), 0)
        self._rate = 0.0

    def _measure(self) -> list[tuple[int, int, int, int]]:
        rows = []
        for number in range(PARTITIONS):
            local = self._broker.partitions.get(STREAM, number)
            if local is not None:
                log = local.log
                rows.append((number, log.record_count, log.high_watermark, local.subscriber_count))
        total = sum(row[1] for row in rows)
        now = time.monotonic()
        if now > self._seen[0]:
            self._rate = (total - self._seen[1]) / (now - self._seen[0])
        self._seen = (now, total)
        if self._archive is not None:
            self._archive.look()
        return rows

    def tables(self) -> Group:
        table = _table("stream", "partition", "messages", "high watermark", "subscribers", "messages/s")
        rows = self._measure()
        for number, count, watermark, subscribers in rows:
            table.add_row(STREAM, str(number), f"{count:,}", f"{watermark:,}", str(subscribers), f"{self._rate:,.0f}")
        return Group(table) if self._archive is None else Group(table, "", *self._archive_rows(self._archive, rows))

    def _archive_rows(self, archive: DemoArchive, rows: list[tuple[int, int, int, int]]) -> list[Table | Text]:
        said: list[Table | Text] = []
        if archive.is_up:
            table = _table("Parquet archive", "rows", "rows behind", "files", "bytes", "commits")
            state = archive.state
            numbers = (state.rows, _lag(archive, rows), len(state.files), state.bytes, state.number)
            table.add_row(Text(str(archive.folder)), *(f"{number:,}" for number in numbers))
            said.append(table)
        elif archive.problem is None:
            said.append(Text(STARTING, style="dim"))
        if archive.problem is not None:
            said.append(Text(archive.problem, style="yellow"))
        return said

    def line(self) -> str:
        rows = self._measure()
        messages, subscribers = sum(row[1] for row in rows), sum(row[3] for row in rows)
        text = f"{STREAM}: {messages:,} messages, {self._rate:,.0f} a second, {subscribers} subscribers"
        return text if self._archive is None else f"{text}; {_archive_line(self._archive, rows)}"


def _archive_line(archive: DemoArchive, rows: list[tuple[int, int, int, int]]) -> str:
    if archive.problem is not None:
        return archive.problem
    if not archive.is_up:
        return STARTING
    state = archive.state
    return (
        f"archived: {state.rows:,} rows, {_lag(archive, rows):,} behind, {len(state.files):,} files in {archive.folder}"
    )


def _lag(archive: DemoArchive, rows: list[tuple[int, int, int, int]]) -> int:
    return archive.lag({number: watermark for number, _, watermark, _ in rows})


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for title in numbers:
        table.add_column(title, justify="right")
    return table


if __name__ == "__main__":
    main()
