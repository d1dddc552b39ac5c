"""The Metrics tab: typing queries, what completes and what is said to be wrong, several queries, and links."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from loadtest.harness.cluster import Cluster
from tests.page.conftest import Tabs
from tests.page.metrics_data import editor, fill, last_hour, query, run, write
from tests.page.test_shell import serious

NAMES = 30_000
QUERIES_MAX = 20
COMPLETION_MS_MAX = 50
WORDS = ("wide_name_17", "wide_name_29", "wide_name_03", "wide_name_11", "wide_name_22")
"""Each is a try: of each key the best one counts, since the machine does other things beside."""
WATCH = """
() => {
  window.shownAfter = [];
  const list = () => document.querySelector('.editor').shadowRoot.querySelectorAll('.cm-tooltip-autocomplete li');
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.key.length > 1) return;
    const from = performance.now();
    const look = () => {
      const text = document.querySelector('.editor').shadowRoot.querySelector('.cm-content').textContent.trim();
      const first = list()[0]?.textContent ?? '';
      if (text.endsWith(event.key) && first.includes(text)) window.shownAfter.push(performance.now() - from);
      else if (performance.now() - from < 3000) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, true);
}
"""
"""Notes for each key how long it takes until the list is of what is typed, in a frame that is painted."""


@pytest.fixture(autouse=True)
def unfinished(tabs: Tabs) -> None:
    """While a person types, the parser is asked about what is not finished, and the browser says each answer of 400."""
    tabs.expected = ("status of 4",)


@pytest.fixture(scope="module", autouse=True)
def data(server: Cluster) -> None:
    requests = [
        (
            {"__name__": "edit_requests_total", "job": "api", "instance": f"host-{i}", "path": f"/v{i}"},
            last_hour(lambda k, i=i: float(k * (i + 1))),  # type: ignore[misc]
        )
        for i in range(3)
    ]
    write(server, requests)


def option(page: Page, name: str, word: str) -> Locator:
    """What completes a name, once the list is of the whole word that is typed: a list of its beginning is not used."""
    listed = page.get_by_role("option", name=name, exact=True)
    expect(listed.locator(".cm-completionMatchedText")).to_have_text(word)
    return listed


def test_a_query_is_typed_with_completion_run_and_kept_in_the_link(tabs: Tabs, page: Page) -> None:
    editor(page).click()
    page.keyboard.type("rate(edit_req")
    expect(option(page, "edit_requests_total", "edit_req")).to_be_visible()
    page.keyboard.press("Enter")
    page.keyboard.type("{jo")
    expect(option(page, "job", "jo")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.type('="')
    expect(page.get_by_role("option", name="api", exact=True)).to_be_visible()
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.type("[5m]")
    expect(editor(page)).to_have_text('rate(edit_requests_total{job="api"}[5m])')
    page.keyboard.press("Enter")
    expect(query(page).get_by_label("About the answer")).to_contain_text("3 series")
    expect(query(page).get_by_label("About the answer")).to_contain_text("step 10s")
    again = tabs.open(page.url)
    expect(editor(again)).to_have_text('rate(edit_requests_total{job="api"}[5m])')
    expect(query(again).get_by_role("table", name="Legend").get_by_role("row")).to_have_count(4)


def test_functions_and_keywords_complete(page: Page) -> None:
    editor(page).click()
    page.keyboard.type("histogram_q")
    expect(page.get_by_role("option", name="histogram_quantile").first).to_be_visible()
    page.keyboard.press("Escape")
    fill(page, "")
    page.keyboard.type("sum(edit_requests_total) b")
    expect(page.get_by_role("option", name="by", exact=False).first).to_be_visible()


def test_a_metric_of_which_nothing_else_is_known_completes_also_if_it_is_called_as_what_all_objects_have(
    server: Cluster, page: Page
) -> None:
    write(server, [({"__name__": "toLocaleString"}, last_hour(float))])
    editor(page).click()
    with page.expect_response("**/api/v1/metadata*metric=toLocaleString*"):
        page.keyboard.type("toLocaleS")
    expect(option(page, "toLocaleString", "toLocaleS")).to_be_visible()
    page.keyboard.press("Enter")
    expect(editor(page)).to_have_text("toLocaleString")


@pytest.mark.parametrize(
    ("before", "word", "name", "query_text"),
    [
        ("", "dotted", "edit.dotted.name", '{"edit.dotted.name"}'),
        ('{"', "edit.dot", "edit.dotted.name", '{"edit.dotted.name"}'),
        ('{"', "edit_req", "edit_requests_total", '{"edit_requests_total"}'),
        ("edit_quoted{", "serv", "service.name", 'edit_quoted{"service.name"}'),
        ("sum by (", "serv", "service.name", 'sum by ("service.name")'),
    ],
)
def test_names_that_are_no_plain_identifiers_are_completed_with_quotes(
    server: Cluster, page: Page, before: str, word: str, name: str, query_text: str
) -> None:
    labels = {"__name__": "edit_quoted", "service.name": "shop"}
    write(server, [(labels, last_hour(float, 1)), ({"__name__": "edit.dotted.name"}, last_hour(float, 1))])
    editor(page).click()
    page.keyboard.type(before + word)
    option(page, name, word).click()
    expect(editor(page)).to_have_text(query_text)


def test_what_the_parser_says_is_underlined_and_said(page: Page) -> None:
    editor(page).click()
    page.keyboard.type("sum(rat(edit_requests_total[5m]))")
    expect(query(page).get_by_role("status")).to_contain_text('unknown function with name "rat"')
    marked = page.locator(".cm-lintRange-error")
    expect(marked).to_have_text("rat")
    marked.hover()
    expect(page.locator(".cm-tooltip-lint")).to_contain_text("unknown function")
    page.keyboard.press("Control+Enter")
    expect(query(page).get_by_role("alert")).to_contain_text("unknown function")
    fill(page, "sum(rate(edit_requests_total[5m]))")
    expect(marked).to_have_count(0)


def test_a_remark_shows_its_place(page: Page) -> None:
    run(page, "rate(edit_requests_total[5m]) + sum(histogram_quantile(2, edit_requests_total))")
    remarks = query(page).get_by_role("list", name="Remarks")
    expect(remarks).to_contain_text("quantile value should be between 0 and 1")
    expect(page.locator(".cm-lintRange-warning").first).to_be_visible()
    place = remarks.get_by_role("button", name="line 1, column").first
    column = int(place.inner_text().rpartition(" ")[2])
    place.click()
    expect(editor(page)).to_be_focused()
    before = editor(page).inner_text()
    page.keyboard.insert_text("7")  # in place of what is selected
    expect(editor(page)).to_have_text(before[: column - 1] + "7" + before[column:])


def test_a_query_is_laid_out_by_the_book(page: Page) -> None:
    fill(page, "sum   by(job)(edit_requests_total)")
    page.get_by_role("button", name="Format query 1").click()
    expect(editor(page)).to_have_text("sum by (job) (edit_requests_total)")


def test_what_is_typed_while_a_query_is_laid_out_stays(page: Page) -> None:
    held: list[Route] = []
    page.route("**/api/v1/format_query", lambda route: held.append(route))
    fill(page, "sum(edit_requests_total)")
    with page.expect_request("**/api/v1/format_query"):
        page.get_by_role("button", name="Format query 1").click()
    editor(page).click()
    page.keyboard.press("End")
    page.keyboard.insert_text("+1")
    with page.expect_response("**/api/v1/format_query"):
        held[0].continue_()
    page.wait_for_timeout(200)
    expect(editor(page)).to_have_text("sum(edit_requests_total)+1")


def test_completion_is_quick_with_thirty_thousand_names(server: Cluster, show: Callable[[str], Page]) -> None:
    write(server, [({"__name__": f"wide_name_{i:05d}_total"}, last_hour(lambda k: 1.0, 1)) for i in range(NAMES)])
    page = show("#metrics")
    editor(page).click()
    page.keyboard.type("edit")
    expect(page.get_by_role("option", name="edit_requests_total")).to_be_visible()  # the names are there
    page.evaluate(WATCH)
    times = []
    for word in WORDS:
        fill(page, "")
        page.evaluate("window.shownAfter = []")
        for key in word:
            page.keyboard.press(key)
            page.wait_for_timeout(100)
        times.append(page.evaluate("window.shownAfter"))
    expect(page.get_by_role("option", name="more")).to_be_visible()
    best = [min(tries) for tries in zip(*times, strict=True)]
    assert len(best) == len(WORDS[0])
    assert max(best) <= COMPLETION_MS_MAX, times


def test_queries_are_added_copied_hidden_moved_and_removed(page: Page) -> None:
    run(page, "edit_requests_total")
    page.get_by_role("button", name="Duplicate query 1").click()
    run(page, "sum(edit_requests_total)", 2)
    expect(query(page, 2).get_by_label("About the answer")).to_contain_text("1 series")
    page.get_by_role("button", name="Hide query 1").click()
    expect(query(page).get_by_label("About the answer")).to_have_count(0)
    page.get_by_role("button", name="Move up query 2").click()
    expect(editor(page)).to_have_text("sum(edit_requests_total)")
    page.reload()
    expect(editor(page, 2)).to_have_text("edit_requests_total")
    expect(query(page, 2).get_by_label("About the answer")).to_have_count(0)
    page.get_by_role("button", name="Remove query 2").click()
    expect(query(page, 2)).to_have_count(0)
    expect(query(page).get_by_label("About the answer")).to_contain_text("1 series")
    page.go_back()
    expect(editor(page, 2)).to_have_text("edit_requests_total")


def test_the_only_query_is_emptied_also_of_what_was_not_run(page: Page) -> None:
    fill(page, "edit_requests_total")
    page.get_by_role("button", name="Remove query 1").click()
    expect(editor(page)).not_to_contain_text("edit_requests_total")


def test_no_query_is_added_to_as_many_as_there_may_be(show: Callable[[str], Page]) -> None:
    page = show("#metrics?" + "&".join(f"expr={number}&view=table" for number in range(QUERIES_MAX)))
    expect(editor(page, QUERIES_MAX)).to_have_text(str(QUERIES_MAX - 1))
    page.get_by_role("button", name="Duplicate query 1", exact=True).click()
    page.wait_for_timeout(200)
    assert editor(page, 2).inner_text() == "1"
    assert f"expr={QUERIES_MAX - 1}" in page.url


def test_what_was_answered_stays_when_it_is_asked_again_in_vain(page: Page) -> None:
    run(page, "edit_requests_total")
    legend = query(page).get_by_role("table", name="Legend")
    expect(legend).to_be_visible()
    page.route(
        "**/api/v1/query_range", lambda route: route.fulfill(status=422, json={"status": "error", "error": "no"})
    )
    page.get_by_role("button", name="Run", exact=True).click()
    expect(query(page).get_by_role("alert")).to_be_visible()
    expect(legend).to_be_visible()
    run(page, "edit_requests_total + 1")
    expect(legend).to_have_count(0)


def test_keys_focus_add_choose_tabs_and_run(page: Page) -> None:
    expect(editor(page)).to_be_visible()
    page.keyboard.press("/")
    expect(editor(page)).to_be_focused()
    page.keyboard.type("vector(1)")
    page.keyboard.press("Escape")  # the list of completions
    page.keyboard.press("Escape")  # the text
    page.keyboard.press("r")
    expect(query(page).get_by_label("About the answer")).to_be_visible()
    page.keyboard.press("2")
    expect(query(page).get_by_role("tab", name="Table")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("a")
    expect(editor(page, 2)).to_be_visible()


@pytest.mark.parametrize("path", ["graph", "query"])
def test_links_to_prometheus_show_the_same_here(tabs: Tabs, server: Cluster, path: str) -> None:
    link = (
        f"{path}?g0.expr=edit_requests_total&g0.tab=graph&g0.range_input=2h&g1.expr=sum(edit_requests_total)&g1.tab=1"
    )
    page = tabs.open(f"{server.url}/{link}")
    expect(editor(page)).to_have_text("edit_requests_total")
    expect(page.get_by_role("combobox", name="Range")).to_have_value("2h")
    expect(query(page).get_by_role("tab", name="Graph")).to_have_attribute("aria-selected", "true")
    expect(query(page, 2).get_by_role("tab", name="Table")).to_have_attribute("aria-selected", "true")


def test_a_slow_query_says_so_and_is_cancelled(page: Page) -> None:
    page.route("**/api/v1/query_range", lambda route: None)  # never answered
    run(page, "edit_requests_total")
    expect(query(page).get_by_role("status").filter(has_text="The query is running")).to_be_visible()
    query(page).get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page.unroute("**/api/v1/query_range")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(query(page).get_by_label("About the answer")).to_contain_text("3 series")


def test_only_the_last_of_two_runs_is_shown(page: Page) -> None:
    held: list[Route] = []
    given_up: list[Request] = []
    page.on("requestfailed", lambda request: given_up.append(request))
    page.route("**/api/v1/query_range", lambda route: held.append(route) if not held else route.fallback())
    run(page, "edit_requests_total")
    expect(page.get_by_role("button", name="Cancel").first).to_be_visible()
    run(page, "sum(edit_requests_total)")
    expect(query(page).get_by_label("About the answer")).to_contain_text("1 series")
    assert held[0].request in given_up


def test_a_refresh_asks_again(page: Page) -> None:
    run(page, "vector(time())")
    page.get_by_role("tab", name="Table").click()
    cell = query(page).get_by_role("cell").last
    expect(cell).to_be_visible()
    before = cell.inner_text()
    page.get_by_role("combobox", name="Refresh").select_option("1s")
    expect(cell).not_to_have_text(before)
    page.get_by_role("combobox", name="Refresh").select_option("")


def test_a_refresh_that_is_longer_than_timers_of_browsers_does_not_ask_at_once(show: Callable[[str], Page]) -> None:
    page = show("#metrics?expr=vector(1)&refresh=30d")
    asked: list[Request] = []
    expect(query(page).get_by_label("About the answer")).to_be_visible()
    page.on("request", lambda request: asked.extend([request] if "query_range" in request.url else []))
    page.wait_for_timeout(1000)
    assert asked == []


def test_the_latest_time_that_can_be_written_is_not_left(show: Callable[[str], Page]) -> None:
    page = show("#metrics?expr=vector(1)&end=9999-12-31T23:59:00Z")
    expect(query(page).get_by_label("About the answer")).to_be_visible()
    page.get_by_role("button", name="Later").click()
    expect(query(page).get_by_label("About the answer")).to_be_visible()
    assert "end=9999-12-31T23%3A59%3A59.999Z" in page.url
    field = page.get_by_label("End", exact=True)
    field.fill("99999999999999")
    field.press("Tab")
    assert "is not now, Unix seconds, or a time" in field.evaluate("node => node.validationMessage")


def test_times_that_make_no_sense_are_said_and_not_used(page: Page) -> None:
    field = page.get_by_role("combobox", name="Range")
    field.fill("soon")
    field.press("Tab")
    assert "soon is not a duration" in field.evaluate("node => node.validationMessage")
    assert "range=" not in page.url
    field.fill("90m")
    field.press("Tab")
    expect(field).to_have_value("1h30m")
    assert "range=1h30m" in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_while_something_is_shown(tabs: Tabs, server: Cluster, scheme: str) -> None:
    page = tabs.open(
        f"{server.url}/#metrics?expr=edit_requests_total&expr=1&view=graph&view=table", color_scheme=scheme
    )
    expect(query(page).get_by_role("table", name="Legend")).to_be_visible()
    editor(page, 2).click()
    assert serious(page) == []
