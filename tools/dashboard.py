"""deploy/grafana/bascule.json: a Grafana dashboard of the metrics of all brokers, from the table below."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

TITLE: Final = "Bascule"
COLUMNS: Final = 24
HEIGHT: Final = 8
SCHEMA_VERSION: Final = 38
"""Of Grafana 10."""
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """PromQL and legend. `$instance` and `$stream` are the variables of the dashboard."""
    is_number: bool = False
    """One number that should be 0, or 1 if the unit is `bool`; a chart over time otherwise."""


_PARTITION: Final = 'instance=~"$instance", stream=~"$stream"'
_SERVER: Final = 'instance=~"$instance"'


def _rate(metric: str, by: str, where: str = _SERVER) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def _quantile(metric: str, by: str = "") -> str:
    buckets = f"sum by ({', '.join(['le', *by.split()])}) (rate({metric}_bucket{{{_SERVER}}}[$__rate_interval]))"
    return f"histogram_quantile(0.99, {buckets})"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Health": (
        Panel(
            "Servers that are not ready",
            "short",
            (('count(up{job="bascule"} == 0 or bascule_ready == 0) or vector(0)', ""),),
            True,
        ),
        Panel("Partitions without a leader", "short", (("max(bascule_cluster_partitions_leaderless)", ""),), True),
        Panel("Partitions that cannot commit", "short", (("sum(bascule_partitions_below_min_insync)", ""),), True),
        Panel("Under-replicated partitions", "short", (("sum(bascule_partitions_under_replicated)", ""),), True),
        Panel("Failing partitions", "short", (("sum(bascule_partitions_failing)", ""),), True),
        Panel("Servers with a full disk", "short", (("sum(bascule_disk_full)", ""),), True),
    ),
    "Messages": (
        Panel("Stored", "ops", ((_rate("bascule_ingest_messages_total", "instance"), "{{instance}}"),)),
        Panel("Stored", "Bps", ((_rate("bascule_ingest_bytes_total", "instance"), "{{instance}}"),)),
        Panel(
            "Delivered",
            "ops",
            (
                (_rate("bascule_partition_messages_delivered_total", "stream", _PARTITION), "{{stream}}"),
                (_rate("bascule_flight_rows_total", "instance"), "Arrow rows, {{instance}}"),
            ),
        ),
        Panel(
            "Received by stream",
            "ops",
            ((_rate("bascule_partition_messages_received_total", "stream", _PARTITION), "{{stream}}"),),
        ),
        Panel("Time to acks, p99", "s", ((_quantile("bascule_ingest_ack_seconds", "policy"), "{{policy}}"),)),
        Panel(
            "Not stored",
            "ops",
            (
                (_rate("bascule_ingest_failed_batches_total", "instance"), "failed batches, {{instance}}"),
                (_rate("bascule_partition_messages_lost_total", "stream", _PARTITION), "lost, {{stream}}"),
                (_rate("bascule_partition_messages_refused_total", "stream", _PARTITION), "refused, {{stream}}"),
            ),
        ),
    ),
    "Readers": (
        Panel(
            "Lag",
            "short",
            ((f"sum by (cursor, stream) (bascule_cursor_lag_offsets{{{_PARTITION}}})", "{{cursor}} on {{stream}}"),),
        ),
        Panel(
            "Lag",
            "s",
            ((f"max by (cursor, stream) (bascule_cursor_lag_seconds{{{_PARTITION}}})", "{{cursor}} on {{stream}}"),),
        ),
        Panel("Members of groups", "short", (("max by (group) (bascule_group_members)", "{{group}}"),)),
        Panel(
            "Subscriptions",
            "short",
            ((f"sum by (stream) (bascule_partition_subscribers{{{_PARTITION}}})", "{{stream}}"),),
        ),
    ),
    "Logs and disks": (
        Panel(
            "Size of streams, without replicas",
            "bytes",
            (
                (
                    f"sum by (stream) (bascule_partition_size_bytes{{{_PARTITION}}} * on (instance, stream, partition) "
                    "bascule_partition_leader)",
                    "{{stream}}",
                ),
            ),
        ),
        Panel(
            "Free space",
            "percentunit",
            ((f"bascule_data_free_bytes{{{_SERVER}}} / bascule_data_size_bytes{{{_SERVER}}}", "{{instance}}"),),
        ),
        Panel("Time to sync a file, p99", "s", ((_quantile("bascule_log_sync_seconds", "instance"), "{{instance}}"),)),
        Panel(
            "Received and not yet written", "bytes", ((f"bascule_ingest_buffered_bytes{{{_SERVER}}}", "{{instance}}"),)
        ),
    ),
    "Cluster": (
        Panel(
            "Lag of followers",
            "short",
            ((f"max by (stream, replica) (bascule_replica_lag_offsets{{{_PARTITION}}})", "{{stream}} on {{replica}}"),),
        ),
        Panel(
            "Partitions by role",
            "short",
            ((f"sum by (instance, role) (bascule_partitions{{{_SERVER}}})", "{{instance}} {{role}}"),),
        ),
        Panel(
            "Partitions that move",
            "short",
            (
                ("max(bascule_cluster_partitions_moving)", "moving"),
                ("max(bascule_cluster_partitions_paused)", "paused"),
            ),
        ),
        Panel(
            "Term and controller",
            "short",
            (
                (f"bascule_raft_term{{{_SERVER}}}", "term, {{instance}}"),
                (f"bascule_controller{{{_SERVER}}}", "controller, {{instance}}"),
            ),
        ),
    ),
    "Processes": (
        Panel(
            "CPU",
            "percentunit",
            ((_rate("process_cpu_seconds_total", "instance", 'job="bascule", instance=~"$instance"'), "{{instance}}"),),
        ),
        Panel(
            "Memory",
            "bytes",
            (('process_resident_memory_bytes{job="bascule", instance=~"$instance"}', "{{instance}}"),),
        ),
        Panel(
            "NATS: reconnects and errors",
            "ops",
            (
                (_rate("bascule_nats_reconnects_total", "instance"), "reconnects, {{instance}}"),
                (_rate("bascule_nats_errors_total", "instance"), "errors, {{instance}}"),
            ),
        ),
        Panel("gRPC connections", "short", ((f"bascule_grpc_connections{{{_SERVER}}}", "{{instance}}"),)),
    ),
}


def render_dashboard() -> str:
    panels: list[dict[str, Any]] = []
    numbers, top = count(1), 0
    for title, row in ROWS.items():
        panels.append(
            {"id": next(numbers), "type": "row", "title": title, "collapsed": False, "gridPos": _at(0, top, COLUMNS, 1)}
        )
        top += 1
        per_line = 6 if row[0].is_number else 2
        width, height = COLUMNS // per_line, HEIGHT // 2 if row[0].is_number else HEIGHT
        for place, panel in enumerate(row):
            line, column = divmod(place, per_line)
            panels.append(
                {
                    "id": next(numbers),
                    **_panel(panel),
                    "gridPos": _at(column * width, top + line * height, width, height),
                }
            )
        top += -(-len(row) // per_line) * height
    return json.dumps(_dashboard(panels), indent=2) + "\n"


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": _SOURCE,
            "expr": expression,
            "legendFormat": legend,
            "range": True,
        }
        for place, (expression, legend) in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.is_number:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }


def _dashboard(panels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": TITLE,
        "uid": "bascule",
        "tags": ["bascule", "nats"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _variable("instance", 'label_values(up{job="bascule"}, instance)', "Server"),
                _variable("stream", "label_values(bascule_partition_leader, stream)", "Stream"),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, query: str, label: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": label,
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
