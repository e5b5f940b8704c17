"""Metrics of messages in and out over all partitions, and of connections."""

from __future__ import annotations

from bascule import limits
from bascule.broker.metrics.exposition import Page, labels
from bascule.broker.metrics.sources import Sources
from bascule.net.nats.link import NatsLink


def collect(page: Page, sources: Sources) -> None:
    _ingest(page, sources)
    _clients(page, sources)
    for name, link in sources.links.items():
        # On the control link, messages that did not fit into the queue of their handler count as dropped too.
        dropped = sources.bus.messages_dropped if link is sources.bus.link else 0
        _link(page, link, labels(link=name), dropped)
    _control_plane(page, sources)


def _ingest(page: Page, sources: Sources) -> None:
    ingest = sources.data_plane.ingest
    page.add("bascule_ingest_messages_total", ingest.stats.records)
    page.add("bascule_ingest_bytes_total", ingest.stats.bytes)
    page.add("bascule_ingest_batches_total", ingest.stats.batches)
    page.add("bascule_ingest_failed_batches_total", ingest.stats.failed_batches)
    page.add_histogram("bascule_ingest_ack_seconds", ingest.ack_times.leader, '{policy="leader"}')
    page.add_histogram("bascule_ingest_ack_seconds", ingest.ack_times.all, '{policy="all"}')
    page.add("bascule_ingest_pauses_total", ingest.stats.pauses)
    page.add("bascule_ingest_buffered_bytes", ingest.buffered_bytes)
    page.add("bascule_ingest_buffer_bytes_max", limits.INGEST_BUFFER_BYTES_MAX)


def _clients(page: Page, sources: Sources) -> None:
    gate = sources.data_plane.gate
    page.add("bascule_publish_messages_total", gate.published)
    page.add("bascule_publish_unanswered", gate.unanswered)
    page.add("bascule_grpc_connections", len(sources.grpc.connections))
    page.add("bascule_grpc_connections_refused_total", sources.grpc.connections_refused)
    page.add("bascule_grpc_connections_idle_closed_total", sources.grpc.connections_evicted)
    page.add("bascule_grpc_memory_bytes", sources.grpc.memory.used)
    page.add("bascule_grpc_memory_bytes_max", sources.grpc.memory.most)
    if sources.flight_load is not None:
        load = sources.flight_load()
        page.add("bascule_flight_calls", load.calls)
        page.add("bascule_flight_rows_total", load.rows)
        page.add("bascule_flight_bytes_total", load.bytes)
    if sources.http is not None:
        page.add("bascule_http_connections", len(sources.http.connections))
    for status, count in sorted(sources.http.answered.items()) if sources.http is not None else ():
        page.add("bascule_http_responses_total", count, labels(status=status))


def _control_plane(page: Page, sources: Sources) -> None:
    page.add("bascule_security_unauthenticated_control_plane", not sources.channels)
    for name, channel in sources.channels.items():
        stats = channel.stats
        for reason, count in (
            ("unsealed", stats.unsealed),
            ("forged", stats.forged),
            ("unproven", stats.unproven),
            ("replayed", stats.replayed),
        ):
            page.add("bascule_seal_messages_refused_total", count, labels(link=name, reason=reason))
    page.add("bascule_raft_messages_refused_total", sources.controller.messages_refused)


def _link(page: Page, link: NatsLink, of_link: str, dropped: int) -> None:
    reader, stats = link.reader, link.stats
    page.add("bascule_nats_connected", link.connected, of_link)
    page.add("bascule_nats_reconnects_total", stats.reconnects, of_link)
    page.add("bascule_nats_errors_total", stats.errors, of_link)
    page.add("bascule_nats_read_pauses_total", stats.pauses, of_link)
    page.add("bascule_nats_messages_received_total", reader.messages, of_link)
    page.add("bascule_nats_received_bytes_total", reader.message_bytes, of_link)
    page.add("bascule_nats_messages_unknown_total", reader.unknown, of_link)
    page.add("bascule_nats_messages_dropped_total", reader.dropped + dropped, of_link)
    page.add("bascule_nats_publishes_refused_total", stats.publishes_refused, of_link)
    page.add("bascule_nats_discarded_bytes_total", stats.bytes_discarded, of_link)
    page.add("bascule_nats_unsent_bytes", link.unsent, of_link)
