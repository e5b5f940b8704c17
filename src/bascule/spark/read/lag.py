"""The lag of a query for its progress report: in offsets, bytes and seconds.

    {"orders": {"0": 120, "1": 45, "id": 17, "lag": {"offsets": 20, "bytes": 2600, "seconds": 3.2}}}

Seconds are the age of the oldest record that was not handed to a batch yet.
"""

from __future__ import annotations

from typing import Any, Final

from bascule.errors import BasculeError
from bascule.spark.read.cluster import Cluster
from bascule.spark.read.offsets import Offsets, StreamOffsets
from bascule.spark.read.plan import Backlog
from bascule.spark.read.state import Streams, StreamState, resume, weighed

PROBES_MAX: Final = 16
"""Partitions whose oldest waiting record is looked at for one report; each is a request."""


def measure(position: Offsets, streams: Streams, cluster: Cluster, now_ns: int) -> dict[str, Any]:
    """The ends of all streams with the lag of a query at `position`."""
    probes = PROBES_MAX
    report: dict[str, Any] = {}
    for name in sorted(streams):
        stream, at = streams[name], position.streams.get(name)
        waiting = {number: _waiting(stream, number, at) for number in sorted(stream.partitions)}
        probed = [number for number, each in waiting.items() if each.count > 0][:probes]
        probes -= len(probed)
        ages = [_age_seconds(stream, number, waiting[number].start, cluster, now_ns) for number in probed]
        report[name] = {
            **{str(number): each.end for number, each in waiting.items()},
            "id": stream.id,
            "lag": {
                "offsets": sum(each.count for each in waiting.values()),
                "bytes": int(sum(each.size_bytes for each in waiting.values())),
                "seconds": max((age for age in ages if age is not None), default=0.0),
            },
        }
    return report


def _waiting(stream: StreamState, number: int, at: StreamOffsets | None) -> Backlog:
    state = stream.partitions[number]
    first = state.first_offset if at is None else resume(state, at.next.get(number, 0))
    return weighed(state, first, max(first, state.end_offset))


def _age_seconds(stream: StreamState, number: int, offset: int, cluster: Cluster, now_ns: int) -> float | None:
    """None when the record cannot be looked at, or compaction has removed it."""
    try:
        batches = list(
            cluster.read(stream.name, number, offset, offset + 1, stream_id=stream.id, columns=("timestamp",))
        )
    except BasculeError:
        return None
    moments = [moment.value for batch in batches for moment in batch.column(0) if moment.value is not None]
    return round(max(0.0, now_ns / 1e9 - moments[0] / 1e6), 3) if moments else None
