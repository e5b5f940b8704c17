"""The load generators count right, and rows say what was measured. No numbers are judged here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load_row import RSS_MB_MAX, load_row
from bench.load_tools import Outcome, Running, run, tool
from bench.processes import Process, Usage, start_nats
from bench.report import LoadRow

MESSAGES = 20_000


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[tuple[Process, int]]:
    process, port = start_nats("nats", tmp_path / "nats")
    yield process, port
    process.stop()


def test_every_message_of_a_blast_reaches_the_counter(nats: tuple[Process, int]) -> None:
    _, port = nats
    with Running(
        [tool("nats_load"), "count"], {"port": port, "subject": "a.>", "messages": MESSAGES}, ready=True
    ) as counting:
        sent = run("nats_load", "blast", port=port, subjects="a.1,a.2,a.3", messages=MESSAGES, size=200)
        counted = counting.outcome()
    assert sent.messages == counted.messages == MESSAGES
    assert sent.began <= counted.began <= counted.ended


def test_each_request_has_its_answer_and_a_latency(nats: tuple[Process, int]) -> None:
    process, port = nats
    process.begin()
    with Running([tool("nats_load"), "echo"], {"port": port, "subject": "echo"}, ready=True):
        outcome = run("nats_load", "acked", port=port, subjects="echo", messages=500, size=128, window=1)
    assert (outcome.messages, outcome.failed) == (500, 0)
    assert 0 < outcome.p50_us <= outcome.p99_us
    assert process.usage().rss_bytes_max > 0


def test_a_generator_that_fails_says_why(nats: tuple[Process, int]) -> None:
    _, port = nats
    with pytest.raises(RuntimeError, match="missing"):
        run("nats_load", "blast", port=port)
    with pytest.raises(RuntimeError, match=r"closed the connection|GOAWAY|cannot"):
        run("grpc_load", "subscribe", port=port, streams="a", messages=1)


def row(cpu: float, *, lost: int = 0, rss_mb: float = 100) -> LoadRow:
    outcome = Outcome(began=1.0, ended=3.0, messages=2_000_000, failed=lost, client_cpu=0.1, p50_us=0.0, p99_us=0.0)
    usage = Usage(user=cpu, system=cpu, rss_bytes_max=int(rss_mb * 1e6))
    return load_row("load", "128 B", "system", outcome, usage, cpu_max=0.5)


def test_a_row_is_per_second_and_per_million() -> None:
    made = row(0.4)
    assert (made.messages_per_second, made.user_cpu, made.cpu) == (1_000_000, 0.2, 0.4)


@pytest.mark.parametrize(
    ("made", "met"),
    [(row(0.5), True), (row(0.6), False), (row(0.1, lost=1), False), (row(0.1, rss_mb=RSS_MB_MAX + 1), False)],
    ids=["cheap enough", "too much CPU", "something was lost", "too much memory"],
)
def test_a_target_is_met_when_nothing_is_lost_and_memory_stays_bounded(made: LoadRow, met: bool) -> None:
    assert made.met is met
