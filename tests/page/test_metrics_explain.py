"""What the server did for a query: phases, the plan as a tree, workers and shards."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from loadtest.harness.cluster import Cluster
from tests.page import explored_data
from tests.page.modules import run
from tests.page.test_shell import serious


@pytest.fixture(scope="module")
def last(server: Cluster) -> int:
    return explored_data.write_all(server)


@pytest.fixture
def explained(show: Callable[[str], Page], last: int) -> Callable[[str], Page]:
    def opened(expr: str) -> Page:
        page = show(f"#metrics?{urlencode({'expr': expr, 'view': 'explain', 'end': last})}")
        expect(page.get_by_role("list", name="Plan")).to_be_visible()
        return page

    return opened


def test_the_plan_is_a_tree_with_time_and_samples_of_each_shard(explained: Callable[[str], Page]) -> None:
    page = explained("sum(rate(page_requests_total[5m])) / scalar(count(page_requests_total))")
    plan = page.get_by_role("list", name="Plan")
    nodes = plan.locator(".plan-node")
    expect(nodes).to_have_count(4)
    assert plan.evaluate("(list) => list.scrollHeight - list.clientHeight") == 0, "all of it is in sight"
    expect(nodes.nth(0)).to_contain_text("operator")
    expect(nodes.nth(0)).to_contain_text("coordinator")
    expect(nodes.nth(1)).to_contain_text("sum")
    expect(nodes.nth(1)).to_contain_text("workers")
    expect(nodes.nth(1)).to_contain_text("6 series, 1\u202f440 samples")
    expect(plan.locator(".plan-node .slowest")).to_have_count(1)
    shards = page.get_by_role("table", name="Workers of sum(rate(page_requests_total[5m]))").first
    for number in range(4):
        expect(shards.get_by_role("cell", name=f"shard {number}")).to_be_visible()
    expect(shards).to_contain_text("slowest")
    assert serious(page) == []


def test_phases_and_costs_are_told(explained: Callable[[str], Page]) -> None:
    page = explained("sum(page_requests_total)")
    phases = page.get_by_label("Phases")
    for name in ("Plan", "Queue", "Workers", "Merge", "Render"):
        expect(phases.get_by_role("listitem").filter(has_text=name)).to_be_visible()
    costs = page.locator("table.costs")
    expect(costs).to_contain_text("Expected")
    expect(costs.get_by_role("row", name="Read")).to_contain_text("6")


def test_a_node_folds_and_marks_its_part_of_the_query(explained: Callable[[str], Page]) -> None:
    page = explained("count(page_requests_total) + sum(page_requests_total)")
    plan = page.get_by_role("list", name="Plan")
    plan.get_by_role("button", name="sum(page_requests_total)", exact=True).click()
    expect(plan.locator(".chosen")).to_contain_text("sum")
    expect(page.locator(".cm-part")).to_have_text("sum(page_requests_total)")
    plan.get_by_role("button", name="Fold operator").click()
    expect(plan.locator(".plan-node")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(plan.locator(".plan-node")).to_have_count(3)


def test_a_query_without_workers_is_explained_too(explained: Callable[[str], Page]) -> None:
    page = explained("1 + 2")
    expect(page.get_by_text("No worker was asked.")).to_be_visible()


def test_places_are_those_of_an_editor_also_after_characters_of_two_units(page: Page) -> None:
    code = """
      const { treeOf } = await use("metrics/plan.js");
      const plan = { id: 0, node: "Binary", text: given, span: [0, 9], where: "coordinator", children: [
        { id: 1, node: "VectorSelector", text: "b", span: [8, 9], where: "shards", query: "b" }] };
      return treeOf({ plan }, given).children[0].from;
    """
    text = '{"😀a"} + b'
    assert run(page, code, text) == text.encode("utf-16-le").index("b".encode("utf-16-le")) // 2 - 1


def test_a_plan_of_thousands_of_nodes_begins_folded(page: Page) -> None:
    code = """
      const { treeOf } = await use("metrics/plan.js");
      const { Explain } = await use("metrics/explain.js");
      const { html, render } = await use("vendor.js");
      let id = 0;
      const grow = (depth) => ({ id: id++, node: "Binary", text: "a + a", span: [0, 5], where: "coordinator",
        children: depth ? [grow(depth - 1), grow(depth - 1)] : [] });
      const plan = grow(12);
      const place = document.createElement("div");
      document.body.append(place);
      const explain = { plan, measured: [], estimate: { series: 0, samples: 0, leavesNotSeenBefore: 0 }, shards: [] };
      const stats = { timings: {}, samples: { totalQueryableSamples: 0, peakSamples: 0 }, shards: [] };
      render(html`<${Explain} query=${{ expr: "a + a", result: { explain, stats } }} />`, place);
      await sleep(0);
      return [treeOf(explain, "a + a").size, place.querySelectorAll(".plan-node").length];
    """
    assert run(page, code) == [8191, 31]
