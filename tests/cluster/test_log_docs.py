"""The examples of docs/guide/log.md do what the page says."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from loadtest.harness.cluster import ROOT, Cluster


class Enough(Exception):
    pass


@pytest.fixture
def examples(cluster: Cluster) -> dict[str, Any]:
    page = (ROOT / "docs" / "guide" / "log.md").read_text()
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code.replace("http://localhost:9090", cluster.url), names)
    return names


def test_a_mailbox(examples: dict[str, Any]) -> None:
    examples["send"]("ann", "hello")
    examples["send"]("ann", "are you there?")
    messages, following = examples["receive"]("ann", 0)
    assert messages == ["hello", "are you there?"]
    examples["send"]("ann", "bye")
    assert examples["receive"]("ann", following)[0] == ["bye"]


def test_an_audit_trail_has_a_retried_request_once(examples: dict[str, Any]) -> None:
    for _ in range(2):
        examples["record"]("4711", "docs-ann", "opened", "r-1")
    assert examples["api"]("count?key=person/docs-ann")["count"] == 1
    assert len(examples["api"]("scan?prefix=account/4711")["records"]) == 1
    assert examples["api"]("count?key=person/docs-ann&where=$.what%3D%22opened%22")["count"] == 1
    assert examples["api"]("count?key=person/docs-ann&where=$.what%3D%22closed%22")["count"] == 0


def test_a_worker_that_crashes_has_not_moved(examples: dict[str, Any]) -> None:
    def put(*values: str) -> None:
        records = [{"keyText": "docs-jobs", "text": value} for value in values]
        examples["api"]("append", {"records": records})

    done: list[str] = []

    def do(value: str) -> None:
        if value == "crash":
            raise Enough
        done.append(value)

    put("1", "2", "crash")
    with pytest.raises(Enough):
        examples["work"]("docs-worker", "docs-jobs", do)
    assert done == ["1", "2"]
    assert examples["api"]("cursors/docs-worker")["positions"] == []


def test_a_worker_goes_on_where_its_cursor_is(examples: dict[str, Any]) -> None:
    records = [{"keyText": "docs-place", "text": ""}] * 3
    examples["api"]("append", {"records": records})
    seen: list[str] = []

    def do(value: str) -> None:
        seen.append(value)
        if len(seen) == 4:
            raise Enough

    def append_later(*_: Any) -> None:
        examples["api"]("append", {"records": records[:1]})

    later = threading.Timer(0.5, append_later)
    later.start()
    with pytest.raises(Enough):
        examples["work"]("docs-place", "docs-place", do)
    later.join()
    position = examples["api"]("cursors/docs-place?key=docs-place")["positions"][0]["sequence"]
    assert position >= 3
