"""The example of docs/guide/consumer_groups.md processes each record once, although members die."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from loadtest.harness.cluster import ROOT, Cluster
from tests.cluster.log_requests import append, scan, values


class Death(Exception):
    pass


@pytest.fixture
def example(cluster: Cluster) -> dict[str, Any]:
    page = (ROOT / "docs" / "guide" / "consumer_groups.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("http://localhost:9090", cluster.url), names)
    return names


@pytest.mark.parametrize("dies_before", ["append", "commit"])
def test_each_record_is_processed_once(cluster: Cluster, example: dict[str, Any], dies_before: str) -> None:
    name = uuid4().hex
    append(cluster, [(f"{name}/in/{n % 3}".encode(), b"%d" % n) for n in range(12)])
    api, calls = example["api"], Counter[str]()

    def dying(path: str, body: dict[str, Any]) -> dict[str, Any]:
        act = path.rpartition("/")[2].partition("?")[0]
        calls[act] += 1
        if act == dies_before and calls[act] in (1, 2, 9):
            raise Death
        if act == "join":
            body |= {"sessionTimeoutMs": 1000}
        if act == "poll":
            body |= {"max": 5, "waitMs": 500}
        if calls["commit"] > 12:
            raise KeyboardInterrupt
        return api(path, body)

    example["api"] = dying
    for _ in range(20):
        try:
            example["process"](name, f"{name}/in/", lambda key, text: (f"{name}/out", f"{key}={text}"))
        except Death:
            continue
        except KeyboardInterrupt:
            break
    results = [value.decode().rpartition("=")[2] for value in values(scan(cluster, key=f"{name}/out"))]
    assert sorted(map(int, results)) == list(range(12))
