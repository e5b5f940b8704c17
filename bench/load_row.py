"""A row of the load table from what a generator said and what the server used."""

from __future__ import annotations

from bench.load_tools import Outcome
from bench.processes import Usage
from bench.report import LoadRow

RSS_MB_MAX = 512.0
"""What a broker may have resident under any load here: its ingest buffer at its bound, the batches it keeps for reuse, and the rest."""


def load_row(
    load: str,
    conditions: str,
    system: str,
    outcome: Outcome,
    usage: Usage,
    *,
    seconds: float | None = None,
    lost: int = 0,
    cpu_max: float | None = None,
    latency: bool = False,
) -> LoadRow:
    """What was lost counts neither for the rate nor for the CPU.

    `cpu_max` is the target in CPU seconds per million; with one, nothing may be lost and memory has to stay within its bound.
    """
    lost += outcome.failed
    millions = max(1, outcome.messages - lost) / 1e6
    rss_mb = usage.rss_bytes_max / 1e6
    met = None if cpu_max is None else usage.cpu / millions <= cpu_max and not lost and rss_mb <= RSS_MB_MAX
    return LoadRow(
        load=load,
        conditions=conditions,
        system=system,
        messages_per_second=millions * 1e6 / (seconds or outcome.seconds),
        user_cpu=usage.user / millions,
        system_cpu=usage.system / millions,
        rss_mb_max=rss_mb,
        p50_us=outcome.p50_us if latency else None,
        p99_us=outcome.p99_us if latency else None,
        lost=lost,
        target=None if cpu_max is None else f"≤ {cpu_max:g} CPU-s/M",
        met=met,
    )
