"""The alert rules and the dashboard of deploy/ ask for metrics and labels that brokers serve, and alerts fire when they should."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bascule.broker.metrics.catalogue import METRICS
from tests.support.promtool import promtool

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "deploy" / "prometheus" / "bascule-alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "bascule.json"
OF_PROMETHEUS = {"instance", "job", "le"}

LABELS = {name: {*metric.labels, *OF_PROMETHEUS} for metric in METRICS for name in (metric.name, *metric.series)}


def alert_rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]
    return rules


def dashboard_expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m")


EXPRESSIONS = [*(rule["expr"] for rule in alert_rules()), *dashboard_expressions()]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_metrics_and_labels_that_brokers_serve(expression: str) -> None:
    metrics = re.findall(r"\b(?:bascule|process)_\w+", expression)
    assert metrics or "up" in expression
    assert set(metrics) - LABELS.keys() == set()
    for metric, matchers in re.findall(r"\b((?:bascule|process)_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)(?:=~|!=|!~|=)\"", matchers)) <= LABELS[metric]
    known = set().union(*(LABELS[metric] for metric in metrics), OF_PROMETHEUS)
    for grouped in re.findall(r"\b(?:by|on|without|group_left)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",") if label.strip()} <= known


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(set(names)) == len(names)
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description"}
        unknown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) - set().union(*LABELS.values())
        assert not unknown


def test_the_guide_lists_every_alert() -> None:
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text("utf-8")
    assert set(re.findall(r"`(Bascule\w+)`", guide)) == {rule["alert"] for rule in alert_rules()}


SERIES_THAT_FIRE = {
    "BasculeNotReady": ['bascule_ready{instance="a"} 0x20'],
    "BasculePartitionsWithoutLeader": ["bascule_cluster_partitions_leaderless 2x20"],
    "BasculeNoController": ['bascule_controller_known{instance="a"} 0x20'],
    "BasculeReplicasMissing": ['bascule_partitions_under_replicated{instance="a"} 1x20'],
    "BasculeTooFewReplicasForAcks": ['bascule_partitions_below_min_insync{instance="a"} 3x20'],
    "BasculePartitionsFailing": ['bascule_partitions_failing{instance="a"} 1x20'],
    "BasculeReaderBehind": ['bascule_cursor_lag_seconds{cursor="c", stream="s", partition="0"} 700x20'],
    "BasculeReaderLostMessages": [
        'bascule_cursor_offset{instance="a", cursor="c", stream="s", partition="0"} 10x20',
        'bascule_partition_log_start_offset{instance="a", stream="s", partition="0"} 12x20',
    ],
    "BasculeDiskTooSlow": ['bascule_ingest_pauses_total{instance="a"} 0+1x20'],
    "BasculeMessagesNotStored": ['bascule_ingest_failed_batches_total{instance="a"} 0+1x20'],
    "BasculeDiskFull": ['bascule_disk_full{instance="a"} 1x20'],
    "BasculeDiskNearlyFull": [
        'bascule_data_free_bytes{instance="a"} 5x20',
        'bascule_data_size_bytes{instance="a"} 100x20',
    ],
    "BasculeNatsDisconnected": ['bascule_nats_connected{instance="a", link="data"} 0x20'],
    "BasculeUnsafeSetting": ['bascule_unsafe_setting{instance="a", setting="no_tls"} 1x20'],
}
SERIES_OF_A_HEALTHY_SERVER = [
    'up{job="bascule", instance="a"} 1x20',
    'bascule_ready{instance="a"} 1x20',
    'bascule_controller_known{instance="a"} 1x20',
    "bascule_cluster_partitions_leaderless 0x20",
    'bascule_partitions_under_replicated{instance="a"} 0x20',
    'bascule_partitions_below_min_insync{instance="a"} 0x20',
    'bascule_partitions_failing{instance="a"} 0x20',
    'bascule_cursor_lag_seconds{cursor="c", stream="s", partition="0"} 5x20',
    'bascule_cursor_offset{instance="a", cursor="c", stream="s", partition="0"} -1x20',
    'bascule_partition_log_start_offset{instance="a", stream="s", partition="0"} 12x20',
    'bascule_ingest_pauses_total{instance="a"} 3x20',
    'bascule_ingest_buffered_bytes{instance="a"} 3x20',
    'bascule_ingest_buffer_bytes_max{instance="a"} 300x20',
    'bascule_ingest_failed_batches_total{instance="a"} 1x20',
    'bascule_disk_full{instance="a"} 0x20',
    'bascule_data_free_bytes{instance="a"} 50x20',
    'bascule_data_size_bytes{instance="a"} 100x20',
    'bascule_nats_connected{instance="a", link="data"} 1x20',
]


def test_alerts_fire_for_what_they_name_and_for_nothing_else(tmp_path: Path) -> None:
    """In Prometheus' own engine. Every expression of the dashboard is parsed there too."""
    program = promtool(tmp_path)
    assert SERIES_THAT_FIRE.keys() == {rule["alert"] for rule in alert_rules()}
    queries = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(dashboard_expressions())]
    (tmp_path / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": queries}]}))
    tests = [
        *(_firing(series, [alert]) for alert, series in SERIES_THAT_FIRE.items()),
        _firing(SERIES_OF_A_HEALTHY_SERVER, []),
    ]
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": tests}))
    for arguments in (["check", "rules", str(ALERTS), "dashboard.yml"], ["test", "rules", "tests.yml"]):
        done = subprocess.run(
            [program, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _firing(series: list[str], expected: list[str]) -> dict[str, Any]:
    """Which alerts fire after fifteen minutes, counted by their names."""
    found = [
        {"labels": json.dumps({"alertname": name}).replace('"alertname":', "alertname=").replace(" ", ""), "value": 1}
        for name in expected
    ]
    return {
        "interval": "1m",
        "input_series": [dict(zip(("series", "values"), one.rsplit(" ", 1), strict=True)) for one in series],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "15m",
                "exp_samples": found,
            }
        ],
    }
