"""The live tail: records as they come, paused and resumed, over a restart of the coordinator, and at 5,000 a second."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

from loadtest.harness.cluster import Cluster, freeze
from tests.cluster.log_requests import append
from tests.page.conftest import Tabs
from tests.page.test_log import LONG_TASKS, fragment, record, rows
from tests.page.test_shell import serious

RATE = 5000
LONGEST_TASK_MS = 100
WITHIN_MS = 30_000
Show = Callable[[str], Page]


@pytest.fixture
def key() -> str:
    return f"tail-{uuid4().hex}"


def write(cluster: Cluster, key: str, numbers: range) -> int:
    return int(append(cluster, [(key.encode(), b"line %d." % number) for number in numbers])["startSequence"])


def live(page: Page) -> None:
    expect(page.get_by_role("status", name="State")).to_have_text("● live", timeout=WITHIN_MS)


def shown(page: Page) -> list[int]:
    """The numbers in the values of the rows in the document."""
    texts = rows(page).locator("td:last-child").all_inner_texts()
    return [int(re.findall(r"line (\d+)\.", text)[0]) for text in texts]


def paused(page: Page) -> Locator:
    return page.locator(".log-new")


@contextmanager
def writing(cluster: Cluster, key: str, rate: int) -> Iterator[list[int]]:
    """Appends so many records a second, each with its number; yields [how many so far]."""
    written = [0]
    over = threading.Event()

    def run() -> None:
        started = time.monotonic()
        while not over.is_set():
            wanted = int((time.monotonic() - started) * rate)
            step = min(1000, wanted - written[0])
            if step >= rate // 50:
                write(cluster, key, range(written[0], written[0] + step))
                written[0] += step
            else:
                over.wait(0.005)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


def test_records_appear_as_they_come_after_those_that_are_there(server: Cluster, show: Show, key: str) -> None:
    write(server, key, range(3))
    page = show(fragment(key=key))
    expect(rows(page)).to_have_count(3)
    page.keyboard.press("w")
    live(page)
    expect(rows(page)).to_have_count(3)
    write(server, key, range(3, 6))
    expect(rows(page)).to_have_count(6)
    assert shown(page) == list(range(6))
    page.reload()
    live(page)
    expect(rows(page)).to_have_count(6)
    assert serious(page) == []
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Older")).to_be_visible()


def test_a_tail_that_is_paused_counts_what_comes_and_goes_on_from_there(server: Cluster, show: Show, key: str) -> None:
    page = show(fragment(key=key, tail="on"))
    live(page)
    write(server, key, range(5))
    expect(rows(page)).to_have_count(5)
    page.keyboard.press("p")
    expect(paused(page)).to_have_text("paused")
    write(server, key, range(5, 133))
    expect(paused(page)).to_have_text("128 new")
    expect(rows(page)).to_have_count(5)
    page.keyboard.press("p")
    expect(rows(page)).to_have_count(133)
    assert shown(page) == list(range(133))
    write(server, key, range(133, 134))
    expect(rows(page)).to_have_count(134)


def test_nothing_moves_while_somebody_reads(server: Cluster, show: Show, key: str) -> None:
    page = show(fragment(key=key, tail="on"))
    live(page)
    first = write(server, key, range(400))
    expect(page.get_by_text("line 399.")).to_be_visible()
    page.get_by_role("region", name="Records").hover()
    page.mouse.wheel(0, -3000)
    expect(paused(page)).to_be_visible()
    page.wait_for_timeout(300)
    before = page.evaluate("document.querySelector('.log-list').scrollTop"), shown(page)
    write(server, key, range(400, 450))
    expect(paused(page)).to_have_text("50 new")
    assert (page.evaluate("document.querySelector('.log-list').scrollTop"), shown(page)) == before
    page.mouse.wheel(0, 100_000)
    expect(page.get_by_text("line 449.")).to_be_visible()
    expect(paused(page)).to_have_count(0)
    rows(page).last.click()
    expect(record(page, first + 449)).to_contain_text("line 449.")
    expect(paused(page)).to_be_visible()


def test_more_than_is_kept_is_read_again_from_there(server: Cluster, show: Show, key: str) -> None:
    page = show(fragment(key=key, tail="on"))
    live(page)
    write(server, key, range(10))
    expect(rows(page)).to_have_count(10)
    page.keyboard.press("p")
    for low in range(10, 6010, 1000):
        write(server, key, range(low, low + 1000))
    expect(paused(page)).to_have_text("6\u202f000 new", timeout=WITHIN_MS)
    expect(page.get_by_role("button", name="Skip to the newest")).to_be_visible()
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("line 6009.")).to_be_visible(timeout=WITHIN_MS)
    expect(page.get_by_text("5\u202f000 shown")).to_be_visible()
    page.get_by_role("region", name="Records").hover()
    page.mouse.wheel(0, -1_000_000)
    expect(page.get_by_text("line 1010.")).to_be_visible()
    numbers = shown(page)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) < 200


def test_a_tail_is_searched_by_the_server(server: Cluster, tabs: Tabs, show: Show, key: str) -> None:
    tabs.expected = ("400 (Bad Request)",)
    page = show(fragment(key=key, tail="on", grep="line \\d*7\\."))
    live(page)
    write(server, key, range(30))
    expect(rows(page)).to_have_count(3)
    expect(page.locator("mark")).to_have_text(["line 7.", "line 17.", "line 27."])
    page.get_by_label("Has", exact=True).fill("[")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("parameter 'grep'")


def test_a_tail_goes_on_where_it_was_after_a_restart(tabs: Tabs, new_cluster: Callable[..., Cluster], key: str) -> None:
    tabs.expected = ("ERR_", "503 (Service Unavailable)")
    cluster = new_cluster().start()
    write(cluster, key, range(10))
    page = tabs.open(f"{cluster.url}/{fragment(prefix='tail-', tail='on')}")
    live(page)
    write(cluster, key, range(10, 20))
    expect(rows(page)).to_have_count(20)
    for round_number in range(2, 4):
        if round_number == 3:
            page.keyboard.press("p")
        assert cluster.coordinator is not None
        cluster.coordinator.kill()
        cluster.coordinator.wait()
        expect(page.get_by_role("status", name="State")).to_contain_text("from where it was", timeout=WITHIN_MS)
        cluster.start_coordinator()
        cluster.wait_ready()
        write(cluster, key, range(10 * round_number, 10 * round_number + 10))
        live(page)
        if round_number == 3:
            expect(paused(page)).to_have_text("10 new")
            page.keyboard.press("p")
        expect(rows(page)).to_have_count(10 * round_number + 10)
    assert shown(page) == list(range(40))


def test_a_server_that_says_nothing_is_asked_again(tabs: Tabs, new_cluster: Callable[..., Cluster], key: str) -> None:
    tabs.expected = ("ERR_",)
    cluster = new_cluster().start()
    page = tabs.open()
    page.clock.install()
    page.goto(f"{cluster.url}/{fragment(key=key, tail='on')}")
    live(page)
    write(cluster, key, range(3))
    expect(rows(page)).to_have_count(3)
    assert cluster.coordinator is not None
    freeze(cluster.coordinator.pid)
    for _ in range(4):
        page.clock.fast_forward(16_000)
    expect(page.get_by_role("alert")).to_contain_text("the server has said nothing for 45 s")
    os.kill(cluster.coordinator.pid, signal.SIGCONT)
    live(page)
    write(cluster, key, range(3, 6))
    expect(rows(page)).to_have_count(6)


def test_a_tail_at_5000_records_a_second_leaves_the_page_responsive(server: Cluster, show: Show, key: str) -> None:
    page = show(fragment(key=key, tail="on"))
    live(page)
    with writing(server, key, RATE) as written:
        page.wait_for_timeout(1500)
        page.evaluate(LONG_TASKS)
        begun = written[0]
        page.wait_for_timeout(5000)
        longest, rate = page.evaluate("window.longest"), (written[0] - begun) / 5
        expect(page.get_by_text("5\u202f000 shown")).to_be_visible()
        page.keyboard.press("p")
        expect(paused(page)).to_contain_text("new")
    busy = "() => { const until = performance.now() + 300; while (performance.now() < until); }"
    page.evaluate(f"() => setTimeout({busy})")
    page.wait_for_timeout(1000)
    assert page.evaluate("window.longest") >= 300  # the observer sees what is long
    print(f"{rate:.0f} records/s, longest task {longest:.0f} ms")
    assert longest <= LONGEST_TASK_MS
