"""The pictures of the page in docs/images, of a cluster that is filled as in `tests/page/filling.py`.

`python -m tests.page.screenshots` makes all of them.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, expect, sync_playwright

from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster
from tests.page.conftest import EXECUTABLE
from tests.page.filling import COLLECTION, fill

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "images"
BYTES_MAX = 150_000
WIDTH = 1280
WITHIN_MS = 30_000
DRAWN_MS = 1500
"""From when nothing is busy to when all is drawn."""
RANGE = "110m"
RATES = "sum by (job) (rate(http_requests_total[2m]))"
LATENCY = "histogram_quantile(0.9, sum by (le, job) (rate(http_request_duration_seconds_bucket[5m])))"
BUCKETS = "sum by (le) (rate(http_request_duration_seconds_bucket[2m]))"


@dataclass(frozen=True)
class Shot:
    """`fragment`: the part of the link after '#'; `height`: of the window, in pixels."""

    name: str
    fragment: str
    height: int
    scheme: str = "light"


def _link(area: str, *pairs: tuple[str, str]) -> str:
    return f"{area}?{urlencode(pairs)}" if pairs else area


SHOTS = (
    Shot("metrics", _link("metrics", ("expr", RATES), ("expr", LATENCY), ("range", RANGE)), 760),
    Shot("explain", _link("metrics", ("expr", LATENCY), ("view", "explain"), ("range", RANGE)), 720),
    Shot("heatmap", _link("metrics", ("expr", BUCKETS), ("view", "graph heat"), ("range", RANGE)), 660, "dark"),
    Shot("log", _link("log", ("key", "orders")), 560),
    Shot("vectors", _link("vectors", ("collection", COLLECTION), ("mode", "map"), ("colour", "kind")), 800),
    Shot("cluster", _link("cluster", ("show", "cardinality")), 800),
)


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        cluster = ForkedCluster(Path(directory))
        try:
            cluster.start()
            fill(cluster)
            take(cluster, DIRECTORY)
        finally:
            cluster.kill()


def take(cluster: Cluster, directory: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        for shot in SHOTS:
            context = browser.new_context(
                viewport={"width": WIDTH, "height": shot.height},
                color_scheme=shot.scheme,  # type: ignore[arg-type]
                timezone_id="Europe/Zurich",
                reduced_motion="reduce",
            )
            page = context.new_page()
            page.goto(f"{cluster.url}/#{shot.fragment}")
            settle(page)
            picture = page.screenshot()
            context.close()
            (directory / f"{shot.name}.png").write_bytes(picture)
            sys.stderr.write(f"{shot.name}.png {len(picture):,} bytes\n")
            if len(picture) > BYTES_MAX:
                raise SystemExit(f"{shot.name}.png has {len(picture)} bytes; it must have at most {BYTES_MAX}")
        browser.close()


def settle(page: Page, drawn_ms: int = DRAWN_MS) -> None:
    """Returns when nothing is busy, and all is drawn."""
    expect(page.get_by_role("status").filter(has_text="ready")).to_be_visible(timeout=WITHIN_MS)
    expect(page.locator('[aria-busy="true"], progress')).to_have_count(0, timeout=WITHIN_MS)
    page.wait_for_timeout(drawn_ms)


if __name__ == "__main__":
    main()
