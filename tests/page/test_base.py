"""What all areas use: requests, polling, the state in the link, tables, dialogs, remarks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from loadtest.harness.cluster import Cluster
from tests.page.conftest import Tabs
from tests.page.modules import run

LONGEST_TASK_MS = 100
ROWS = 100_000

CAUGHT = """
  const {{ request, fetched }} = await use("base/api.js");
  try {{
    await {act};
    return "nothing";
  }} catch (error) {{
    return [error.name, error.message, error.kind, error.advice];
  }}
"""
FOLLOW = '"api/v1/log/scan"'
FOLLOWED = 'query: { key: "aQ==" }, headers: { Accept: "text/event-stream" }'
"""A request whose answer has a head at once, and a body that does not end."""

TABLE = """
  const { html, render } = await use("vendor.js");
  const { Table } = await use("base/table.js");
  const name = (i) => `disk${(i * 7919) % given}`;
  const rows = Array.from({ length: given }, (_, i) => ({ id: i, name: name(i), size: (i * 104729) % 1000 }));
  rows[3].size = NaN;
  const columns = [
    { title: "Name", value: (row) => row.name },
    { title: "Size", value: (row) => row.size, align: "end" },
  ];
  window.tasks = [];
  const observer = new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((e) => e.duration)));
  observer.observe({ type: "longtask" });
  const main = document.getElementById("main");
  main.replaceChildren();
  render(html`<${Table} label="Disks" columns=${columns} rows=${rows} rowKey=${(row) => row.id}
    onRow=${(row) => { window.chosen = row.name; }} />`, main);
  await sleep(300);
  window.tasks = [];
