"""The Metrics tab: what is drawn of a range, zoom, values at the cursor, what is shown of it, and how quick it is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, expect

from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster
from tests.page.conftest import Tabs
from tests.page.metrics_data import editor, last_hour, query, run, write

QUARTER, HALF = re.compile(r"1[45]m(\d+s)?"), re.compile(r"(29m5\ds|30m(\ds)?)")
"""Of the hour that is shown, by the pixels of the mouse."""
LOST_MS = 30_000
"""Until the page says that a worker has gone: it asks now and then, and the coordinator waits for a beat."""
MANY, POINTS = 250, 500
DRAWN_MS_MAX = 150
TRIES = 10
"""Until one is quick enough: the machine does other things beside."""
CLOCK = """
() => {
  window.drawnAfter = [];
  const parse = JSON.parse;
  JSON.parse = (text, ...rest) => {
    if (text.length > 1e6) {
      const from = performance.now();
      const before = document.querySelector('.plot canvas');
      const look = () => {
        if (document.querySelector('.plot canvas') === before) return requestAnimationFrame(look);
        return setTimeout(() => window.drawnAfter.push(performance.now() - from)); // after this frame
      };
      requestAnimationFrame(look);
    }
    return parse(text, ...rest);
  };
}
"""
"""Notes how long it takes from an answer's text to the frame that shows its graph."""


@pytest.fixture(scope="module", autouse=True)
def data(server: Cluster) -> None:
    gap = [last_hour(lambda k: None if 100 <= k < 160 else 5.0)]
    lines = [last_hour(lambda k, i=i: float((i + 1) * 100 + k)) for i in range(3)]  # type: ignore[misc]
    write(
        server,
        [({"__name__": "draw_lines", "i": str(i), "team": "a" if i else "b"}, line) for i, line in enumerate(lines)]
        + [({"__name__": "draw_gap"}, samples) for samples in gap]
        + [({"__name__": "draw_odd", "kind": "inf"}, last_hour(lambda k: math.inf if k % 2 else 1.0))]
        + [({"__name__": "draw_odd", "kind": "nan"}, last_hour(lambda k: math.nan))],
    )


def plot(page: Page) -> Locator:
    return page.locator(".plot .u-over")


def legend(page: Page, number: int = 1) -> Locator:
    return query(page, number).get_by_role("table", name="Legend").locator("tbody tr")


def size(page: Page) -> tuple[float, float]:
    box = plot(page).bounding_box()
    assert box is not None
    return box["width"], box["height"]


def drag(page: Page, start: float, end: float) -> None:
    """Over the plot, between two parts of its width."""
    box = plot(page).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * start, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + 60, steps=4)
    page.mouse.up()


def test_the_series_under_the_cursor_is_said_with_all_its_labels_and_stays(page: Page) -> None:
    run(page, "draw_lines")
    expect(legend(page)).to_have_count(3)
    width, height = size(page)
    plot(page).hover(position={"x": width * 0.5, "y": height * 0.27})
    hovered = page.locator(".hovered")
    expect(hovered).to_contain_text('draw_lines{i="2", team="a"}')
    expect(page.locator(".legend tr.nearest")).to_contain_text('draw_lines{i="2", team="a"}')
    values = [row.locator("td").nth(2).inner_text() for row in legend(page).all()]
    first, second, third = (float(text) for text in values)
    assert second - first == third - second == 100
    text = hovered.inner_text()
    page.mouse.move(5, 5)
    expect(hovered).to_have_text(text)
    hovered.locator(".mono").dblclick()
    assert page.evaluate("getSelection().toString()").strip()


def test_a_click_holds_the_cursor(page: Page) -> None:
    run(page, "draw_lines")
    width, height = size(page)
    plot(page).click(position={"x": width * 0.5, "y": height * 0.1})
    held = page.locator(".hovered").inner_text()
    plot(page).hover(position={"x": width * 0.2, "y": height * 0.9})
    expect(page.locator(".hovered")).to_have_text(held)


