"""The area "cluster" of the page: what a person sees of shards, queries, cardinality, memory and settings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from tests.forked_cluster import ForkedCluster
from tests.page.conftest import Tabs
from tests.page.test_shell import serious

PODS = 30
QUERY = "sum(quantile_over_time(0.5, abs(busy_total)[2h:1s]))"
"""Over 11,000 steps it takes longer than a test waits for."""
PARTS = ("shards", "queries", "slow", "cardinality", "memory", "settings")


def written(cluster: Cluster, series: list[dict[str, str]], times_ms: list[int]) -> None:
    body = compressed([(labels, [(at, 1.0) for at in times_ms]) for labels in series])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with series to count and a query that takes long."""
    settings = {"TRIPTYCH_SLOW_QUERY": "50ms", "TRIPTYCH_SELF_SCRAPE": "0"}
    cluster = ForkedCluster(tmp_path_factory.mktemp("busy"), settings=settings).start()
    now_ms = int(time.time()) * 1000
    pods = [{"__name__": "pods_total", "pod": f"pod-{i}", "zone": f"z{i % 3}"} for i in range(PODS)]
    written(cluster, [*pods, {"__name__": "jobs", "job": 'a"b'}], [now_ms])
    total = [{"__name__": "busy_total", "i": str(i)} for i in range(64)]
    written(cluster, total, [now_ms - 60_000 * age for age in range(240, -1, -1)])
    yield cluster
    cluster.kill()


