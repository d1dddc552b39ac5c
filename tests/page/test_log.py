"""The area Log: records read back and forth, searched, shown by what they are, and appended by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

from loadtest.harness.cluster import Cluster
from tests.cluster.log_requests import append, b64
from tests.page.conftest import Tabs
from tests.page.test_shell import serious

Show = Callable[[str], Page]
LARGE_BYTES = 8 << 20
LONGEST_TASK_MS = 500
"""While a value of megabytes is chosen and downloaded. The machine of a test may be busy."""
LONG_TASKS = """() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
        for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration);
    }).observe({ type: "longtask" });
}"""


@pytest.fixture
def key() -> str:
    return f"page-{uuid4().hex}"


def fill(server: Cluster, key: str, count: int, text: str = "line {}") -> int:
    """The number of the first of `count` records."""
    records = [(key.encode(), text.format(number).encode()) for number in range(count)]
    return int(append(server, records, awaitDurable=True)["startSequence"])


def rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Records").locator("tbody tr[data-sequence]")


def record(page: Page, sequence: int) -> Locator:
    return page.get_by_role("region", name=f"Record {sequence}", exact=True)


def fragment(**parameters: str | int) -> str:
    return "#log?" + "&".join(f"{name}={quote(str(value))}" for name, value in parameters.items())


def test_a_key_is_typed_completed_and_read_back_and_forth(server: Cluster, show: Show, key: str) -> None:
    start = fill(server, key, 450)
    page = show("#log")
    page.get_by_label("Kind of choice").select_option("Key")
    page.get_by_label("Key", exact=True).fill(key[:12])
    expect(page.locator(f'datalist option[value="{key}"]')).to_be_attached()
    page.get_by_label("Key", exact=True).fill(key)
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(200)
    expect(rows(page).last).to_contain_text("line 449")
    expect(rows(page).last).to_be_in_viewport()
    expect(rows(page).first).to_contain_text(f"{start + 250}")
    page.get_by_role("button", name="Older").click()
    expect(rows(page).first).to_contain_text("line 50")
    page.get_by_role("button", name="Older").click()
    expect(rows(page)).to_have_count(50)
    expect(page.get_by_text("there are no older ones")).to_be_visible()
    page.get_by_role("button", name="Newer").click()
    expect(rows(page).first).to_contain_text("line 50")
    page.get_by_role("button", name="First").focus()
    page.keyboard.press("f")
    expect(rows(page).first).to_contain_text("line 0")
    page.keyboard.press("l")
    expect(rows(page).last).to_contain_text("line 449")
    page.keyboard.press("n")
    expect(page.get_by_text("so far")).to_be_visible()
    page.get_by_label("Sequence or time").fill(str(start + 100))
    page.keyboard.press("Enter")
    expect(rows(page).first).to_contain_text("line 100")
    page.get_by_label("Sequence or time").fill("2020-01-01 12:00")
    page.keyboard.press("Enter")
    expect(rows(page).first).to_contain_text("line 0")
    page.get_by_label("Sequence or time").fill("yesterday")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("neither a sequence number nor a time")


def test_a_key_pressed_in_the_moment_records_change_goes_on_from_those_that_are_seen(
    server: Cluster, show: Show, key: str
) -> None:
    fill(server, key, 450)
    page = show(fragment(key=key, **{"from": 0}))
    expect(rows(page)).to_have_count(200)
    page.evaluate("""() => new MutationObserver((changes, observer) => {
        if (!document.querySelector("#main").textContent.includes("line 449")) return;
        observer.disconnect();
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "n", bubbles: true }));
    }).observe(document.querySelector("#main"), { childList: true, subtree: true, characterData: true })""")
    page.keyboard.press("l")
    expect(page.get_by_text("so far")).to_be_visible()


def test_records_of_a_rare_prefix_are_found_backwards(server: Cluster, show: Show, key: str) -> None:
    start = fill(server, f"{key}/a", 30)
    fill(server, "other", 3000)
    fill(server, f"{key}/b", 250)
    page = show(fragment(prefix=f"{key}/"))
    expect(rows(page)).to_have_count(200)
    expect(rows(page).last).to_contain_text(f"{key}/b")
    page.get_by_role("button", name="Older").click()
    expect(rows(page)).to_have_count(80)
    expect(rows(page).first).to_contain_text(f"{start}")
    page.get_by_role("button", name="Newer").click()
    expect(rows(page).last).to_contain_text("line 249")


def test_a_search_marks_what_it_finds_and_says_at_the_field_what_is_wrong(
    server: Cluster, tabs: Tabs, show: Show, key: str
) -> None:
    tabs.expected = ("400 (Bad Request)",)
    append(server, [(key.encode(), text) for text in (b"all is well", b"an ERROR of 5", b"error of 70", b'{"n": 5}')])
    page = show(fragment(key=key))
    expect(rows(page)).to_have_count(4)
    page.keyboard.press("/")
    page.keyboard.type("(?i)error of \\d+")
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(2)
    expect(page.locator("mark")).to_have_text(["ERROR of 5", "error of 70"])
    page.get_by_role("button", name="Count all").click()
    expect(page.get_by_text("2 in all")).to_be_visible()
    page.get_by_label("Has not").fill("70")
    page.keyboard.press("Enter")
    expect(page.locator("mark")).to_have_text(["ERROR of 5"])
    page.reload()
    expect(page.locator("mark")).to_have_text(["ERROR of 5"])
    page.get_by_label("Has", exact=True).fill("(")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("parameter 'grep'")
    expect(page.get_by_label("Has", exact=True)).to_have_attribute("aria-invalid", "true")
    for name in ("Has", "Has not"):
        page.get_by_label(name, exact=True).fill("")
    page.get_by_label("Where").fill("$.n = 5")
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(1)


def test_an_expression_that_is_slow_in_a_browser_does_not_stop_the_page(server: Cluster, show: Show, key: str) -> None:
    append(server, [(key.encode(), b"a" * 200 + b"! b")])
    page = show(fragment(key=key, grep="(a+)+$|b"))
    expect(page.get_by_text("this browser cannot mark the matches")).to_be_visible()
    expect(rows(page)).to_have_count(1)


def test_json_is_a_tree_that_opens_with_paths_and_all_digits(server: Cluster, show: Show, key: str) -> None:
    value = {"state": "paid", "items": list(range(150)), "deep": {"user name": {"ann": [None, True]}}}
    text = json.dumps(value)[:-1] + ', "big": 12345678901234567890, "html": "<b>x</b>"}'
    start = append(server, [(key.encode(), text.encode()), (key.encode(), b'{"state": "new"}')])["startSequence"]
    page = show(fragment(key=key))
    rows(page).first.click()
    shown = record(page, start)
    expect(shown).to_contain_text("12345678901234567890")
    expect(shown).to_contain_text('"<b>x</b>"')
    expect(shown.get_by_text("[150]")).to_be_visible()
    shown.get_by_role("button", name="Open $.items").click()
    shown.get_by_role("button", name="50 more").click()
    shown.get_by_role("button", name="149", exact=True).click()
    expect(shown.get_by_label("Path")).to_have_text("$.items[149]")
    shown.get_by_role("button", name="ann", exact=True).click()
    expect(shown.get_by_label("Path")).to_have_text('$.deep["user name"].ann')
    shown.get_by_role("button", name="Copy value").last.click()
    assert page.evaluate("navigator.clipboard.readText()") == "[null,true]"
    shown.get_by_role("button", name="Close $.deep", exact=True).click()
    expect(shown.get_by_role("button", name="ann", exact=True)).to_have_count(0)
    shown.get_by_role("button", name="state", exact=True).click()
    shown.get_by_role("button", name="Only records with this").click()
    expect(rows(page)).to_have_count(1)
    assert "where=%24.state+%3D+%22paid%22" in page.url
    page.reload()
    expect(record(page, start)).to_contain_text("12345678901234567890")
    page.keyboard.press("Escape")
    expect(record(page, start)).to_have_count(0)


def test_bytes_are_hexadecimal_with_offsets_and_headers_are_shown(server: Cluster, show: Show, key: str) -> None:
    octets = bytes(range(256)) * 4
    headers = {"trace": "00-af"}
    body = {"key": b64(b"\xff\x00" + key.encode()), "value": b64(octets), "headers": headers, "contentType": "a/b"}
    answer = server.post_json("/api/v1/log/append", {"records": [body, {"keyText": key, "tombstone": True}]}).json()
    page = show(fragment(**{"from": answer["startSequence"]}))
    expect(rows(page).first).to_contain_text("binary")
    expect(rows(page).nth(1)).to_contain_text("tombstone")
    rows(page).first.focus()
    page.keyboard.press("Enter")
    shown = record(page, answer["startSequence"])
    expect(shown).to_contain_text("00-af")
    expect(shown).to_contain_text("a/b")
    expect(shown.get_by_role("region", name="Value as hexadecimal")).to_contain_text(
        "00000040  40 41 42 43 44 45 46 47  48 49 4a 4b 4c 4d 4e 4f  @ABCDEFGHIJKLMNO"
    )
    page.keyboard.press("j")
    expect(record(page, answer["startSequence"] + 1)).to_contain_text("A tombstone")
    shown_key = f"base64:{body['key']}"
    expect(rows(page).first).to_contain_text(shown_key)
    page.keyboard.press("k")
    record(page, answer["startSequence"]).get_by_role("link", name=shown_key).click()
    expect(page.get_by_label("Kind of choice")).to_have_value("key_base64")
    expect(rows(page)).to_have_count(1)


def test_a_value_of_8_mb_is_cut_and_downloaded_and_does_not_hang_the_page(
    server: Cluster, show: Show, key: str, downloads: Path
) -> None:
    value = b'{"padding": "' + b"x" * (LARGE_BYTES - 15) + b'"}'
    start = append(server, [(key.encode(), value)])["startSequence"]
    page = show("#log?part=policies")
    expect(page.get_by_role("region", name="Policies")).to_be_visible()
    page.evaluate(LONG_TASKS)
    page.goto(f"{server.url}/{fragment(key=key, record=start)}")
    shown = record(page, start)
    expect(shown).to_contain_text("Shown: 4.00 KiB of 8.00 MiB")
    shown.get_by_role("button", name="Show 64 KiB more").click()
    expect(shown).to_contain_text("Shown: 68.0 KiB of 8.00 MiB")
    expect(shown.get_by_role("button", name="Show all")).to_have_count(0)
    with page.expect_download() as downloading:
        shown.get_by_role("button", name="Download").click()
    downloading.value.save_as(downloads / "value")
    assert (downloads / "value").read_bytes() == value
    assert downloading.value.suggested_filename == f"{key}-{start}.json"
    assert page.evaluate("window.longest") <= LONGEST_TASK_MS


def test_long_values_can_be_shown_whole(server: Cluster, show: Show, key: str) -> None:
    value = json.dumps({"items": ["item"] * 20_000, "last": "end"}).encode()
    start = append(server, [(key.encode(), value)])["startSequence"]
    page = show(fragment(key=key, record=start))
    record(page, start).get_by_role("button", name="Show all").click()
    expect(record(page, start)).to_contain_text("[20000]")
    expect(record(page, start)).to_contain_text('"end"')


def test_a_record_is_appended_by_hand_and_linked(server: Cluster, tabs: Tabs, show: Show, key: str) -> None:
    tabs.expected = ("400 (Bad Request)",)
    page = show(fragment(key=key))
    expect(page.get_by_text("No records.")).to_be_visible()
    page.keyboard.press("a")
    dialog = page.get_by_role("dialog", name="Append a record")
    expect(dialog.get_by_label("Key", exact=True)).to_have_value(key)
    dialog.get_by_label("Value as").select_option("JSON")
    dialog.get_by_label("Value", exact=True).fill("{")
    dialog.get_by_role("button", name="Append", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("the value is no JSON")
    dialog.get_by_label("Value", exact=True).fill('{"n": 12345678901234567890}')
    dialog.get_by_label("Content type").fill("application/json")
    dialog.get_by_role("button", name="Add a header").click()
    dialog.get_by_label("Name of header 1").fill("trace")
    dialog.get_by_label("Value of header 1").fill("é")
    assert serious(page) == []
    dialog.get_by_role("button", name="Append", exact=True).click()
    link = dialog.get_by_role("link", name=re.compile("record"))
    link.click()
    expect(dialog).to_have_count(0)
    expect(rows(page)).to_have_count(1)
    (stored,) = server.get("/api/v1/log/scan", key=key, encoding="text").json()["records"]
    assert stored["text"] == '{"n":12345678901234567890}'
    assert (stored["headers"], stored["contentType"]) == ({"trace": "é"}, "application/json")
    expect(record(page, stored["sequence"])).to_contain_text("12345678901234567890")


def test_a_key_is_deleted_only_after_a_question(server: Cluster, show: Show, key: str) -> None:
    fill(server, key, 3)
    page = show(fragment(key=key))
    expect(rows(page)).to_have_count(3)
    page.get_by_role("button", name="Delete this key").click()
    page.get_by_role("button", name="Leave it").click()
    assert server.get("/api/v1/log/count", key=key).json()["count"] == 3
    page.get_by_role("button", name="Delete this key").click()
    page.get_by_role("button", name="Delete all its records").click()
    expect(page.get_by_text("No records.")).to_be_visible()
    assert server.get("/api/v1/log/count", key=key).json()["count"] == 0


def test_keys_show_what_they_hold_and_lead_to_it(server: Cluster, show: Show, key: str) -> None:
    start = fill(server, f"{key}/a", 3)
    append(server, [(key.encode() + b"\xff", b"x")])
    page = show("#log?part=keys")
    page.get_by_label("Prefix of the keys").fill(key)
    page.keyboard.press("Enter")
    table = page.get_by_role("table", name="Keys")
    expect(table.locator("tbody tr")).to_have_count(2)
    expect(table.locator("tbody tr").first).to_contain_text(f"{key}/a3{start}{start + 2}")
    expect(table.locator("tbody tr").nth(1)).to_contain_text("base64:")
    table.locator("tbody tr").first.click()
    expect(rows(page)).to_have_count(3)
    page.go_back()
    expect(table.locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name=f"Delete {key}/a").click()
    page.get_by_role("button", name="Delete all its records").click()
    expect(table.locator("tbody tr")).to_have_count(1)


def test_the_longest_keys_are_cut_in_lists_and_whole_in_a_record(server: Cluster, show: Show, key: str) -> None:
    longest = key + "k" * (65_535 - len(key))
    start = append(server, [(longest.encode(), b"x" * 5000), (key.encode(), b"y")])["startSequence"]
    page = show(fragment(prefix=key))
    expect(rows(page).first.locator(".log-key")).to_have_text(longest[:200] + "…")
    rows(page).first.click()
    expect(record(page, start).get_by_role("link")).to_have_text(longest)
    record(page, start).get_by_role("button", name="Show all").click()
    expect(record(page, start)).to_contain_text("x" * 5000)
    page.goto(f"{server.url}/{fragment(part='keys', keys=key)}")
    keys = page.get_by_role("table", name="Keys").locator("tbody tr")
    expect(keys.first).to_contain_text(f"{key}1{start + 1}{start + 1}")
    expect(keys.nth(1)).to_contain_text(longest[:200] + "…–")


def test_segments_groups_and_policies_are_shown(server: Cluster, show: Show, key: str) -> None:
    start = fill(server, f"{key}/a", 7)
    fill(server, f"{key}/b", 2)
    group = f"/api/v1/log/groups/{key}"
    joined = server.post_json(f"{group}/join", {"member": "ann", "prefixText": f"{key}/"}).json()
    member: dict[str, Any] = {"member": "ann", "generation": joined["generation"]}
    assert len(server.post_json(f"{group}/poll", member).json()["records"]) == 9
    assert server.post_json(f"{group}/commit", {**member, "upTo": start + 2}).status == 200
    policy = json.dumps({"prefix": f"{key}/", "keepNewest": 1000}).encode()
    assert server.request("PUT", f"/api/v1/log/policies/{key}", policy).status == 200
    page = show("#log?part=groups")
    page.get_by_role("row", name=key).click()
    expect(page.get_by_text("Lag: 7 records")).to_be_visible()
    expect(page.get_by_role("table", name="Members")).to_contain_text("ann")
    waiting = page.get_by_role("table", name="Keys that wait")
    expect(waiting.get_by_role("row", name=f"{key}/a")).to_contain_text("5")
    page.get_by_role("link", name="Policies").click()
    expect(page.get_by_role("row", name=key)).to_contain_text("1\u202f000")
    page.get_by_role("link", name="Segments").click()
    expect(page.get_by_text("Next number")).to_be_visible()
    page.get_by_role("table", name="Segments").locator("tbody tr").first.click()
    expect(rows(page).first).to_be_visible()


@pytest.mark.parametrize("part", ["records", "keys", "segments", "groups", "policies"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_with_data(server: Cluster, tabs: Tabs, key: str, part: str, scheme: Any) -> None:
    start = append(server, [(key.encode(), b'{"a": {"b": [1, null, "x"]}}')])["startSequence"]
    page = tabs.open(f"{server.url}/{fragment(part=part, key=key, record=start)}", color_scheme=scheme, size=(360, 800))
    expect(page.locator(".table-scroll").first).to_be_visible()
    if part == "records":
        expect(record(page, start)).to_contain_text("null")
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("part", ["constructor", "__proto__", "unknown"])
def test_a_link_to_a_part_that_is_none_shows_the_records(show: Show, part: str) -> None:
    page = show(f"#log?part={part}")
    expect(page.get_by_label("Kind of choice")).to_be_visible()
    expect(page.get_by_role("link", name="Records", exact=True)).to_have_attribute("aria-current", "page")
