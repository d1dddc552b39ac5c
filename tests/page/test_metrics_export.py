"""Queries and answers are taken out of the page; queries that were run are found again."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from loadtest.harness.cluster import Cluster
from tests.page import explored_data
from tests.page.modules import run
from tests.page.tasks import Tasks
from tests.page.test_shell import serious

PAUSE_MS = 50


@pytest.fixture(scope="module")
def last(server: Cluster) -> int:
    return explored_data.write_all(server)


@pytest.fixture
def ran(show: Callable[[str], Page], last: int) -> Callable[..., Page]:
    """Opens a tab with a query that was answered."""

    def opened(expr: str, view: str = "table") -> Page:
        parameters = {"expr": expr, "view": view, "end": last, "range": "1m", "step": "15s"}
        page = show(f"#metrics?{urlencode(parameters)}")
        expect(page.get_by_role("button", name="Export")).to_be_visible()
        return page

    return opened


def saved(page: Page, item: str, path: Path) -> str:
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=item).click()
    target = path / download.value.suggested_filename
    download.value.save_as(target)
    return target.read_bytes().decode()


def copied(page: Page, item: str) -> str:
    page.get_by_role("button", name="Export").click()
    page.get_by_role("button", name=item).click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    return str(page.evaluate("navigator.clipboard.readText()"))


@pytest.mark.parametrize("view", ["table", "graph"])
def test_the_command_asks_the_same(ran: Callable[..., Page], server: Cluster, view: str) -> None:
    expr = 'page_requests_total{job=~"api|it\'s"} * 2 # $HOME `ls`\n+ 0'
    command = copied(ran(expr, view), "Copy as curl")
    assert "Authorization" not in command
    answer = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=30)
    said: Any = json.loads(answer.stdout)
    assert said["status"] == "success"
    assert said["data"]["resultType"] == {"table": "vector", "graph": "matrix"}[view]
    assert [one["metric"]["instance"] for one in said["data"]["result"]] == ["api-0", "api-1"]


def test_a_credential_is_a_placeholder(page: Page) -> None:
    code = """
      const { curl } = await use("metrics/exported.js");
      const { authorization, basic, bearer } = await use("base/access.js");
      authorization.value = given === "token" ? bearer("secret") : basic("me", "secret");
      return curl("api/v1/query", { query: "up" });
    """
    assert "-H 'Authorization: Bearer TOKEN'" in run(page, code, "token")
    command = run(page, code, "password")
    assert "-u 'NAME:PASSWORD'" in command and "secret" not in command


def test_csv_has_a_column_for_each_series(ran: Callable[..., Page], tmp_path: Path, last: int) -> None:
    text = saved(ran('page_requests_total{job="api"}', "graph"), "CSV, a column", tmp_path)
    rows = list(csv.reader(text.splitlines(keepends=True)))
    assert rows[0][:2] == ["time", "unix"]
    assert rows[0][2] == 'page_requests_total{dc="zürich", instance="api-0", job="api"}'
    assert [row[1:] for row in rows[1:]] == [
        [str(last - 60 + 15 * i), str(235 + i), str(470 + 2 * i)] for i in range(5)
    ]
    assert rows[1][0].endswith("Z")
    assert text.count("\r\n") == len(rows)


def test_csv_has_a_row_for_each_sample(ran: Callable[..., Page], tmp_path: Path, last: int) -> None:
    page = ran('label_replace(page_requests_total{job="api"}, "time", "a,\\"b", "", "")')
    rows = list(csv.reader(saved(page, "CSV, a row", tmp_path).splitlines()))
    assert rows[0] == ["time", "unix", "__name__", "dc", "instance", "job", "label time", "value"]
    assert rows[1][1:] == [str(last), "page_requests_total", "zürich", "api-0", "api", 'a,"b', "239"]
    assert len(rows) == 3


def test_csv_of_scalars_gaps_and_histograms(page: Page) -> None:
    code = """
      const { long, wide } = await use("metrics/exported.js");
      const histogram = { count: "1", sum: "2", buckets: [] };
      const matrix = { resultType: "matrix", result: [
        { metric: { i: "1" }, values: [[1, "5"], [3, "+Inf"]] },
        { metric: { i: "2" }, values: [[2.5, "6"]], histograms: [[3, histogram]] }] };
      const scalar = { resultType: "scalar", result: [1, "NaN"] };
      return [wide(scalar), wide(matrix), long(matrix)].map((pieces) => [...pieces].join(""));
    """
    scalar, matrix, rows = run(page, code)
    assert scalar == "time,unix,value\r\n1970-01-01T00:00:01.000Z,1,NaN\r\n"
    histogram = '{"count":"1","sum":"2","buckets":[]}'
    assert [row[1:] for row in csv.reader(matrix.splitlines())] == [
        ["unix", '{i="1"}', '{i="2"}'],
        ["1", "5", ""],
        ["2.5", "", "6"],
        ["3", "+Inf", histogram],
    ]
    assert [row[1:] for row in csv.reader(rows.splitlines())][1:] == [
        ["1", "1", "5"],
        ["3", "1", "+Inf"],
        ["2.5", "2", "6"],
        ["3", "2", histogram],
    ]


def test_json_is_the_answer_as_it_came(ran: Callable[..., Page], tmp_path: Path, server: Cluster, last: int) -> None:
    text = saved(ran("rate(page_many[5m])"), "JSON", tmp_path)
    assert text.encode() == server.get("/api/v1/query", query="rate(page_many[5m])", time=str(last)).body


def test_a_long_export_leaves_the_page_responsive(page: Page) -> None:
    code = """
      const { ExportMenu } = await use("metrics/export.js");
      const { html, render } = await use("vendor.js");
      const result = Array.from({ length: 200 }, (_, i) => ({ metric: { i: String(i) },
        values: Array.from({ length: 5000 }, (_, at) => [at, String(at * i)]) }));
      const place = document.createElement("div");
      document.body.prepend(place);
      const request = { path: "api/v1/query", fields: {} };
      const query = { result: { resultType: "matrix", result }, remarks: {}, request };
      render(html`<${ExportMenu} query=${query} />`, place);
    """
    run(page, code)
    page.evaluate("() => { window.turns = 0; setInterval(() => { window.turns += 1; }, 1); }")
    page.get_by_role("button", name="Export").click()
    tasks = Tasks(page)
    page.evaluate("window.turns = 0")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV, a row").click()
    turns, spent_ms = page.evaluate("window.turns"), tasks.spent_ms()
    assert Path(download.value.path()).stat().st_size > 20_000_000
    print(f"1,000,000 samples as CSV take {spent_ms:.0f} ms, in which others had {turns} turns")
    assert turns >= spent_ms / PAUSE_MS


def test_the_menu_is_on_the_screen_of_a_phone(ran: Callable[..., Page]) -> None:
    page = ran("sum(rate(page_requests_total[5m]))", "explain")
    page.set_viewport_size({"width": 360, "height": 800})
    page.get_by_role("button", name="Export").click()
    box = page.get_by_role("group", name="Export").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_the_menu_is_used_by_keys_and_is_accessible(ran: Callable[..., Page]) -> None:
    page = ran("page_requests_total")
    page.get_by_role("button", name="Export").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("button", name="Copy link")).to_be_focused()
    assert serious(page) == []
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Export")).to_be_focused()


# Queries that were run


def test_queries_that_were_run_are_found_by_words_and_run_again(ran: Callable[..., Page]) -> None:
    page = ran("page_requests_total")
    page.evaluate("location.hash = '#metrics?expr=vector(7)&view=table'")
    expect(page.locator(".result")).to_contain_text("7")
    page.reload()
    page.get_by_role("button", name="History").click()
    queries = page.get_by_role("dialog").get_by_role("listitem")
    expect(queries).to_have_count(2)
    page.keyboard.type("requests PAGE")
    expect(queries).to_have_count(1)
    assert serious(page) == []
    page.keyboard.press("ArrowDown")
    expect(page.locator(".history-query")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("textbox", name="Query 1")).to_have_text("page_requests_total")
    expect(page.get_by_role("cell", name="api-0")).to_be_visible()


def test_favourites_outlive_clearing(ran: Callable[..., Page]) -> None:
    page = ran("vector(1)")
    page.evaluate("location.hash = '#metrics?expr=vector(2)&view=table'")
    expect(page.get_by_role("cell", name="2", exact=True)).to_be_visible()
    page.get_by_role("button", name="History").click()
    history = page.get_by_role("dialog").first
    history.get_by_role("button", name="Favourite: vector(1)").click()
    history.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Clear all but favourites").click()
    expect(history.get_by_role("listitem")).to_have_count(1)
    history.get_by_role("button", name="Remove: vector(1)").click()
    expect(history.get_by_text("A query is kept here when it has been run.")).to_be_visible()


def test_two_hundred_queries_are_kept_favourites_before_others(page: Page) -> None:
    code = """
      const { kept, KEPT_MAX, remember } = await use("metrics/history.js");
      const stored = [{ expr: "first", at: 0, isFavourite: true }, { expr: 3 }];
      localStorage.setItem("triptych.queries", JSON.stringify(stored));
      for (let i = 0; i < 300; i += 1) remember(`query_${i}`);
      remember("x".repeat(100000));
      remember("query_299");
      const written = JSON.parse(localStorage["triptych.queries"]);
      return [KEPT_MAX, kept.value.length, kept.value[0].expr, kept.value.at(-1).expr, written.length];
    """
    assert run(page, code) == [200, 200, "query_299", "first", 200]
