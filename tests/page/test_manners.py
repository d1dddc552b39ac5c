"""All areas with data in them: what axe finds, what is wider than the screen, and whether anything is said on the
console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster
from tests.page.conftest import Tabs
from tests.page.filling import COLLECTION, fill
from tests.page.screenshots import SHOTS, settle
from tests.page.test_shell import serious

SHOTS_BY_NAME = {shot.name: shot.fragment for shot in SHOTS}
SHOWN = {
    **SHOTS_BY_NAME,
    "table": SHOTS_BY_NAME["explain"].replace("explain", "table"),
    "browse": f"vectors?{urlencode({'collection': COLLECTION})}",
    "search": f"vectors?{urlencode({'collection': COLLECTION, 'mode': 'search', 'near': 'text', 'text': 'boot'})}",
    **{f"log-{part}": f"log?part={part}" for part in ("keys", "segments", "groups", "policies")},
    **{f"cluster-{part}": f"cluster?show={part}" for part in ("queries", "slow", "memory", "settings")},
    "shards": "cluster",
    **{f"alerts-{part}": f"alerts?show={part}" for part in ("rules", "targets")},
    "alerts": "alerts",
}
SIZES = ((360, 740), (2560, 1300))
DRAWN_MS = 300
UNREACHABLE = """
  [...document.querySelectorAll("button, a[href], input, select, textarea")]
    .filter((node) => node.checkVisibility() && !node.disabled && node.tabIndex < 0)
    .filter((node) => !node.closest("tbody, [role=listbox], [role=tree], [role=treegrid], [role=grid], [role=tablist]"))
    .map((node) => node.outerHTML.slice(0, 200))
"""
"""Beside what lies in a group that has one stop for all of it."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = ForkedCluster(tmp_path_factory.mktemp("filled")).start()
    fill(running)
    yield running
    running.stop()


def opened(tabs: Tabs, cluster: Cluster, fragment: str, **options: Any) -> Page:
    page = tabs.open(f"{cluster.url}/#{fragment}", **options)
    settle(page, DRAWN_MS)
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("shown", SHOWN)
def test_what_has_data_is_for_everybody(tabs: Tabs, filled: Cluster, shown: str, scheme: Any) -> None:
    """Axe finds nothing serious; what can be pressed is reached by the Tab key; nothing is wider than the screen."""
    page = opened(tabs, filled, SHOWN[shown], color_scheme=scheme)
    assert serious(page) == []
    assert page.evaluate(UNREACHABLE) == []
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(DRAWN_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_markup_in_labels_records_and_attributes_stays_text(tabs: Tabs, filled: Cluster) -> None:
    evil = '<img src="x" onerror="window.harm=1"><b id=evil>'
    record = {"records": [{"keyText": evil, "json": {evil: evil}}, {"keyText": "orders", "text": evil}]}
    assert filled.post_json("/api/v1/log/append", record).status == 200
    vector = {"id": "evil", "attributes": {"vector": [1.0] * 32, "title": evil, "kind": evil}}
    answer = filled.post_json("/api/v1/vector/write", {"collection": COLLECTION, "upsertVectors": [vector]})
    assert answer.status == 200
    label = 'label_replace(vector(1), "a", "{}", "", "")'.format(evil.replace('"', '\\"'))
    wanted = [f"metrics?{urlencode([('expr', label), ('view', view)])}" for view in ("graph", "table", "explain")]
    wanted += [f"metrics?{urlencode({'expr': evil})}", "log", "log?part=keys", f"log?{urlencode({'key': evil})}"]
    wanted += [SHOWN["vectors"], f"vectors?{urlencode({'collection': COLLECTION, 'sel': 'evil'})}"]
    wanted += [
        f"vectors?{urlencode({'collection': evil})}",
        f"cluster?{urlencode({'show': 'cardinality', 'match': evil})}",
    ]
    tabs.expected = ("400", "404")
    for fragment in wanted:
        page = opened(tabs, filled, fragment)
        assert page.evaluate("[window.harm, document.getElementById('evil')]") == [None, None], fragment
        expect(page.locator("main img")).to_have_count(0)
        page.context.close()