def test_dragging_zooms_back_undoes_it_and_the_link_shows_the_same(tabs: Tabs, page: Page) -> None:
    run(page, "draw_lines")
    expect(legend(page)).to_have_count(3)
    drag(page, 0.25, 0.5)
    fields = page.get_by_role("form", name="Times")
    expect(fields.get_by_label("Range", exact=True)).to_have_value(QUARTER)
    expect(fields.get_by_label("End", exact=True)).not_to_have_value("now")
    expect(query(page).get_by_label("About the answer")).to_contain_text("step 5s")
    picture = page.get_by_role("img", name="Graph of 3 series").get_attribute("aria-label")
    again = tabs.open(page.url)
    expect(again.get_by_role("img", name="Graph of 3 series")).to_have_attribute("aria-label", picture or "")
    plot(page).dblclick()
    expect(fields.get_by_label("Range", exact=True)).to_have_value(HALF)
    page.go_back()
    expect(fields.get_by_label("Range", exact=True)).to_have_value(QUARTER)
    page.go_back()
    expect(fields.get_by_label("End", exact=True)).to_have_value("now")


def test_series_are_hidden_and_isolated_also_in_the_link(tabs: Tabs, page: Page) -> None:
    run(page, "draw_lines")
    first, second = legend(page).nth(0), legend(page).nth(1)
    first.click()
    expect(first.get_by_role("button")).to_have_attribute("aria-pressed", "false")
    expect(second.get_by_role("button")).to_have_attribute("aria-pressed", "true")
    second.click(modifiers=["Control"])
    expect(second.get_by_role("button")).to_have_attribute("aria-pressed", "true")
    expect(legend(page).nth(2).get_by_role("button")).to_have_attribute("aria-pressed", "false")
    again = tabs.open(page.url)
    expect(legend(again).nth(1).get_by_role("button")).to_have_attribute("aria-pressed", "true")
    expect(legend(again).nth(0).get_by_role("button")).to_have_attribute("aria-pressed", "false")
    again.get_by_role("button", name="Show all series").click()
    expect(legend(again).nth(0).get_by_role("button")).to_have_attribute("aria-pressed", "true")
    first.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(first.get_by_role("button")).to_have_attribute("aria-pressed", "true")


def axis_of(page: Page) -> Any:
    """The picture's bytes: another one when something else is drawn."""
    return page.evaluate("document.querySelector('.plot canvas').toDataURL()")


def test_stacked_log_and_from_zero_draw_anew_and_are_in_the_link(page: Page) -> None:
    run(page, "draw_lines")
    expect(legend(page)).to_have_count(3)
    pictures = [axis_of(page)]
    for name, word in (("From zero", "zero"), ("Log scale", "log"), ("Stacked", "stacked")):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("button", name=name)).to_have_attribute("aria-pressed", "true")
        assert word in page.url
        page.wait_for_timeout(100)
        pictures.append(axis_of(page))
        page.get_by_role("button", name=name).click()
    assert len(set(pictures)) == len(pictures)


def test_colours_and_times_change_with_the_page(page: Page) -> None:
    run(page, "draw_lines")
    expect(legend(page)).to_have_count(3)
    before = axis_of(page)
    page.get_by_role("button", name="Local").click()
    page.wait_for_timeout(200)
    in_utc = axis_of(page)
    page.get_by_role("button", name="Colours").click()
    page.get_by_role("button", name="Colours").click()
    page.wait_for_timeout(200)
    assert len({before, in_utc, axis_of(page)}) == 3


def test_a_gap_stays_a_gap_and_what_is_not_finite_is_said(page: Page) -> None:
    run(page, "last_over_time(draw_gap[30s])")
    expect(legend(page)).to_have_count(1)
    plot(page).scroll_into_view_if_needed()
    page.locator(".plot").focus()
    texts = []
    for _ in range(36):
        page.keyboard.press("PageDown")
        texts.append(legend(page).locator("td").nth(2).inner_text())
    assert "–" in texts
    assert "5" in texts
    run(page, "draw_odd")
    expect(legend(page)).to_have_count(2)
    page.locator(".plot").focus()
    page.keyboard.press("PageDown")
    page.keyboard.press("PageDown")
    seen = set()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
        seen |= {row.locator("td").nth(2).inner_text() for row in legend(page).all()}
    assert {"1", "∞", "NaN"} <= seen


COLOURED = """
(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let coloured = 0;
  for (let at = 0; at < data.length; at += 4) {
    const three = [data[at], data[at + 1], data[at + 2]];
    if (data[at + 3] > 200 && Math.max(...three) - Math.min(...three) > 80) coloured += 1;
  }
  return coloured;
}
"""
"""How many pixels are neither grey nor next to it."""