"""


@pytest.fixture
def quiet(page: Page) -> Page:
    """The page, when it has loaded."""
    expect(page.get_by_role("status").filter(has_text="ready")).to_be_visible()
    return page


def caught(page: Page, act: str, before: str = "") -> list[str]:
    answer = run(page, before + CAUGHT.format(act=act))
    assert isinstance(answer, list), "the request did not fail"
    return answer


# Requests


CANCEL_SOON = "const own = new AbortController(); setTimeout(() => own.abort(), 300);"


def test_a_deadline_counts_until_the_body_has_been_read(quiet: Page) -> None:
    name, message, _, advice = caught(quiet, f"request('GET', {FOLLOW}, {{ {FOLLOWED}, deadline: 300 }})")
    assert (name, message) == ("ApiError", "no answer to api/v1/log/scan within 0.3 s")
    assert "Try again" in advice


def test_a_request_can_be_cancelled_while_its_body_comes(quiet: Page) -> None:
    act = f"request('GET', {FOLLOW}, {{ {FOLLOWED}, signal: own.signal }})"
    assert caught(quiet, act, CANCEL_SOON)[0] == "AbortError"


def test_a_stream_without_a_deadline_can_be_cancelled(quiet: Page) -> None:
    options = f"{{ {FOLLOWED}, signal: own.signal, deadline: 0 }}"
    act = f"fetched('GET', {FOLLOW}, {options}).then((answer) => answer.text())"
    assert caught(quiet, act, CANCEL_SOON)[0] == "AbortError"


def test_an_answer_of_a_proxy_is_no_crash(quiet: Page, tabs: Tabs) -> None:
    tabs.expected = ("502", "500")
    quiet.route("**/labels", lambda route: route.fulfill(body="<html>log in</html>", content_type="text/html"))
    name, message, kind, advice = caught(quiet, 'request("GET", "api/v1/labels")')
    assert (name, kind) == ("ApiError", "unreadable")
    assert "<html>log in" in message
    assert "proxy" in advice
    quiet.route(
        "**/series", lambda route: route.fulfill(status=502, body="<h1>Bad Gateway</h1>", content_type="text/html")
    )
    name, message, _, advice = caught(quiet, 'request("GET", "api/v1/series")')
    assert (name, "proxy" in advice) == ("ApiError", True)
    assert message.startswith("status 502")
    quiet.route("**/metadata", lambda route: route.fulfill(status=500, body="null", content_type="application/json"))
    assert caught(quiet, 'request("GET", "api/v1/metadata")')[1].startswith("status 500")


def test_a_server_that_is_gone_is_said_to_be_so(quiet: Page, tabs: Tabs) -> None:
    tabs.expected = ("ERR_FAILED",)
    quiet.route("**/labels", lambda route: route.abort())
    name, message, kind, _ = caught(quiet, 'request("GET", "api/v1/labels")')
    assert (name, kind) == ("ApiError", "unreachable")
    assert "127.0.0.1" in message


def test_a_path_never_leaves_this_server(quiet: Page) -> None:
    code = 'const { address } = await use("base/api.js"); return given.map((path) => address(path).origin);'
    assert set(run(quiet, code, ["//evil.test/x", "/api/v1/query", "", "///evil.test"])) == {
        quiet.evaluate("location.origin")
    }


# Polling


def test_polling_goes_on_after_errors_and_keeps_what_was_said_last(quiet: Page) -> None:
    said = run(
        quiet,
        """
        const { html, render } = await use("vendor.js");
        const { usePoll } = await use("base/poll.js");
        const answers = ["one", new Error("lost"), new DOMException("", "AbortError"), "two"];
        const said = [];
        function Poller() {
          const { value, error, busy } = usePoll(async () => {
            const next = answers.shift() ?? "end";
            if (next instanceof Error) throw next;
            return next;
          }, 20);
          said.push(`${value.value} ${error.value?.message ?? "-"}`);
          return null;
        }
        render(html`<${Poller} />`, document.createElement("div"));
        await sleep(400);
        return said;
        """,
    )
    assert [text for at, text in enumerate(said) if text not in said[:at]] == [
        "undefined -",
        "one -",
        "one lost",
        "two -",
        "end -",
    ]


def test_a_request_that_was_cancelled_asks_for_no_credential(quiet: Page) -> None:
    said = run(
        quiet,
        """
        const { fetched } = await use("base/api.js");
        const { asked } = await use("base/access.js");
        const controller = new AbortController();
        const real = window.fetch;
        window.fetch = async (_, { signal }) => {
          const start = (body) => signal.addEventListener("abort", () => body.error(signal.reason));
          return new Response(new ReadableStream({ start }), { status: 401 });
        };
        setTimeout(() => controller.abort(), 20);
        const ended = fetched("GET", "api/v1/query", { signal: controller.signal }).catch((error) => error.name);
        const first = await Promise.race([ended, sleep(1000)]);
        window.fetch = real;
        return [first, asked.value];
        """,
    )
    assert said == ["AbortError", None]


# The link


def test_a_step_back_is_told_once_and_areas_change_with_their_parameters(quiet: Page) -> None:
    seen = run(
        quiet,
        """
        const { computed } = await use("vendor.js");
        const link = await use("base/link.js");
        const seen = [];
        computed(() => `${link.area.value} ${link.params.value}`).subscribe((shown) => { seen.push(shown); });
        link.change({ expr: ["a", "b"] });
        link.go("log", { key: "k?=&#ü" });
        link.go("vectors");
        link.go("log");
        history.back(); await sleep(200);
        history.back(); await sleep(200);
        return seen;
        """,
    )
    assert seen == [
        "metrics ",
        "metrics expr=a&expr=b",
        "log key=k%3F%3D%26%23%C3%BC",
        "vectors ",
        "log key=k%3F%3D%26%23%C3%BC",
        "vectors ",
        "log key=k%3F%3D%26%23%C3%BC",
    ]


def test_a_link_that_is_too_long_for_the_browser_does_no_harm(quiet: Page) -> None:
    code = """
      const link = await use("base/link.js");
      link.change({ vector: "1".repeat(3e6) });
      return [link.params.value.get("vector").length, location.hash.length < 100];
    """
    assert run(quiet, code) == [3_000_000, True]
    expect(quiet.get_by_role("heading", name="Metrics", level=1)).to_be_attached()


# Tables


def longest_task_ms(page: Page) -> float:
    page.wait_for_timeout(100)
    return max([0.0, *page.evaluate("window.tasks.splice(0)")])


def test_a_table_of_100_000_rows_is_filtered_and_sorted_without_stopping_the_page(quiet: Page) -> None:
    run(quiet, TABLE, ROWS)
    table = quiet.get_by_role("table", name="Disks")
    first = table.locator("tbody tr.choice").first
    expect(table).to_have_attribute("aria-rowcount", str(ROWS + 1))
    quiet.get_by_role("button", name="Name").click()
    expect(first).to_contain_text("disk0")
    expect(table.locator("tbody tr.choice").nth(10)).to_contain_text("disk10")
    quiet.get_by_role("button", name="Size").click()
    expect(first).to_contain_text("999")
    quiet.get_by_role("searchbox", name="Filter Disks").press_sequentially("disk9999", delay=30)
    expect(quiet.get_by_text("11 of 100 000")).to_be_visible()
    assert longest_task_ms(quiet) <= LONGEST_TASK_MS
    quiet.get_by_role("searchbox").fill("")
    expect(quiet.get_by_text("100 000", exact=True)).to_be_visible()
    quiet.get_by_role("region", name="Disks").focus()
    quiet.keyboard.press("End")
    expect(table.locator(f'tr[aria-rowindex="{ROWS + 1}"]')).to_be_visible()
    expect(table.locator(f'tr[aria-rowindex="{ROWS + 1}"]')).to_contain_text("NaN")  # what is no number is last
    assert table.locator("tr").count() < 100
    assert longest_task_ms(quiet) <= LONGEST_TASK_MS


def test_a_row_is_reached_and_chosen_by_keys(quiet: Page) -> None:
    run(quiet, TABLE, 5000)
    table = quiet.get_by_role("table", name="Disks")
    quiet.get_by_role("button", name="Size").focus()
    quiet.keyboard.press("Tab")
    expect(table.locator('tr[aria-rowindex="2"]')).to_be_focused()
    for _ in range(60):
        quiet.keyboard.press("ArrowDown")
    row = table.locator('tr[aria-rowindex="62"]')
    expect(row).to_be_focused()
    expect(row).to_be_in_viewport()
    quiet.keyboard.press("Enter")
    assert quiet.evaluate("window.chosen") == f"disk{60 * 7919 % 5000}"
    quiet.keyboard.press("End")
    expect(table.locator('tr[aria-rowindex="5001"]')).to_be_focused()
    quiet.keyboard.press("ArrowDown")
    quiet.keyboard.press("Home")
    expect(table.locator('tr[aria-rowindex="2"]')).to_be_focused()
    quiet.keyboard.press("Tab")
    expect(table.locator("tr:focus")).to_have_count(0)  # one row is a stop of the Tab key


def test_a_row_keeps_the_focus_when_another_one_comes_before_it(quiet: Page) -> None:
    run(
        quiet,
        """
        const { html, render } = await use("vendor.js");
        const { Table } = await use("base/table.js");
        const columns = [{ title: "Name", value: (row) => row }];
        const main = document.getElementById("main");
        main.replaceChildren();
        window.show = (rows) => render(html`<${Table} label="Names" columns=${columns} rows=${rows}
          rowKey=${(row) => row} onRow=${() => {}} />`, main);
        window.show(["b", "c"]);
        """,
    )
    quiet.get_by_role("row", name="b", exact=True).focus()
    quiet.evaluate('window.show(["a", "b", "c"])')
    expect(quiet.get_by_role("row", name="a", exact=True)).to_be_visible()
    expect(quiet.get_by_role("row", name="b", exact=True)).to_be_focused()


# What is shown is text


def test_markup_in_data_stays_text(quiet: Page) -> None:
    evil = '<img src=x onerror="window.harm=1"><script>window.harm=1</script>'
    run(
        quiet,
        """
        const { html, render } = await use("vendor.js");
        const { Table } = await use("base/table.js");
        const { Problem, Remarks } = await use("base/remarks.js");
        const { series } = await use("base/format.js");
        const { ApiError } = await use("base/api.js");
        const columns = [{ title: given, value: (row) => row }];
        const main = document.getElementById("main");
        main.replaceChildren();
        const rows = [given, series({ __name__: given, [given]: given })];
        render(html`<${Table} label=${given} columns=${columns} rows=${rows} />
          <${Problem} error=${new ApiError(given, { kind: given, advice: given })} />
          <${Remarks} warnings=${[given]} infos=${[`${given} (1:5)`]} onPlace=${() => {}} />`, main);
        await sleep(100);
        """,
        evil,
    )
    assert quiet.get_by_text("onerror").count() >= 6
    assert quiet.locator("main img, main script").count() == 0
    assert quiet.evaluate("window.harm") is None


def test_long_errors_and_many_remarks_are_cut(quiet: Page) -> None:
    run(
        quiet,
        """
        const { html, render } = await use("vendor.js");
        const { Problem, Remarks } = await use("base/remarks.js");
        const main = document.getElementById("main");
        main.replaceChildren();
        render(html`<${Problem} error=${new Error("x".repeat(65536))} />
          <${Remarks} warnings=${Array.from({ length: 5000 }, (_, i) => `shard ${i} is missing`)} />`, main);
        """,
    )
    expect(quiet.get_by_role("alert")).to_contain_text("63 536 characters more")
    expect(quiet.get_by_text("and 4950 more")).to_be_visible()
    assert quiet.evaluate("document.documentElement.scrollWidth") <= 1280


# Dialogs


def test_a_dialog_gives_the_focus_back_and_a_drag_out_of_it_leaves_it_open(quiet: Page) -> None:
    key = quiet.get_by_role("button", name="Credential")
    key.focus()
    quiet.keyboard.press("Enter")
    field = quiet.get_by_label("Token", exact=True).and_(quiet.locator("input[type=password]"))
    expect(field).to_be_focused()
    field.fill("abc")
    box = field.bounding_box()
    assert box is not None
    quiet.mouse.move(box["x"] + 20, box["y"] + 5)
    quiet.mouse.down()
    quiet.mouse.move(5, 5)
    quiet.mouse.up()
    expect(field).to_have_value("abc")
    quiet.keyboard.press("Escape")
    expect(quiet.get_by_role("dialog")).to_have_count(0)
    expect(key).to_be_focused()


def test_text_is_copied_also_without_a_clipboard_and_out_of_a_dialog(quiet: Page, server: Cluster) -> None:
    run(
        quiet,
        """
        const { html, render } = await use("vendor.js");
        const { Dialog } = await use("base/dialog.js");
        const { Copy } = await use("base/take.js");
        const refuse = async () => { throw new Error("none"); };
        Object.defineProperty(navigator, "clipboard", { value: { writeText: refuse } });
        const place = document.createElement("div");
        document.body.append(place);
        document.addEventListener("copy", () => { window.copied = String(document.activeElement.value); });
        render(html`<${Dialog} title="Text" onClose=${() => {}}><${Copy} text=${() => "a\\nb"} /><//>`, place);
        """,
    )
    quiet.get_by_role("button", name="Copy").click()
    expect(quiet.get_by_role("button", name="Copied")).to_be_focused()
    assert quiet.evaluate("window.copied") == "a\nb"


def test_keys_work_beside_a_checkbox_and_not_in_text(quiet: Page) -> None:
    run(
        quiet,
        """
        document.getElementById("main").innerHTML = '<input type="checkbox" id="box"><input id="text">';
        """,
    )
    quiet.locator("#text").focus()
    quiet.keyboard.press("?")
    expect(quiet.get_by_role("dialog")).to_have_count(0)
    quiet.locator("#box").focus()
    quiet.keyboard.press("?")
    expect(quiet.get_by_role("dialog", name="Keys")).to_be_visible()


def test_a_route_that_never_answers_is_not_waited_for(quiet: Page, tabs: Tabs) -> None:
    kept: list[Route] = []
    quiet.route("**/labels", lambda route: kept.append(route))
    assert caught(quiet, 'request("GET", "api/v1/labels", { deadline: 150 })')[1].endswith("within 0.15 s")