class Asked(threading.Thread):
    """A long query of somebody else."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._name, now = cluster, name, int(time.time())
        self._query = urlencode({"query": QUERY, "start": now - 11_000, "end": now, "step": "1s"})
        self.answer: Response | None = None
        self.start()

    def run(self) -> None:
        headers = {"X-Request-Id": self._name}
        self.answer = self._cluster.request("GET", f"/api/v1/query_range?{self._query}", None, headers)


def opened(tabs: Tabs, cluster: Cluster, part: str = "", **options: Any) -> Page:
    page = tabs.open(f"{cluster.url}/#cluster{f'?show={part}' if part else ''}", **options)
    expect(page.get_by_role("heading", name="Cluster", level=1)).to_be_visible()
    return page


def cells(page: Page, table: str, row: str | Callable[[Locator], Locator]) -> list[str]:
    found = page.get_by_role("table", name=table, exact=True).get_by_role("row").filter(has_text=row)
    return found.first.get_by_role("cell").all_inner_texts()


def test_shards_show_what_they_hold(tabs: Tabs, busy: Cluster) -> None:
    page = opened(tabs, busy)
    rows = page.get_by_role("table", name="Shards", exact=True).get_by_role("row")
    expect(rows).to_have_count(5)
    expect(rows.nth(1)).to_contain_text("● ready")
    expect(rows.nth(1)).to_contain_text("worker-0")
    expect(page.get_by_text("4 of 4", exact=True)).to_be_visible()
    expect(page.locator(".figures")).to_contain_text("95")  # series
    expect(page.get_by_role("table", name="Workers", exact=True).get_by_role("row")).to_have_count(3)


def test_shards_show_how_fast_they_grow(tabs: Tabs, busy: Cluster) -> None:
    page = opened(tabs, busy)
    rates = page.locator(".figures div", has_text="Samples/s").locator("dd")
    give_up = time.monotonic() + 15
    while rates.inner_text() in ("–", "0"):
        assert time.monotonic() < give_up
        written(busy, [{"__name__": "busy_total", "i": str(i)} for i in range(64)], [int(time.time() * 1000)])
        page.wait_for_timeout(500)


def test_a_worker_that_dies_is_said_first_and_why(tabs: Tabs, new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    page = opened(tabs, cluster)
    expect(page.get_by_text("4 of 4", exact=True)).to_be_visible()
    with cluster.without_worker("worker-0"):
        trouble = page.get_by_role("alert")
        expect(trouble).to_contain_text("2 of 4 shards are not ready")
        expect(trouble).to_contain_text("shards 0, 2: worker-0 is down")
        first = page.get_by_role("table", name="Shards", exact=True).get_by_role("row").nth(1)
        expect(first).to_contain_text("● down")
        expect(page.get_by_role("table", name="Workers", exact=True).get_by_role("row")).to_have_count(2)
        page.get_by_role("link", name="Cardinality").click()
        expect(page.get_by_role("list", name="Remarks")).to_contain_text("shard 0 is missing from this answer")
    page.get_by_role("link", name="Shards", exact=True).click()
    expect(page.get_by_text("4 of 4", exact=True)).to_be_visible(timeout=20_000)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert cells(page, "Workers", "worker-0")[-1] == "1"  # restarts
    assert cells(page, "Workers", "worker-1")[-1] == "0"


def test_damaged_shards_come_before_the_others(tabs: Tabs, busy: Cluster) -> None:
    def damaged(route: Route) -> None:
        body = route.fetch().json()
        body["data"]["shards"][2]["counts"]["damaged"] = 3
        route.fulfill(json=body)

    page = opened(tabs, busy, "settings")
    page.route("**/api/v1/cluster", damaged)
    page.get_by_role("link", name="Shards", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Data of 1 of 4 shards is damaged")
    expect(page.get_by_role("alert")).to_contain_text("shard 2: 3 places")
    row = page.get_by_role("table", name="Shards", exact=True).get_by_role("row").nth(1)
    expect(row).to_contain_text("● ready, damaged")
    page.unroute_all(behavior="ignoreErrors")


def test_a_running_query_is_canceled_after_a_question(tabs: Tabs, busy: Cluster) -> None:
    page = opened(tabs, busy, "queries")
    expect(page.get_by_text("Nothing is being served now.")).to_be_visible()
    asked = Asked(busy, "long")
    row = page.get_by_role("row").filter(has_text="busy_total")
    expect(row).to_contain_text("range")
    row.get_by_role("button", name="Cancel").click()
    question = page.get_by_role("dialog", name="Cancel this query?")
    expect(question).to_contain_text(QUERY)
    question.get_by_role("button", name="Leave it").click()
    expect(row).to_be_visible()
    assert asked.answer is None
    row.get_by_role("button", name="Cancel").click()
    question.get_by_role("button", name="Cancel the query").click()
    expect(page.get_by_text("The query was canceled.")).to_be_visible()
    expect(page.get_by_text("Nothing is being served now.")).to_be_visible()
    asked.join(10)
    assert asked.answer is not None
    assert asked.answer.json()["errorType"] == "canceled"


def test_slow_queries_are_shown_with_their_plan_and_asked_again(tabs: Tabs, busy: Cluster) -> None:
    asked = Asked(busy, "slow")
    while not any(one["samples"] for one in busy.get("/api/v1/queries").json()["data"]):
        time.sleep(0.05)
    assert busy.request("DELETE", "/api/v1/queries/slow").status == 200
    asked.join(10)
    page = opened(tabs, busy, "slow")
    row = page.get_by_role("row").filter(has_text="busy_total").first
    expect(row).to_contain_text("503")
    page.get_by_label("Order").select_option("start")
    expect(page).to_have_url(f"{busy.url}/#cluster?show=slow&by=start")
    row.click()
    dialog = page.get_by_role("dialog", name="Query")
    expect(dialog).to_contain_text("Time by state")
    expect(dialog).to_contain_text("quantile_over_time")
    dialog.get_by_role("link", name="Ask it again under Metrics").click()
    expect(page).to_have_title("Metrics – Triptych")
    assert "expr=sum%28quantile_over_time" in page.url
    assert "range=3h3m20s" in page.url


def test_cardinality_narrows_by_clicks_and_the_link_shows_the_same(tabs: Tabs, busy: Cluster) -> None:
    page = opened(tabs, busy, "cardinality")
    metrics = "Metrics with the most series"
    expect(page.get_by_role("table", name=metrics)).to_contain_text("pods_total")
    assert cells(page, metrics, "pods_total")[:4] == ["pods_total", "30", "31.6 %", "+30"]
    assert cells(page, "Labels with the most values", "pod")[:2] == ["pod", "30"]
    assert cells(page, "Metrics that grow most", "busy_total")[:2] == ["busy_total", "+64"]
    page.get_by_role("table", name=metrics).get_by_role("row").filter(has_text="pods_total").click()
    selector = page.get_by_role("textbox", name="Selector")
    expect(selector).to_have_value("pods_total")
    expect(page.locator(".figures div", has_text="Series").first).to_contain_text("30")
    page.get_by_role("table", name="Labels with the most values").get_by_role("row").filter(has_text="zone").click()
    expect(page.get_by_role("table", name="Values of zone")).to_contain_text("z2")
    assert cells(page, "Values of zone", "z1")[:2] == ["z1", "10"]
    page.get_by_role("table", name="Values of zone").get_by_role("row").filter(has_text="z1").click()
    expect(selector).to_have_value('pods_total{zone="z1"}')
    expect(page.locator(".figures div", has_text="Series").first).to_contain_text("10")
    page.reload()
    expect(selector).to_have_value('pods_total{zone="z1"}')
    expect(page.locator(".figures div", has_text="Series").first).to_contain_text("10")
    page.get_by_role("table", name=metrics).get_by_role("link", name="Graph of pods_total").click()
    expect(page).to_have_title("Metrics – Triptych")
    assert page.url.endswith("#metrics?expr=pods_total")


def test_cardinality_takes_typed_selectors_and_says_what_is_wrong_with_one(tabs: Tabs, busy: Cluster) -> None:
    tabs.expected = ("400",)
    page = opened(tabs, busy, "cardinality")
    selector = page.get_by_role("textbox", name="Selector", exact=True)
    selector.fill("jobs")
    selector.press("Enter")
    pairs = page.get_by_role("table", name="Label values with the most series")
    expect(pairs).to_contain_text('job=a"b')
    pairs.get_by_role("row").filter(has_text='job=a"b').click()
    expect(selector).to_have_value('jobs{job="a\\"b"}')
    expect(page.locator(".figures div", has_text="Series").first).to_contain_text("1")
    page.get_by_role("button", name="Or …").click()
    page.get_by_role("textbox", name="Selector 2").fill("pods_total{")
    page.get_by_role("button", name="Count").click()
    expect(page.get_by_role("alert")).to_contain_text("match[]")
    page.get_by_role("textbox", name="Selector 2").fill("pods_total")
    page.get_by_role("button", name="Count").click()
    expect(page.locator(".figures div", has_text="Series").first).to_contain_text("31")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="All series").click()
    expect(page.locator(".figures div", has_text="Series").first).to_contain_text("95")


def test_counting_that_takes_long_is_said_and_can_be_cancelled(tabs: Tabs, busy: Cluster) -> None:
    page = opened(tabs, busy)
    page.route("**/api/v1/status/tsdb*", lambda route: None)  # never answered
    page.keyboard.press("4")
    expect(page.get_by_role("progressbar", name="Counting …")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("the counting was cancelled")
    expect(page.get_by_role("progressbar")).to_have_count(0)
    page.unroute_all(behavior="ignoreErrors")
    problem.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="Metrics with the most series")).to_be_visible()


def test_a_thousand_rows_stay_few_in_the_document(tabs: Tabs, busy: Cluster) -> None:
    written(busy, [{"__name__": "wide", "wide": f"w{i:04}"} for i in range(1200)], [int(time.time() * 1000)])
    page = opened(tabs, busy, "cardinality&match=wide&focus=wide&limit=1000")
    values = page.get_by_role("table", name="Values of wide")
    expect(values).to_contain_text("w0000")
    assert values.get_attribute("aria-rowcount") == "1001"
    assert values.get_by_role("row").count() < 100
    page.get_by_label("Filter Values of wide").fill("w0999")
    expect(values).to_contain_text("w0999")


def test_memory_has_its_owners_by_process(tabs: Tabs, busy: Cluster) -> None:
    page = opened(tabs, busy, "memory")
    table = page.get_by_role("table", name="Memory by process")
    expect(table.get_by_role("row").filter(has_text="worker-0")).to_contain_text("MiB")
    expect(table.get_by_role("row").filter(has_text="coordinator")).to_be_visible()
    expect(table.get_by_role("columnheader", name="index")).to_be_visible()


def test_columns_of_memory_stay_in_their_places_when_another_owner_becomes_the_largest(
    tabs: Tabs, busy: Cluster
) -> None:
    sizes = {"log": 3, "index": 2, "head": 1}

    def answered(route: Route) -> None:
        one = {"process": "worker-0", "residentBytes": 100, "owners": dict(sizes)}
        route.fulfill(json={"status": "success", "data": {"processes": [one]}})

    page = opened(tabs, busy, "settings")
    page.clock.install()
    page.route("**/api/v1/status/memory", answered)
    page.get_by_role("link", name="Memory", exact=True).click()
    table = page.get_by_role("table", name="Memory by process")
    table.get_by_role("button", name="log", exact=True).click()
    sizes.update(head=30, log=4)
    with page.expect_response("**/api/v1/status/memory"):
        page.clock.run_for(6000)
    expect(table.get_by_role("row").last).to_contain_text("30 B")
    heads = [text.strip(" ▾▴") for text in table.get_by_role("columnheader").all_inner_texts()]
    assert heads[5:8] == ["head", "index", "log"]
    expect(table.get_by_role("columnheader", name="log")).to_have_attribute("aria-sort", "descending")


def test_settings_show_what_is_not_the_default(tabs: Tabs, busy: Cluster) -> None:
    page = opened(tabs, busy, "settings")
    table = page.get_by_role("table", name="Settings")
    expect(table).to_contain_text("longest timeout of a query")
    page.get_by_label("Filter Settings").fill("slow_query")
    assert cells(page, "Settings", "slow_query")[:3] == ["slow_query", "50ms", "10s"]
    page.get_by_label("Filter Settings").fill("")
    page.get_by_label("Only those that are not the default").check()
    expect(table).not_to_contain_text("longest timeout of a query")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert "TRIPTYCH_SLOW_QUERY,50ms,10s," in download.value.path().read_text()
    page.reload()
    expect(table).to_contain_text("slow_query")
    expect(table).not_to_contain_text("longest timeout of a query")


def test_keys_lead_to_the_parts(tabs: Tabs, busy: Cluster) -> None:
    page = opened(tabs, busy)
    page.keyboard.press("4")
    expect(page.get_by_role("heading", name="Metrics with the most series")).to_be_visible()
    page.keyboard.press("6")
    expect(page.get_by_role("table", name="Settings")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Metrics with the most series")).to_be_visible()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_any_part(tabs: Tabs, busy: Cluster, part: str, scheme: Any) -> None:
    page = opened(tabs, busy, part, color_scheme=scheme)
    expect(page.get_by_role("table").first).to_be_visible()
    assert serious(page) == []


@pytest.mark.parametrize("part", PARTS)
def test_every_part_fits_a_narrow_screen(tabs: Tabs, busy: Cluster, part: str) -> None:
    page = opened(tabs, busy, part, size=(360, 800))
    expect(page.get_by_role("table").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
