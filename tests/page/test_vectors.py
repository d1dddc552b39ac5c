"""The area "vectors" as a person uses it: collections, attributes, filters by click, searches, recall and the map."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from loadtest.harness.cluster import Cluster
from tests.cluster.vector_requests import ids, put, search, write
from tests.page.conftest import Tabs
from tests.page.test_shell import serious

COUNT = 180
COLOURS = ("red", "green", "blue")
TEXTS = ("the quick red fox", "a slow green frog", "the big blue whale")
LONG = "word " * 1000
_centres = np.array([[9, 0, 0, 1], [0, 9, 0, 1], [0, 0, 9, 1]], dtype=float)
TABLE = np.round(_centres[np.arange(COUNT) % 3] + np.random.default_rng(1).standard_normal((COUNT, 4)), 3)
DIFFERENT_COLOURS = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] > 180) seen.add(`${data[i] >> 5} ${data[i + 1] >> 5} ${data[i + 2] >> 5}`);
  }
  return seen.size;
}"""
Show = Callable[[str], Page]


@pytest.fixture(scope="module", autouse=True)
def _collections(server: Cluster) -> None:
    put(server, "animals", {"dimension": 4, "metric": "l2", "textFields": ["body"]})
    entries: list[tuple[str, dict[str, Any]]] = [
        (
            f"v{n:03}",
            {"vector": row, "colour": COLOURS[n % 3], "body": TEXTS[n % 3], "year": 1900 + n, "tags": ["a", "b"]},
        )
        for n, row in enumerate(TABLE.tolist())
    ]
    entries[7][1]["story"] = LONG
    write(server, *entries, collection="animals")
    put(server, "empty", {"dimension": 3})


def rows(page: Page, label: str = "Vectors") -> Locator:
    return page.get_by_role("table", name=label).locator("tbody tr")


def facet(page: Page, name: str) -> Locator:
    return (
        page.get_by_role("region", name="Attributes").locator("details").filter(has=page.get_by_text(name, exact=True))
    )


def test_collections_are_listed_with_what_they_have(page: Page, server: Cluster) -> None:
    page.get_by_role("link", name="Vectors", exact=True).click()
    row = rows(page, "Collections").filter(has_text="animals")
    expect(row).to_contain_text("180")
    expect(row).to_contain_text("l2")
    row.get_by_role("button", name="animals").click()
    figures = page.locator("dl[aria-label=Figures]")
    for words in ("Dimension4", "Metricl2", "Wait for the index"):
        expect(figures).to_contain_text(words)
    page.get_by_role("button", name="All collections").click()
    expect(rows(page, "Collections").filter(has_text="empty")).to_have_count(1)


def test_vectors_are_browsed_in_pages_with_attributes_and_no_embedding(show: Show) -> None:
    page = show("#vectors?collection=animals")
    expect(rows(page)).to_have_count(50)
    expect(rows(page).first).to_contain_text("v000")
    expect(rows(page).first).to_contain_text("red")
    status = page.get_by_role("navigation", name="Pages").get_by_role("status")
    expect(status).to_have_text("1 to 50 of 180")
    page.get_by_role("button", name="Next").click()
    expect(status).to_have_text("51 to 100 of 180")
    expect(rows(page).first).to_contain_text("v050")
    page.get_by_role("button", name="Previous").click()
    expect(rows(page).first).to_contain_text("v000")
    page.get_by_label("Order").select_option("year")
    page.get_by_label("descending").check()
    expect(rows(page).first).to_contain_text("v179")
    page.reload()
    expect(rows(page).first).to_contain_text("v179")


