"""Findings of `triptych doctor` about a running cluster."""

from __future__ import annotations

import json
import time

import pytest

from coordinator.command_client import Answer
from coordinator.doctor import cluster
from tests.unit.doctor_findings import level

READY = {"shard": 0, "state": "ready", "worker": "worker-0"}
METRICS = b'# HELP x\ntriptych_overload_level 0.0\ntriptych_shard_ready{shard="0"} 1.0\n'


def asked(**answers: Answer) -> dict[str, str]:
    """The troubles of a cluster that is well but for these answers, given by the last part of their paths."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    state = json.dumps({"data": {"shards": [READY], "workers": [{}]}}).encode()
    well = {"cluster": state, "metrics": METRICS, "labels": b"{}", "count": b"{}", "stats": b"{}", "healthy": b""}
    replies = {name: Answer(200, body, date) for name, body in well.items()} | answers
    found = cluster.look(lambda path: replies[path.rpartition("/")[2]], "here")
    return {finding.name: level(finding) for finding in found if level(finding) != "ok"}


def test_a_cluster_that_is_well() -> None:
    assert asked() == {}


def test_a_cluster_that_does_not_answer() -> None:
    def refuse(_: str) -> Answer:
        raise ConnectionRefusedError("refused")

    assert [level(found) for found in cluster.look(refuse, "here")] == ["problem"]
    assert asked(healthy=Answer(403, b"{}")) == {"coordinator": "problem"}
    assert asked(cluster=Answer(401, b"who?")) == {"shards": "problem"}
    assert asked(metrics=Answer(401, b"who?")) == {"overload": "warning"}
    assert asked(count=Answer(503, b"no")) == {"answers": "warning"}
    assert asked(stats=Answer(403, b'{"message": "no role"}')) == {"answers": "warning"}


def test_paths_that_fail_for_the_same_reason_are_one_finding_with_the_message_of_the_response() -> None:
    down = Answer(503, b'{"status": "error", "error": "shard 0: worker-0 has stopped"}')
    page = Answer(404, b"<html>\n  <p>no  page</p>\n")
    failed = list(cluster.damage({"/a": down, "/b": down, "/c": page, "/d": Answer(200, b"{}")}))
    assert [found.seen for found in failed] == ["/a, /b returned status 503", "/c returned status 404"]
    assert failed[0].right.endswith("it says: shard 0: worker-0 has stopped")
    assert failed[1].right.endswith("the response is: <html> <p>no page</p>")


def test_a_shard_that_is_not_ready() -> None:
    shard = {"shard": 3, "state": "failed", "detail": "the store is damaged"}
    answer = Answer(200, json.dumps({"data": {"shards": [READY, shard], "workers": []}}).encode())
    assert asked(cluster=answer) == {"shard 3": "problem"}


@pytest.mark.parametrize(("overload", "expected"), [(1, "warning"), (2, "warning"), (3, "problem")])
def test_overload(overload: int, expected: str) -> None:
    assert asked(metrics=Answer(200, b"triptych_overload_level %d.0\n" % overload)) == {"overload": expected}


def test_answers_that_lack_something() -> None:
    warned = Answer(200, b'{"warnings": ["shard 1: a block is damaged"]}')
    assert asked(labels=warned, stats=warned) == {"answers": "problem"}


def test_another_clock() -> None:
    assert asked(healthy=Answer(200, b"", "Mon, 01 Jan 2024 00:00:00 GMT")) == {"clock": "warning"}
    assert asked(healthy=Answer(200, b"", "")) == {}
