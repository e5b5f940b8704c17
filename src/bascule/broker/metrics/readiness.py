"""Whether this server can serve clients now: for load balancers and rolling restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bascule.broker.metrics.sources import Sources

NAMED_MAX: Final = 5
"""Partitions that a reason names; the others are counted."""


def why_not_ready(sources: Sources) -> list[str]:
    """One sentence for each reason; none when the server is ready."""
    reasons = [f"NATS is not connected ({name})" for name, link in sources.links.items() if not link.connected]
    if sources.controller.leader is None:
        reasons.append("no controller is known")
    if sources.life.is_draining:
        reasons.append("the server is draining")
    if sources.store.space.is_full():
        reasons.append("the disk is full: partitions on this server refuse messages")
    if sources.data_plane.is_cut_off:
        reasons.append("the server is cut off from the others")
    if not sources.data_plane.partitions.has_begun:
        reasons.append("the cluster's metadata has not been read yet")
    else:
        reasons += _not_running(sources)
    return reasons


def _not_running(sources: Sources) -> list[str]:
    """Partitions that this server should lead and does not."""
    server, partitions = sources.controller.server_id, sources.data_plane.partitions
    missing = [
        f"{stream.name}/{partition.id}"
        for stream in sources.controller.metadata.streams.values()
        for partition in stream.partitions
        if partition.leader == server and not partition.paused and partitions.led(stream.name, partition.id) is None
    ]
    if not missing:
        return []
    more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    return [f"not led yet: {', '.join(missing[:NAMED_MAX])}{more}"]
