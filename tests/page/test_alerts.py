"""The area "alerts" of the page: what fires, the rules it comes from, and the targets that are scraped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster
from tests.page.conftest import Tabs
from tests.page.tasks import Tasks
from tests.page.test_shell import serious

CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
  - job_name: nobody
    static_configs: [{targets: ["127.0.0.1:1"], labels: {team: core}}]
"""
RULES = """
groups:
  - name: certain
    rules:
      - {alert: AlwaysTrue, expr: vector(7) > 0, labels: {severity: page}, annotations: {about: "It is {{ $value }}."}}
      - {alert: NotYet, expr: vector(1), for: 1h}
      - {record: one, expr: vector(1)}
  - name: wrong
    rules:
      - {record: twice, expr: 'label_replace(vector(1), "x", "a", "", "") or vector(2)', labels: {x: z}}
"""
MANY = 5000
TASK_MS_MAX = 250
"""Of the longest task while 5,000 rows come, are filtered and sorted; 60 ms are usual."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with rules and a target where nobody answers."""
    directory = tmp_path_factory.mktemp("watched")
    (directory / "prometheus.yml").write_text(CONFIG)
    (directory / "rules.yml").write_text(RULES)
    settings = {"TRIPTYCH_PROMETHEUS_CONFIG": str(directory / "prometheus.yml"), "TRIPTYCH_SELF_SCRAPE": "1s"}
    cluster = ForkedCluster(tmp_path_factory.mktemp("cluster"), settings=settings).start()
    yield cluster
    cluster.stop()


def opened(tabs: Tabs, cluster: Cluster, part: str = "") -> Page:
    page = tabs.open(f"{cluster.url}/#alerts{f'?show={part}' if part else ''}")
    expect(page.get_by_role("heading", name="Alerts", level=1)).to_be_visible()
    return page


def row(page: Page, table: str, text: str) -> Any:
    return page.get_by_role("table", name=table, exact=True).get_by_role("row").filter(has_text=text)


def test_what_fires_comes_first_and_says_why(tabs: Tabs, watched: Cluster) -> None:
    page = opened(tabs, watched)
    expect(row(page, "Alerts", "AlwaysTrue")).to_contain_text("● firing")
    expect(row(page, "Alerts", "NotYet")).to_contain_text("● pending")
    expect(page.get_by_role("table", name="Alerts", exact=True).get_by_role("row").nth(1)).to_contain_text("AlwaysTrue")
    assert serious(page) == []
    row(page, "Alerts", "AlwaysTrue").click()
    dialog = page.get_by_role("dialog", name="AlwaysTrue")
    expect(dialog).to_contain_text("It is 7.")
    expect(dialog).to_contain_text("severity")
    dialog.get_by_role("link", name="Its rules").click()
    expect(row(page, "Rules", "AlwaysTrue")).to_contain_text("● ok")
    expect(row(page, "Rules", "NotYet")).to_have_count(0)
    page.get_by_role("button", name="Rules of other names, too").click()
    expect(row(page, "Rules", "NotYet")).to_be_visible()


def test_a_state_is_chosen_and_kept_by_the_link(tabs: Tabs, watched: Cluster) -> None:
    page = opened(tabs, watched)
    expect(row(page, "Alerts", "NotYet")).to_be_visible()
    page.get_by_label("State").select_option("firing")
    expect(row(page, "Alerts", "NotYet")).to_have_count(0)
    page.reload()
    expect(row(page, "Alerts", "AlwaysTrue")).to_be_visible()
    expect(row(page, "Alerts", "NotYet")).to_have_count(0)


@pytest.mark.parametrize(("part", "table"), [("alerts", "Alerts"), ("rules", "Rules"), ("targets", "Targets")])
def test_a_table_without_rows_of_the_state_in_the_link_says_so(
    tabs: Tabs, watched: Cluster, part: str, table: str
) -> None:
    page = opened(tabs, watched, f"{part}&state=resolved")
    expect(page.get_by_role("table", name=table, exact=True)).to_be_visible()
    expect(page.get_by_text("None is resolved.")).to_be_visible()
    expect(page.get_by_text(re.compile("Nothing is|There are no"))).to_have_count(0)


def test_a_link_to_rules_of_a_name_that_none_has_says_so(tabs: Tabs, watched: Cluster) -> None:
    page = opened(tabs, watched, "rules&rule=gone")
    expect(page.get_by_text("No rule is called gone.")).to_be_visible()
    page.get_by_role("button", name="Rules of other names, too").click()
    expect(row(page, "Rules", "NotYet")).to_be_visible()


