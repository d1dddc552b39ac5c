"""The server goes away, comes back, is another version, or does not answer in time; the page says so."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from loadtest.harness.cluster import Cluster
from tests.page.conftest import Tabs

NETWORK = ("ERR_CONNECTION", "ERR_FAILED", "ERR_EMPTY_RESPONSE", "ERR_SOCKET")
BACK_WITHIN_MS = 20_000


def state(page: Page, text: str):  # type: ignore[no-untyped-def]
    return page.get_by_role("status").filter(has_text=text)


def test_the_page_outlives_its_server_and_says_when_it_was_upgraded(
    tabs: Tabs, new_cluster: Callable[..., Cluster]
) -> None:
    cluster = new_cluster(shards=1, workers=1).start()
    tabs.expected = NETWORK
    page = tabs.open(cluster.url)
    expect(state(page, "1 shard ready")).to_be_visible()
    assert cluster.coordinator is not None
    cluster.coordinator.kill()
    cluster.coordinator.wait()
    expect(state(page, "no answer")).to_be_visible(timeout=BACK_WITHIN_MS)
    page.get_by_role("link", name="Log", exact=True).click()  # what is loaded already needs no server
    expect(page.get_by_role("heading", name="Log", level=1)).to_be_attached()
    cluster.start_coordinator()
    expect(state(page, "1 shard ready")).to_be_visible(timeout=BACK_WITHIN_MS)
    upgraded = page.get_by_role("button", name="The server was upgraded")
    expect(upgraded).to_have_count(0)

    page.route(cluster.url + "/", lambda route: route.fulfill(body='<script src="ui/0123/main.js"></script>'))
    cluster.coordinator.kill()
    cluster.coordinator.wait()
    cluster.start_coordinator()
    expect(upgraded).to_be_visible(timeout=BACK_WITHIN_MS)
    page.unroute(cluster.url + "/")
    with page.expect_navigation():
        upgraded.click()
    expect(page).to_have_title("Log – Triptych")
    expect(upgraded).to_have_count(0)


def test_a_page_whose_modules_are_gone_says_what_to_do(tabs: Tabs, server: Cluster) -> None:
    tabs.expected = ("404",)
    page = tabs.open()
    page.route("**/main.js", lambda route: route.fulfill(status=404))
    page.goto(server.url)
    expect(page.get_by_text("reload the page: the server may just have been upgraded")).to_be_visible()


def test_a_server_that_hangs_is_said_to_give_no_answer(tabs: Tabs, server: Cluster) -> None:
    page = tabs.open(server.url)
    expect(state(page, "4 shards ready")).to_be_visible()
    page.route("**/api/v1/cluster", lambda route: None)
    expect(state(page, "no answer")).to_be_visible(timeout=BACK_WITHIN_MS)


def test_a_part_that_fails_leaves_the_rest(tabs: Tabs, server: Cluster) -> None:
    tabs.expected = ("Error",)
    page = tabs.open()
    page.route("**/api/v1/cluster", lambda route: route.fulfill(json={"status": "success", "data": {"shards": 7}}))
    page.goto(server.url)
    expect(page.get_by_role("heading", name="Metrics", level=1)).to_be_attached()
    page.get_by_role("link", name="Log", exact=True).click()
    expect(page.get_by_role("heading", name="Log", level=1)).to_be_attached()


def test_the_page_works_below_a_prefix_of_a_proxy(tabs: Tabs, server: Cluster) -> None:
    page = tabs.open()

    def pass_on(route):  # type: ignore[no-untyped-def]
        path = route.request.url.partition("/behind/")[2]
        route.fulfill(response=route.fetch(url=f"{server.url}/{path}"))

    page.route("**/behind/**", pass_on)
    page.goto(f"{server.url}/behind/")
    expect(state(page, "4 shards ready")).to_be_visible()
    assert all("/behind/" in url for url in tabs.asked)
