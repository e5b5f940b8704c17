"""Whether clients are well served here now: for a load balancer, and for whoever restarts one server after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bascule.broker.metrics.sources import Sources
    from bascule.broker.services import Services

NAMED_MAX: Final = 5
"""Partitions that are named; of more, how many there are."""


def why_not_ready(sources: Sources) -> list[str]:
    """One sentence for each reason; none when the server is ready."""
    services = sources.services
    controller = services.controller
    reasons = [f"NATS is not connected ({name})" for name, link in sources.links.items() if not link.connected]
    if controller.leader is None:
        reasons.append("no controller is known")
    if services.administration.is_draining:
        reasons.append("the server is draining")
    if services.is_cut_off():
        reasons.append("the server is cut off from the others")
    if not services.partitions.has_begun:
        reasons.append("the cluster's metadata has not been read yet")
    else:
        reasons += _not_running(services)
    return reasons


def _not_running(services: Services) -> list[str]:
    """Partitions that this server is to lead and does not."""
    server, partitions = services.server_id, services.partitions
    missing = [
        f"{stream.name}/{partition.id}"
        for stream in services.controller.metadata.streams.values()
        for partition in stream.partitions
        if partition.leader == server and not partition.paused and partitions.led(stream.name, partition.id) is None
    ]
    if not missing:
        return []
    more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    return [f"not led yet: {', '.join(missing[:NAMED_MAX])}{more}"]