def test_a_rule_that_fails_says_why_and_asks_its_query_again(tabs: Tabs, watched: Cluster) -> None:
    page = opened(tabs, watched, "rules")
    expect(row(page, "Rules", "twice")).to_contain_text("● err")
    expect(row(page, "Rules", "twice")).to_contain_text("same labelset")
    assert serious(page) == []
    row(page, "Rules", "twice").click()
    dialog = page.get_by_role("dialog", name="twice")
    expect(dialog).to_contain_text("same labelset")
    dialog.get_by_role("link", name="Ask it under Metrics").click()
    expect(page).to_have_title("Metrics – Triptych")
    expect(page.locator(".cm-content").first).to_contain_text("label_replace(vector(1)")


def test_a_target_that_does_not_answer_is_down_and_says_why(tabs: Tabs, watched: Cluster) -> None:
    page = opened(tabs, watched, "targets")
    expect(row(page, "Targets", "nobody")).to_contain_text("● down")
    expect(row(page, "Targets", "triptych")).to_contain_text("● up")
    assert serious(page) == []
    row(page, "Targets", "nobody").click()
    dialog = page.get_by_role("dialog", name="nobody")
    expect(dialog).to_contain_text("http://127.0.0.1:1/metrics")
    expect(dialog).to_contain_text('team="core"')


def many_alerts() -> dict[str, Any]:
    labels = [{"alertname": f"Alert{n}", "pod": f"pod-{n}", "zone": f"z{n % 3}"} for n in range(MANY)]
    told = {"annotations": {}, "state": "firing", "activeAt": "2026-01-01T00:00:00Z", "value": "1e+00"}
    return {"alerts": [{"labels": own, **told} for own in labels]}


def many_rules() -> dict[str, Any]:
    told = {"query": "up == 0", "labels": {}, "health": "ok", "state": "inactive", "duration": 60, "keepFiringFor": 0}
    told |= {"annotations": {}, "alerts": [], "evaluationTime": 0.01, "lastEvaluation": "2026-01-01T00:00:00Z"}
    rules = [{"name": f"Alert{n}", "type": "alerting", **told} for n in range(MANY)]
    group = {"name": "g", "file": "f", "interval": 60, "limit": 0, "evaluationTime": 1, "lastEvaluation": ""}
    return {"groups": [{**group, "rules": rules}]}


def many_targets() -> dict[str, Any]:
    times = {"lastScrape": "2026-01-01T00:00:00Z", "lastScrapeDuration": 0.01, "scrapeInterval": "15s"}
    targets = [
        {"discoveredLabels": {}, "labels": {"instance": f"i{n}:9100", "pod": f"pod-{n}"}, "scrapePool": "pods"}
        | {"scrapeUrl": f"http://i{n}:9100/metrics", "lastError": "", "health": "up", "scrapeTimeout": "10s", **times}
        for n in range(MANY)
    ]
    return {"activeTargets": targets, "droppedTargets": [], "droppedTargetCounts": {"pods": 3}}


@pytest.mark.parametrize(
    ("part", "table", "path", "data", "column", "wanted"),
    [
        ("", "Alerts", "alerts", many_alerts, "Alert", "pod-4321"),
        ("rules", "Rules", "rules", many_rules, "Name", "Alert4321"),
        ("targets", "Targets", "targets", many_targets, "Target", "pod-4321"),
    ],
)
def test_five_thousand_rows_are_filtered_and_sorted_without_a_pause(
    tabs: Tabs, watched: Cluster, part: str, table: str, path: str, data: Any, column: str, wanted: str
) -> None:
    page = tabs.open(watched.url)
    body = json.dumps({"status": "success", "data": data()})

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="application/json", body=body)

    page.route(f"**/api/v1/{path}**", answer)
    expect(page).to_have_title("Metrics – Triptych")
    tasks = Tasks(page)
    page.goto(f"{watched.url}/#alerts{f'?show={part}' if part else ''}")
    expect(page.get_by_text("5\u202f000", exact=True)).to_be_visible()
    page.get_by_role("button", name=column, exact=True).click()
    page.get_by_label(f"Filter {table}").fill(wanted)
    expect(page.get_by_text("1 of 5\u202f000")).to_be_visible()
    expect(row(page, table, "4321")).to_have_count(1)
    assert tasks.longest_ms() <= TASK_MS_MAX
    row(page, table, "4321").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.get_by_label(f"Filter {table}")).to_have_value(wanted)  # the table is the same while its area changes
    head = page.get_by_role("columnheader").filter(has=page.get_by_role("button", name=column, exact=True))
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(row(page, table, "4321")).to_have_count(1)
