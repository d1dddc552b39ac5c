"""Series for the tests of the Metrics tab."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from playwright.sync_api import Locator, Page

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import Series, compressed

HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
STEP_MS = 15_000
SERIES_MAX = 1000
"""In a request."""


def write(cluster: Cluster, series: Sequence[Series]) -> None:
    for first in range(0, len(series), SERIES_MAX):
        body = compressed(series[first : first + SERIES_MAX])
        answer = cluster.request("POST", "/api/v1/write", body, HEADERS)
        assert answer.status < 300, answer.body


def last_hour(value: Callable[[int], float | None], count: int = 240) -> list[tuple[int, float]]:
    """A sample every 15 s until now: `value(k)`, none where it is None."""
    end = int(time.time()) * 1000
    numbers = ((end - (count - 1 - k) * STEP_MS, value(k)) for k in range(count))
    return [(at, number) for at, number in numbers if number is not None]


def editor(page: Page, number: int = 1) -> Locator:
    return page.get_by_role("textbox", name=f"Query {number}", exact=True)


def query(page: Page, number: int = 1) -> Locator:
    return page.get_by_role("region", name=f"Query {number}", exact=True)


def fill(page: Page, text: str, number: int = 1) -> None:
    """Types a query in place of what is there. (Text that takes the place of coloured text gets its colour by an inline
    style from the browser, which the page's policy refuses with a message on the console.)"""
    editor(page, number).click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(text)


def run(page: Page, text: str, number: int = 1) -> None:
    """Types a query in place of what is there, and runs it."""
    fill(page, text, number)
    page.get_by_role("button", name="Run", exact=True).click()
