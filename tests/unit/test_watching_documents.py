"""The table of metrics, the shipped rules and the dashboard agree with the list of metrics in the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.watching.catalogue import METRICS, SCRAPE_SERIES, table

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "triptych.json"
PAGE = ROOT / "docs" / "watching.md"
SERIES = {name: metric for metric in METRICS.values() for name in metric.series_names()}
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())
USES = re.compile(r"\b(triptych_\w+|process_\w+|scrape_\w+)\b(?:\{([^}]*)\})?")
TARGET = {"job", "instance"}


def dashboard_expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def test_the_page_has_the_table_of_all_metrics() -> None:
    text = "run `python -m coordinator.watching.catalogue` and put its tables into docs/watching.md"
    assert PAGE.read_text().endswith(table()), text


def test_names_and_helps_follow_the_conventions_of_prometheus() -> None:
    for metric in METRICS.values():
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name
        assert not metric.name.endswith(("_ms", "_count", "_sum", "_bucket", "_created")), metric.name
        assert metric.help[0].isupper() or metric.help[0].isdigit() or metric.help.startswith("fsync"), metric.name
        assert len(metric.help) > 5 and "|" not in metric.help


def test_the_page_says_what_to_do_about_each_alert() -> None:
    sections = re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sections == ALERTS
    runbooks = re.findall(r"runbook: \S+\.md#(\w+)", RULES.read_text())
    assert runbooks == [alert.lower() for alert in ALERTS]


@pytest.mark.parametrize("expression", [RULES.read_text(), *dashboard_expressions()])
def test_rules_and_dashboard_use_metrics_and_labels_that_exist(expression: str) -> None:
    text = re.sub(r"#.*|runbook:.*|summary:.*|name: triptych-\w+", "", expression)
    uses: list[Any] = USES.findall(text)
    assert uses
    for name, matchers in uses:
        assert name in SERIES or name in SCRAPE_SERIES, name
        labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers))
        assert labels - TARGET <= {*SERIES[name].labels, "le"}, f"{name}{{{matchers}}}"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_each_rule_fires_when_it_should_and_none_while_all_is_well() -> None:
    tests = RULES.with_name("alerts_test.yml")
    assert {re.sub(r" \d+$", "", name) for name in re.findall(r"- name: (Triptych.*)", tests.read_text())} == set(
        ALERTS
    )
    for command in (["check", "rules", "--lint=all", "--lint-fatal", str(RULES)], ["test", "rules", str(tests)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
