"""How a pipeline is: what it has done, as it wrote beside its checkpoint, and how far it is behind, as brokers tell now.

{"name": "big-orders", "running": true, "batches": 12, "messages": 1500, "rows": 700, "last_batch": "2026-11-15T09:30:00Z",
 "sinks": {"stream big": 700}, "dead_letters": 2, "broken": {"has-amount": 2}, "late": 0, "lost": 0,
 "restarts": {"count": 3, "failures": 1, "error": "no broker answers", "next": "2026-11-15T09:31:00Z"},
 "lag": {"offsets": 20, "bytes": 2600, "seconds": 3.2}, "streams": {"orders": {"offsets": 20, …}}}
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from bascule.lake.archive import Archive
from bascule.pipeline.brokers import streams_at
from bascule.pipeline.checkpoint import PipelineCheckpoint
from bascule.pipeline.progress import PipelineProgress
from bascule.pipeline.restarts.loop import Restart, read_restart
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import ArchiveSink
from bascule.pipeline.spec.steps import keeps_state
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.read import cluster
from bascule.spark.read.lag import measure
from bascule.spark.read.offsets import Offsets
from bascule.spark.read.resolve import require, select


def pipeline_status(spec: PipelineSpec) -> dict[str, Any]:
    """Raises Unavailable when no broker answers, CheckpointMismatch for a checkpoint of another pipeline."""
    checkpoint = PipelineCheckpoint.of(spec)
    if checkpoint.exists:
        checkpoint.check(spec)
    progress = PipelineProgress.load(checkpoint.progress_path)
    streams = _lags(spec, checkpoint)
    return {
        "name": spec.name,
        "running": checkpoint.is_held,
        "batches": progress.batches,
        "messages": progress.read,
        "rows": progress.rows,
        "last_batch": _iso(progress.at_ns) if progress.batches else None,
        "sinks": {sink.target: progress.sinks.get(sink.target, 0) for sink in spec.sinks},
        "dead_letters": progress.dead_letters,
        "broken": progress.broken,
        "late": progress.late if any(keeps_state(step) for step in spec.steps) else None,
        "lost": _lost(spec),
        "restarts": _restarts(read_restart(checkpoint.restarts_path)),
        "lag": {
            "offsets": sum(one["offsets"] for one in streams.values()),
            "bytes": sum(one["bytes"] for one in streams.values()),
            "seconds": max((one["seconds"] for one in streams.values()), default=0.0),
        },
        "streams": streams,
    }


def _restarts(last: Restart | None) -> dict[str, Any] | None:
    """`failures` are those in a row; after a batch it is 0, and `error` is empty."""
    if last is None:
        return None
    return {"count": last.restarts, "failures": last.failures, "error": last.error, "next": _iso(last.next_ns)}


def _lost(spec: PipelineSpec) -> int:
    """Offsets that were gone before its archives got them."""
    archives = [Archive(sink.path, dict(sink.storage or {})) for sink in spec.sinks if isinstance(sink, ArchiveSink)]
    return sum(archive.state().lost_offsets for archive in archives if archive.exists)


def _lags(spec: PipelineSpec, checkpoint: PipelineCheckpoint) -> dict[str, dict[str, Any]]:
    streams_at(spec.connection_options())  # fails within seconds if no broker answers
    found: dict[str, dict[str, Any]] = {}
    for number, source in enumerate(spec.inputs):
        options = source_options(spec.source_options(source), STREAMING)
        connection = cluster.connect(options.connection)
        streams = require(options.streams, select(options.streams, connection))
        done = checkpoint.offsets(number)
        position = Offsets() if done is None else Offsets.parse(done)
        lags = measure(position, streams, connection, time.time_ns())
        found |= {name: dict(one["lag"]) for name, one in lags.items()}
    return found


def _iso(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
