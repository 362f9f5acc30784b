"""Alert rules and the dashboard ask for what is there, in PromQL that Prometheus understands."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from swarmkv.monitor.metrics import render_metrics
from tests.metrics_table import PAGE, with_tables
from tests.prometheus import DEPLOY, families, full_overview, names_in, promtool

RULES = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
PROVISIONING = DEPLOY / "grafana" / "provisioning"
COLUMNS = 24
GRID = {
    "type": "object",
    "properties": {
        name: {"type": "integer", "minimum": low} for name, low in (("x", 0), ("y", 0), ("w", 1), ("h", 1))
    },
    "required": ["x", "y", "w", "h"],
    "additionalProperties": False,
}
TARGET = {
    "type": "object",
    "properties": {
        "refId": {"pattern": "^[A-Z]$"},
        "expr": {"type": "string", "minLength": 1},
        "datasource": {"const": {"type": "prometheus", "uid": "${datasource}"}},
        "legendFormat": {"type": "string"},
    },
    "required": ["refId", "expr", "datasource", "legendFormat"],
}
PANEL = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "type": {"enum": ["row", "stat", "timeseries", "table"]},
        "title": {"type": "string", "minLength": 1},
        "gridPos": GRID,
        "targets": {"type": "array", "items": TARGET, "minItems": 1},
        "fieldConfig": {"type": "object", "required": ["defaults", "overrides"]},
        "options": {"type": "object"},
    },
    "required": ["id", "type", "title", "gridPos"],
    "if": {"properties": {"type": {"const": "row"}}},
    "else": {"required": ["targets", "fieldConfig", "options", "datasource"]},
}
DASHBOARD = {
    "type": "object",
    "properties": {
        "uid": {"pattern": "^[a-z0-9-]{1,40}$"},
        "title": {"type": "string"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "templating": {"type": "object", "required": ["list"]},
        "panels": {"type": "array", "items": PANEL, "minItems": 1},
    },
    "required": ["uid", "title", "schemaVersion", "templating", "panels", "time"],
    "not": {"required": ["id"]},  # a database's number, which is another one elsewhere
}


def dashboards() -> list[dict[str, Any]]:
    assert DASHBOARDS
    return [json.loads(path.read_text("utf-8")) for path in DASHBOARDS]


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return list(board["panels"])


def expressions(board: dict[str, Any]) -> list[str]:
    """Every query of a dashboard, with values for its variables."""
    found = [target["expr"] for panel in panels(board) for target in panel.get("targets", ())]
    return [expr.replace("$__rate_interval", "5m").replace("$model", ".*") for expr in found]


def missing(expression: str) -> set[str]:
    return names_in(expression) - families(render_metrics(full_overview())).keys()


def test_the_rules_and_the_configuration_are_what_prometheus_takes() -> None:
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert "SUCCESS" in promtool("check", "rules", RULES)


def test_each_alert_has_a_unit_test_and_passes_it() -> None:
    tests = DEPLOY / "prometheus" / "alerts_test.yml"
    promtool("test", "rules", tests)
    cases = [case for test in yaml.safe_load(tests.read_text())["tests"] for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules()}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_alerts_ask_for_metrics_that_are_there_and_say_what_to_do() -> None:
    for rule in rules():
        assert missing(rule["expr"]) == set(), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_a_dashboard_has_the_shape_that_grafana_reads() -> None:
    for board in dashboards():
        jsonschema.validate(board, DASHBOARD)
        ids = [panel["id"] for panel in panels(board)]
        assert len(set(ids)) == len(ids)
        assert {item["name"] for item in board["templating"]["list"]} == {"datasource", "model"}


def test_no_panel_of_a_dashboard_covers_another_or_leaves_the_grid() -> None:
    for board in dashboards():
        boxes = [(panel["title"], panel["gridPos"]) for panel in panels(board)]
        for title, box in boxes:
            assert box["x"] + box["w"] <= COLUMNS, title
        for (one, a), (two, b) in combinations(boxes, 2):
            beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
            assert beside or above, (one, two)


def test_every_query_of_a_dashboard_parses_and_asks_for_what_is_there(tmp_path: Path) -> None:
    for board in dashboards():
        queries = expressions(board)
        for query in queries:
            assert names_in(query), query
            assert missing(query) == set(), query
            assert not re.search(r"\$\w+", query), query
        named = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
        path = tmp_path / f"{board['uid']}.yml"
        path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": named}]}))
        assert "SUCCESS" in promtool("check", "rules", path)


def test_the_dashboard_is_provisioned_on_the_prometheus_of_the_compose_file() -> None:
    [source] = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    [provider] = yaml.safe_load((PROVISIONING / "dashboards" / "swarmkv.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


def test_the_page_lists_every_metric_with_its_labels() -> None:
    text = PAGE.read_text("utf-8")
    assert with_tables(text) == text, "run `python -m tests.metrics_table`"