def test_a_point_that_is_the_only_one_is_seen(show: Callable[[str], Page]) -> None:
    page = show("#metrics?expr=vector(5)&range=10s&step=1m")
    expect(legend(page)).to_have_count(1)
    page.wait_for_timeout(200)
    assert page.locator(".plot canvas").evaluate(COLOURED) > 0


def test_values_that_differ_by_no_more_than_rounding_are_drawn(show: Callable[[str], Page]) -> None:
    page = show(
        f"#metrics?{urlencode({'expr': 'vector(1e16) + (time() % 4 > bool 1) * 2', 'range': '5m', 'step': '1s'})}"
    )
    expect(legend(page)).to_have_count(1)
    page.wait_for_timeout(200)
    assert page.locator(".plot canvas").evaluate(COLOURED) > 0


WRITTEN = """
  window.written = [];
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    window.written.push(text);
    return fillText.call(this, text, ...place);
  };
"""
"""Notes all texts that are drawn."""


def test_no_two_places_of_an_axis_have_the_same_text(tabs: Tabs, server: Cluster) -> None:
    page = tabs.open()
    page.add_init_script(WRITTEN)
    page.goto(f"{server.url}/#metrics?{urlencode({'expr': '12345678 + (time() % 60) / 60'})}")
    expect(legend(page)).to_have_count(1)
    page.wait_for_timeout(200)
    values = [text for text in page.evaluate("window.written") if text.startswith("12")]
    drawings = max(values.count(text) for text in values)
    assert all(text.startswith("1234567") for text in values), values
    assert len(set(values)) >= 3 and len(values) <= drawings * len(set(values))


def test_a_range_without_samples_says_so(page: Page) -> None:
    run(page, "draw_nothing")
    expect(query(page)).to_contain_text("No series has samples in this range")


@pytest.mark.parametrize("width", [360, 2560])
def test_the_graph_takes_the_width_there_is(tabs: Tabs, server: Cluster, width: int) -> None:
    page = tabs.open(f"{server.url}/#metrics?expr=draw_lines", size=(width, 800))
    expect(legend(page)).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 800, "height": 800})
    page.wait_for_function(
        "document.querySelector('.plot .u-wrap').clientWidth > 600 && document.documentElement.scrollWidth <= 800"
    )


def test_two_hundred_series_are_drawn_soon_and_those_with_the_greatest_values(
    server: Cluster, show: Callable[[str], Page]
) -> None:
    end = 1_800_000_000
    series = [
        (
            {"__name__": "draw_many", "i": f"{i:03d}"},
            [((end - k * 10) * 1000, math.sin(k / 30 + i) * i) for k in range(POINTS)][::-1],
        )
        for i in range(MANY)
    ]
    write(server, series)
    page = show(f"#metrics?range={10 * (POINTS - 1)}s&end={end}&step=10s")
    page.evaluate(CLOCK)
    times: list[float] = []
    while len(times) < TRIES and not (times and min(times) <= DRAWN_MS_MAX):
        run(page, "draw_many")
        expect(query(page).get_by_role("note")).to_have_text(
            f"200 of {MANY} series are drawn: those with the greatest values."
        )
        expect(legend(page)).to_have_count(200)
        expect(legend(page).first).to_contain_text('i="050"')
        times = page.evaluate("window.drawnAfter")
        run(page, "vector(1)")
        expect(legend(page)).to_have_count(1)
    assert min(times) <= DRAWN_MS_MAX, times


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    running = ForkedCluster(tmp_path).start()
    yield running
    running.stop()


def test_shards_that_are_missing_are_said_at_the_query(tabs: Tabs, own: Cluster) -> None:
    write(own, [({"__name__": "draw_part", "i": str(i)}, last_hour(lambda k: float(k))) for i in range(20)])
    page = tabs.open(f"{own.url}/#metrics?expr=draw_part")
    expect(legend(page)).to_have_count(20)
    tabs.expected = ("status of 503",)
    with own.without_worker(min(own.worker_pids())):
        expect(page.get_by_role("status").filter(has_text="of 4 shards ready")).to_be_visible(timeout=LOST_MS)
        editor(page).focus()
        page.keyboard.press("Enter")
        expect(query(page).get_by_role("list", name="Remarks")).to_contain_text("shard")
        assert 0 < legend(page).count() < 20
