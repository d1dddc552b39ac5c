"""A real browser before a real cluster.

`page` is a tab of Debian's Chromium. At the end of a test it must not have said an error on its console, and must not
have asked any other host for anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from loadtest.harness.cluster import Cluster
from tests.cluster.conftest import kind_of_cluster, new_cluster  # noqa: F401
from tests.forked_cluster import ForkedCluster

SIZE = (1280, 800)
WITHIN_MS = 30_000
"""For what a test waits for: the machine may be busy."""
expect.set_options(timeout=WITHIN_MS)
EXECUTABLE = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    assert EXECUTABLE, "Chromium is missing: `apt-get install chromium`, or name it in the variable CHROMIUM"
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        running = playwright.chromium.launch(executable_path=EXECUTABLE, args=options)
        yield running
        running.close()


class Tabs:
    """Opens tabs, and keeps what they say and ask for."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.said: list[str] = []
        """Errors on consoles, and exceptions that nobody caught."""
        self.asked: list[str] = []
        """Addresses of all requests."""
        self.expected: tuple[str, ...] = ()
        """Errors that have one of these texts belong to the test: a browser says each status of 400 and more."""

    def open(self, url: str = "", size: tuple[int, int] = SIZE, **options: Any) -> Page:
        """A tab of its own context; `options` are those of Playwright's `new_context`."""
        viewport: Any = {"width": size[0], "height": size[1]}
        context = self._browser.new_context(viewport=viewport, timezone_id="Europe/Zurich", **options)
        context.set_default_timeout(WITHIN_MS)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.said.extend([message.text] if message.type == "error" else []))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        if url:
            page.goto(url)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def faults(self) -> list[str]:
        return [text for text in self.said if not any(known in text for known in self.expected)]


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Tabs]:
    made = Tabs(browser)
    yield made
    made.close()
    assert made.faults() == []
    hosts = {url.split("/")[2].rpartition(":")[0] for url in made.asked if url.startswith("http")}
    assert hosts <= {"127.0.0.1", "localhost"}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster of 4 shards in 2 workers for all tests that leave it as unharmed as they found it."""
    running = ForkedCluster(tmp_path_factory.mktemp("page")).start()
    yield running
    running.stop()


@pytest.fixture
def page(tabs: Tabs, server: Cluster) -> Page:
    """A tab that shows the page of `server`."""
    return tabs.open(server.url)


@pytest.fixture
def show(tabs: Tabs, server: Cluster) -> Callable[[str], Page]:
    """Opens a tab at a part of the page: `show("#metrics?expr=up")`."""
    return lambda fragment: tabs.open(f"{server.url}/{fragment}")


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    return tmp_path