def test_a_row_opens_its_vector_with_the_embedding_folded(show: Show) -> None:
    page = show("#vectors?collection=animals")
    rows(page).filter(has_text="v007").click()
    detail = page.get_by_role("complementary", name="Vector v007")
    expect(detail).to_contain_text("green")
    expect(detail.get_by_role("button", name="more of 4.88 KiB")).to_be_visible()
    numbers = json.dumps(TABLE[7].tolist())
    expect(detail).not_to_contain_text(numbers[1:-1])
    detail.get_by_text("Embedding").click()
    expect(detail).to_contain_text(numbers[1:-1])
    page.reload()
    expect(page.get_by_role("complementary", name="Vector v007")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(detail).to_have_count(0)


def test_a_filter_is_built_by_clicks_and_edited_as_json(show: Show) -> None:
    page = show("#vectors?collection=animals")
    facet(page, "colour").locator("summary").click()
    facet(page, "colour").get_by_role("button", name="red 60").click()
    status = page.get_by_role("navigation", name="Pages").get_by_role("status")
    expect(status).to_have_text("1 to 50 of 60")
    bar = page.get_by_role("group", name="Filter")
    expect(bar).to_contain_text('colour = "red"')
    facet(page, "colour").get_by_role("button", name="blue 60").click()  # the counts are those without the choice
    expect(status).to_have_text("1 to 50 of 120")
    expect(bar).to_contain_text('colour in "red", "blue"')
    facet(page, "year").locator("summary").click()
    page.get_by_label("year to").fill("1910")
    page.get_by_label("year to").press("Enter")
    expect(status).to_have_text("1 to 7 of 7")
    page.reload()
    expect(status).to_have_text("1 to 7 of 7")
    bar.get_by_text("JSON").click()
    editor = page.get_by_label("Filter as JSON")
    assert json.loads(editor.input_value())["and"][1] == {"lte": {"field": "year", "value": 1910}}
    editor.fill('{"eq": ')
    page.get_by_role("button", name="Apply").first.click()
    expect(bar.get_by_role("alert")).to_contain_text("not valid JSON")
    editor.fill('{"contains": {"field": "tags", "value": "b"}}')
    editor.press("Control+Enter")
    expect(status).to_have_text("1 to 50 of 180")
    bar.get_by_role("button", name='tags contains "b"').click()
    expect(bar).to_contain_text("none")


def test_a_wrong_field_in_a_filter_is_said(show: Show) -> None:
    page = show('#vectors?collection=animals&filter={"eq":{"field":"color","value":"red"}}')
    expect(page.get_by_label("Remarks").first).to_contain_text("the nearest field is 'colour'")


def nearest(query: np.ndarray, count: int, skipped: int = 0) -> list[str]:
    order = np.argsort(np.linalg.norm(TABLE - query, axis=1), kind="stable")
    return [f"v{place:03}" for place in order[skipped : count + skipped].tolist()]


def found(page: Page, column: int = 3) -> list[str]:
    return page.get_by_role("table", name="Results").locator(f"tbody tr td:nth-child({column})").all_inner_texts()


def test_a_search_by_an_id_goes_on_from_a_vector(show: Show, tabs: Tabs) -> None:
    tabs.expected = ("404",)
    page = show("#vectors?collection=animals&sel=v004")
    page.get_by_role("button", name="Search by it").click()
    expect(rows(page, "Results")).to_have_count(10)
    assert found(page) == nearest(TABLE[4], 10, skipped=1)
    page.get_by_label("Id", exact=True).fill("nobody")
    page.get_by_label("Id", exact=True).press("Enter")
    expect(page.get_by_role("alert").filter(has_text="there is no vector 'nobody'")).to_be_visible()


def test_a_pasted_vector_is_checked_before_it_is_searched(show: Show) -> None:
    page = show("#vectors?collection=animals&mode=search")
    page.get_by_label("a pasted vector").check()
    box = page.get_by_label("Vector of 4 numbers")
    submit = page.get_by_role("button", name="Search", exact=True).last
    alert = page.get_by_role("form", name="Search").get_by_role("alert")
    for text, message in (
        ("[1, 2, 3]", "this vector has 3 components; those of this collection have 4"),
        ('[1, "x", 3, 4]', 'component 1 is "x"; every component is a number'),
        ("[1, 2", "this is not a JSON array"),
        ("", "paste a vector"),
    ):
        box.fill(text)
        submit.click()
        expect(alert).to_contain_text(message)
    box.fill("[8, 1, 0, 1]")
    submit.click()
    expect(rows(page, "Results")).to_have_count(10)
    assert found(page) == nearest(np.array([8, 1, 0, 1]), 10)
    page.reload()
    expect(rows(page, "Results")).to_have_count(10)
    box.fill("0 9, 0 1")
    submit.click()
    expect(rows(page, "Results").first).to_contain_text(nearest(np.array([0, 9, 0, 1]), 1)[0])


def test_recall_compares_the_index_with_all_vectors(show: Show) -> None:
    page = show("#vectors?collection=animals&mode=search&near=id&id=v010")
    page.get_by_role("button", name="Recall of this query").click()
    expect(page.get_by_role("group", name="Recall")).to_contain_text(re.compile(r"recall 1\.000 \(10 of 10\).*exact"))


def test_the_share_that_was_missed_is_what_recall_says(page: Page) -> None:
    module = page.locator("link[rel=modulepreload][href$='vectors/recall.js']").get_attribute("href")
    result = page.evaluate(
        """async (path) => {
          const { recallOf } = await import(new URL(path, document.baseURI));
          const hit = (id, score) => ({ score, vector: { id } });
          const exact = [hit("a", 1), hit("b", 2), hit("c", 3), hit("d", 3)];
          const some = [hit("a", 1), hit("c", 3), hit("e", 3), hit("f", 4)];
          const tied = [hit("a", 1), hit("b", 2), hit("e", 3), hit("f", 3)];
          return [some, tied]
            .map((found) => recallOf(found, exact));
        }""",
        module,
    )
    assert [(one["kept"], one["of"], one["missed"]) for one in result] == [(3, 4, ["b", "d"]), (4, 4, [])]


def test_texts_are_searched_alone_and_with_a_vector(show: Show, server: Cluster) -> None:
    page = show("#vectors?collection=animals&mode=search")
    page.get_by_label("no vector, by text only").check()
    page.get_by_label("Text in body").fill("fox")
    page.get_by_label("Text in body").press("Enter")
    expect(rows(page, "Results")).to_have_count(10)
    expect(rows(page, "Results").first.locator("mark")).to_have_text("fox")
    page.get_by_label("the vector of an id").check()
    page.get_by_label("Id", exact=True).fill("v001")
    page.get_by_role("button", name="Search", exact=True).last.click()
    expect(page.get_by_text("hybrid: both rankings")).to_be_visible()
    fused = ids(search(server, collection="animals", id="v001", text={"query": "fox"}, k=10))
    expect(rows(page, "Results").first).to_contain_text(fused[0])
    assert found(page, 4) == fused


def test_the_map_is_coloured_hovered_and_chosen_from(show: Show) -> None:
    page = show("#vectors?collection=animals&mode=map")
    expect(page.get_by_text("180 of 180 vectors")).to_be_visible()
    page.get_by_label("Colour by").select_option("colour")
    legend = page.get_by_role("region", name="Legend: colour")
    for name in COLOURS:
        expect(legend.get_by_role("button", name=f"{name} 60")).to_be_visible()
    canvas = page.get_by_role("application", name=re.compile("Map of 180 vectors"))
    assert canvas.evaluate(DIFFERENT_COLOURS) >= 3
    before = canvas.evaluate("c => c.toDataURL()")
    legend.get_by_role("button", name="red 60").click()
    expect(legend.get_by_role("button", name="red 60")).to_have_attribute("aria-pressed", "true")
    assert canvas.evaluate("c => c.toDataURL()") != before
    canvas.focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator(".vectors-tip")
    expect(tip).to_contain_text("year")
    name = tip.locator("strong").inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name=f"Vector {name}")).to_be_visible()
    page.reload()
    expect(legend).to_be_visible()
    box = canvas.bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    drawn = canvas.evaluate("c => c.toDataURL()")
    page.mouse.move(*middle)
    page.mouse.wheel(0, -400)
    page.wait_for_function("([c, before]) => c.toDataURL() !== before", arg=[canvas.element_handle(), drawn])
    page.get_by_role("button", name="All", exact=True).click()
    page.mouse.move(0, 0)
    page.wait_for_function("([c, before]) => c.toDataURL() === before", arg=[canvas.element_handle(), drawn])


