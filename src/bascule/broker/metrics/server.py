"""Metrics of the process and its machine."""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from bascule import __version__
from bascule.broker.metrics.exposition import Page, labels
from bascule.broker.metrics.readiness import why_not_ready
from bascule.broker.metrics.sources import Sources
from bascule.log.disk.space import free_space


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Values from the operating system; None where it has none, as outside Linux."""

    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None
    open_files_max: int
    threads: int | None
    data_free_bytes: int | None
    data_size_bytes: int | None


class Process:
    def __init__(self) -> None:
        self._page_bytes = resource.getpagesize()

    def facts(self, data_directory: str) -> ProcessFacts:
        """Called on a thread, so that a hanging disk delays only the scrape."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        memory = _read("/proc/self/statm").split()
        status = _read("/proc/self/stat").rpartition(")")[2].split()
        space = free_space(data_directory)
        return ProcessFacts(
            cpu_seconds=used.ru_utime + used.ru_stime,
            resident_bytes=int(memory[1]) * self._page_bytes if len(memory) > 1 else None,
            open_files=_count("/proc/self/fd"),
            open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            threads=int(status[17]) if len(status) > 17 else None,
            data_free_bytes=None if space is None else space.free_bytes,
            data_size_bytes=None if space is None else space.size_bytes,
        )


def collect(page: Page, sources: Sources, facts: ProcessFacts) -> None:
    up_seconds = time.monotonic() - sources.life.started
    build = labels(version=__version__, python=platform.python_version(), server=sources.controller.server_id)
    page.add("bascule_build_info", 1, build)
    page.add("bascule_uptime_seconds", round(up_seconds, 3))
    page.add("bascule_ready", not why_not_ready(sources))
    for name in sources.unsafe:
        page.add("bascule_unsafe_setting", 1, labels(setting=name))
    page.add("bascule_draining", sources.life.is_draining)
    if (file := sources.audit.file) is not None:
        page.add("bascule_audit_records_total", file.written)
        page.add("bascule_audit_records_lost_total", file.lost)
    if (stream := sources.audit.stream) is not None:
        page.add("bascule_audit_stream_records_total", stream.written)
        page.add("bascule_audit_stream_records_lost_total", stream.lost)
    page.add("process_start_time_seconds", round(time.time() - up_seconds, 3))
    page.add("process_cpu_seconds_total", round(facts.cpu_seconds, 3))
    for name, value in (
        ("process_resident_memory_bytes", facts.resident_bytes),
        ("process_open_fds", facts.open_files),
        ("process_max_fds", facts.open_files_max),
        ("process_threads", facts.threads),
        ("bascule_data_free_bytes", facts.data_free_bytes),
        ("bascule_data_size_bytes", facts.data_size_bytes),
    ):
        if value is not None:
            page.add(name, value)
    page.add("bascule_disk_full", sources.store.space.is_full())
    page.add("bascule_log_open_files", sources.store.pool.open_count)
    page.add("bascule_log_sync_rounds_total", sources.store.sync_rounds)
    page.add_histogram("bascule_log_sync_seconds", sources.store.pool.sync_seconds)


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _count(path: str) -> int | None:
    try:
        return len(os.listdir(path))  # noqa: PTH208 - as many objects as files otherwise
    except OSError:
        return None
