"""The result of a query as a table: columns, order, thousands of rows, histograms, the time of evaluation."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, expect

from loadtest.harness.cluster import Cluster
from tests.page import explored_data
from tests.page.conftest import Tabs
from tests.page.tasks import Tasks
from tests.page.test_shell import serious

LONGEST_TASK_MS = 100


@pytest.fixture(scope="module")
def last(server: Cluster) -> int:
    """The time, in s, of the last samples."""
    return explored_data.write_all(server)


@pytest.fixture
def table(show: Callable[[str], Page], last: int) -> Callable[[str], Page]:
    """Opens a tab with the table of a query at the last samples."""

    def opened(expr: str) -> Page:
        page = show(f"#metrics?{urlencode({'expr': expr, 'view': 'table', 'end': last})}")
        expect(page.locator(".result")).to_be_visible()
        return page

    return opened


def headings(page: Page) -> list[str]:
    return [text.strip(" ▾▴") for text in page.get_by_role("columnheader").all_inner_texts()]


def column(page: Page | Locator, number: int) -> list[str]:
    return page.locator(f"tbody tr:not(.gap) td:nth-child({number})").all_inner_texts()


def test_labels_that_differ_have_columns_and_the_others_are_said_once(table: Callable[[str], Page]) -> None:
    page = table("page_requests_total")
    assert headings(page) == ["instance", "job", "value"]
    expect(page.locator(".result-common")).to_contain_text('page_requests_total{dc="zürich"}')
    page.get_by_role("button", name="value").click()
    assert column(page, 3) == ["478", "478", "478", "239", "239", "239"]
    page.get_by_role("button", name="value").click()
    assert column(page, 3)[0] == "239"
    page.get_by_role("button", name="instance").click()
    assert column(page, 1) == [f"{job}-{number}" for job in sorted(explored_data.JOBS) for number in (0, 1)]
    assert serious(page) == []


def test_text_of_the_table_is_selected_and_copied(table: Callable[[str], Page]) -> None:
    page = table('page_requests_total{job="api"}')
    page.locator("tbody tr").first.locator("td").first.dblclick()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('tbody tr'))")
    page.keyboard.press("Control+C")
    assert page.evaluate("navigator.clipboard.readText()").split() == ["api-0", "239"]


def test_ten_thousand_rows_do_not_freeze_the_page(table: Callable[[str], Page]) -> None:
    page = table("vector(1)")
    tasks, longest = Tasks(page), {}
    page.evaluate("location.hash = location.hash.replace('vector%281%29', 'page_many')")
    rows = page.locator("tbody tr")
    expect(page.get_by_text("10\u202f000", exact=True)).to_be_visible()
    assert 20 < rows.count() < 200, "only those in sight are in the document"
    longest["shown"] = tasks.longest_ms()
    for name in ("value", "i", "half"):
        page.get_by_role("button", name=name, exact=True).click()
        longest[f"sorted by {name}"] = tasks.longest_ms()
    page.get_by_role("searchbox", name="Filter Result").press_sequentially("0042")
    expect(page.get_by_text("11 of 10\u202f000")).to_be_visible()
    longest["filtered"] = tasks.longest_ms()
    page.get_by_role("searchbox", name="Filter Result").fill("")
    expect(page.get_by_text("10\u202f000", exact=True)).to_be_visible()  # before, there are only 11 rows to scroll
    page.locator(".table-scroll").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    expect(page.get_by_role("cell", name="09999", exact=True)).to_be_visible()
    longest["scrolled"] = tasks.longest_ms()
    print("longest tasks with 10,000 rows, ms:", {name: round(ms) for name, ms in longest.items()})
    assert max(longest.values()) <= LONGEST_TASK_MS


def test_scalars_and_strings_are_shown_as_they_are(table: Callable[[str], Page]) -> None:
    expect(table("scalar(vector(3)) * 2").locator(".result-plain")).to_have_text("6")
    expect(table('"a <b>&amp;"').locator(".result-plain")).to_have_text("a <b>&amp;")


def test_samples_of_a_range_selector_have_a_row_each_with_their_time(table: Callable[[str], Page]) -> None:
    page = table('page_requests_total{instance="api-1"}[1m]')
    assert headings(page) == ["metric", "dc", "instance", "job", "value", "time"]
    assert column(page, 5) == ["472", "474", "476", "478"]
    assert all(text.count(":") == 2 for text in column(page, 6))


def test_a_histogram_is_drawn_and_its_buckets_unfold(table: Callable[[str], Page]) -> None:
    page = table("page_native_seconds")
    expect(page.locator(".histogram-small path")).to_have_count(1)
    panel = page.locator("figure.histogram")
    expect(panel).to_contain_text("count 120")
    panel.get_by_text("3 buckets").click()
    assert column(page.locator("details"), 1) == ["(0.5, 1]", "(1, 2]", "(2, 4]"]
    assert column(page.locator("details"), 2) == ["20", "40", "60"]
    expect(panel).to_contain_text("50.00 %")


def test_one_of_several_histograms_is_chosen_by_key(table: Callable[[str], Page]) -> None:
    page = table('page_native_seconds or label_replace(page_native_seconds * 2, "job", "twice", "", "")')
    expect(page.locator("figure.histogram")).to_have_count(0)
    page.get_by_role("row").filter(has_text="twice").focus()
    page.keyboard.press("Enter")
    expect(page.locator("figure.histogram")).to_contain_text("count 240")


def test_the_time_of_evaluation_is_shown_and_changed(table: Callable[[str], Page], last: int) -> None:
    page = table('page_requests_total{instance="api-0"}')
    field = page.get_by_label("Evaluated at")
    page.keyboard.press("z")
    field.fill(str(last - 60))
    field.press("Enter")
    expect(page.get_by_role("cell", name="235", exact=True)).to_be_visible()
    assert "end=" in page.url
    field.fill("yesterday")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("yesterday is no time")
    page.get_by_role("button", name="Now").last.click()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_empty_result_says_so(table: Callable[[str], Page]) -> None:
    expect(table("page_nothing").get_by_text("No series has a value at this time.")).to_be_visible()


def test_labels_called_as_members_of_objects_are_labels(tabs: Tabs, server: Cluster, last: int) -> None:
    name = "page_odd"
    explored_data.write(
        server,
        [
            ({"__name__": name, "constructor": "a", "i": "1"}, [(last * 1000, 1.0)]),
            ({"__name__": name, "i": "2"}, [(last * 1000, 2.0)]),
        ],
    )
    page = tabs.open(f"{server.url}/#metrics?{urlencode({'expr': name, 'view': 'table', 'end': last})}")
    expect(page.get_by_role("columnheader").first).to_be_visible()
    assert headings(page) == ["constructor", "i", "value"]
    assert column(page, 1) == ["a", ""]