def test_a_map_by_numbers_is_a_scale(show: Show) -> None:
    page = show("#vectors?collection=animals&mode=map&colour=year&points=200")
    legend = page.get_by_role("region", name="Legend: year")
    expect(legend.get_by_role("button")).to_have_count(6)
    expect(legend.get_by_role("button").first).to_contain_text("1900 to")


def test_texts_of_a_megabyte_are_cut_where_they_fill_the_screen(show: Show, server: Cluster) -> None:
    put(server, "large", {"dimension": 1})
    entries = [(f"v{n}", {"vector": [1], "id": 2**53 + 1, "text": f"{n} " + "x" * 1_000_000}) for n in range(8)]
    write(server, *entries, collection="large")
    page = show("#vectors?collection=large")
    expect(rows(page)).to_have_count(8)
    facet(page, "text").locator("summary").click()
    expect(facet(page, "text").get_by_role("button", name=re.compile("^0 xxx")).first).to_be_disabled()
    assert page.evaluate("document.body.textContent.length") < 20_000
    facet(page, "id").locator("summary").click()
    huge = facet(page, "id").get_by_role("button", name="9007199254740992")  # it is one more
    expect(huge).to_be_disabled()
    rows(page).first.click()
    detail = page.get_by_role("complementary", name="Vector v0")
    detail.get_by_role("button", name="more of 977 KiB").click()
    assert page.evaluate("document.body.textContent.length") < 150_000
    with page.expect_download() as download:
        detail.get_by_role("button", name="download").click()
    assert download.value.path().stat().st_size == 1_000_002


def test_attributes_may_be_called_as_what_all_objects_have(show: Show, server: Cluster) -> None:
    put(server, "races", {"dimension": 1})
    write(
        server,
        ("v1", {"vector": [1], "constructor": "Sauber", "__proto__": 1}),
        ("v2", {"vector": [1]}),
        collection="races",
    )
    page = show("#vectors?collection=races")
    expect(rows(page)).to_have_count(2)
    expect(rows(page).first).to_contain_text("Sauber")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert sorted(download.value.path().read_text().splitlines()[0].split(",")) == ["__proto__", "constructor", "id"]
    assert download.value.path().read_text().splitlines()[2] == "v2,,"


def test_what_was_asked_of_one_collection_is_not_asked_of_the_next(show: Show) -> None:
    page = show('#vectors?collection=animals&filter={"eq":{"field":"colour","value":"red"}}&order=year&mode=map')
    expect(page.get_by_text("60 of 60 vectors")).to_be_visible()
    page.get_by_role("button", name="All collections").click()
    rows(page, "Collections").filter(has_text="empty").get_by_role("button").click()
    expect(page).to_have_url(re.compile(r"#vectors\?collection=empty$"))


def test_a_search_is_cancelled_while_it_goes_on(show: Show) -> None:
    page = show("#vectors?collection=animals&mode=search")
    page.route("**/api/v1/vector/search", lambda route: None)  # no answer, ever
    page.get_by_label("Id", exact=True).fill("v001")
    page.get_by_label("Id", exact=True).press("Enter")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled.")).to_be_visible()


def test_an_empty_collection_says_so(show: Show) -> None:
    page = show("#vectors?collection=empty")
    expect(page.get_by_text("No vector satisfies the filter.")).to_be_visible()
    page.keyboard.press("3")
    expect(page.get_by_text("There is no vector to be shown.")).to_be_visible()
    page.goto(page.url.split("#")[0] + "#vectors?collection=gone")
    expect(page.get_by_role("alert")).to_contain_text("there is no collection gone")


@pytest.mark.parametrize("mode", ["browse", "search&near=id&id=v001", "map&colour=colour"])
@pytest.mark.parametrize("width", [360, 1280])
def test_each_way_to_look_is_readable_by_everybody(show: Show, mode: str, width: int) -> None:
    page = show(f"#vectors?collection=animals&sel=v003&mode={mode}")
    page.set_viewport_size({"width": width, "height": 800})
    expect(page.get_by_role("complementary", name="Vector v003")).to_contain_text("red")
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
