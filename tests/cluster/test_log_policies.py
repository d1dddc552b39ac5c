"""Policies over HTTP: put, shown, applied in the background, kept over a restart."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster, Response
from tests.cluster.log_requests import append, refused, scan, values
from tests.forked_cluster import ForkedCluster

PATH = "/api/v1/log/policies"
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"TRIPTYCH_LOG_POLICIES_INTERVAL": "100ms"}
    started = ForkedCluster(tmp_path_factory.mktemp("policies"), shards=2, workers=2, settings=settings).start()
    yield started
    started.kill()


@pytest.fixture(autouse=True)
def without_policies(own: Cluster) -> Iterator[None]:
    yield
    for policy in own.get(PATH).json()["policies"]:
        own.request("DELETE", f"{PATH}/{policy['name']}")


def put(cluster: Cluster, name: str, **policy: Any) -> Response:
    return cluster.request("PUT", f"{PATH}/{name}", json.dumps(policy).encode())


def eventually(cluster: Cluster, prefix: str, expected: list[bytes]) -> None:
    give_up = time.monotonic() + WITHIN_S
    while (seen := values(scan(cluster, prefix=prefix))) != expected:
        assert time.monotonic() < give_up, seen
        time.sleep(0.1)


def test_of_each_key_the_newest_records_stay(own: Cluster) -> None:
    for round in range(3):
        append(own, [(b"latest/%d" % n, b"%d.%d" % (n, round)) for n in range(4)])
        append(own, [(b"latest/two/%d" % n, b"%d.%d" % (n, round)) for n in range(2)])
    assert put(own, "latest", prefix="latest/", keepNewest=1).status == 200
    assert put(own, "two", prefix="latest/two/", keepNewest=2).status == 200
    eventually(own, "latest/", [b"0.1", b"1.1", b"0.2", b"1.2", b"2.2", b"3.2", b"0.2", b"1.2"])
    append(own, [(b"latest/0", b"newer"), (b"other/0", b"1"), (b"other/0", b"2")])
    eventually(own, "latest/0", [b"newer"])
    assert values(scan(own, key="other/0")) == [b"1", b"2"]
    metrics = own.get("/metrics").body.decode()
    assert 'triptych_log_key_starts{shard="0"}' in metrics and "triptych_log_policies_age_seconds" in metrics


def test_records_go_when_they_are_too_old(own: Cluster) -> None:
    append(own, [(b"old/1", b"1"), (b"old/2", b"2")], awaitDurable=True)
    assert put(own, "old", prefix="old/", maxAge="1s500ms").json()["maxAge"] == "1s500ms"
    append(own, [(b"old/3", b"3")], awaitDurable=True)
    assert len(values(scan(own, prefix="old/"))) == 3
    eventually(own, "old/", [])


def test_policies_are_shown_and_survive_a_restart(own: Cluster) -> None:
    answer = put(own, "a", prefix="inbox/", keepNewest=5)
    shown = {"name": "a", "prefix": "inbox/", "prefixBase64": base64.b64encode(b"inbox/").decode(), "keepNewest": 5}
    assert answer.json() == {"status": "success", **shown}
    put(own, "bytes", prefixBase64=base64.b64encode(b"\xff").decode(), keepNewest=1)
    own.kill()
    own.start()
    assert own.get(f"{PATH}/a").json() == {"status": "success", **shown}
    assert [policy["name"] for policy in own.get(PATH).json()["policies"]] == ["a", "bytes"]
    assert "prefix" not in own.get(f"{PATH}/bytes").json()
    assert own.request("DELETE", f"{PATH}/a").status == 200
    assert "no policy 'a'" in refused(own.request("DELETE", f"{PATH}/a"), 404)
    assert "no policy 'a'" in refused(own.get(f"{PATH}/a"), 404)


def test_a_tombstone_makes_the_key_go_and_then_itself(own: Cluster) -> None:
    append(own, [(b"gone/1", b"1"), (b"gone/2", b"1"), (b"stays/1", b"1")])
    stones = [
        {"keyText": "gone/1", "tombstone": True},
        {"keyText": "stays/1", "tombstone": True, "headers": {"a": "b"}},
    ]
    assert own.post_json("/api/v1/log/append", {"records": stones}).status == 200
    last = scan(own, prefix="stays/", encoding="text")["records"][-1]
    assert (last["text"], last["tombstone"], last["headers"]) == ("", True, {"a": "b"})
    assert put(own, "stays", prefix="stays/", keepNewest=5).status == 200
    eventually(own, "stays/", [b""])
    assert put(own, "gone", prefix="gone/", keepNewest=5, deleteTombstonesAfter="1m").status == 200
    eventually(own, "gone/", [b"1", b""])
    answer = put(own, "gone", prefix="gone/", keepNewest=5, deleteTombstonesAfter="0s").json()
    assert answer["deleteTombstonesAfter"] == "0s"
    eventually(own, "gone/", [b"1"])
    assert scan(own, prefix="stays/")["records"][0]["tombstone"] is True, "it stays for a day"
    append(own, [(b"gone/1", b"again")])
    eventually(own, "gone/", [b"1", b"again"])


@pytest.mark.parametrize(
    ("name", "policy", "text"),
    [
        ("a", {"prefix": "x"}, "`keepNewest`, `maxAge`, or both"),
        ("a", {"prefix": "x", "maxAge": "long"}, "`maxAge`: 'long' is not a duration"),
        ("a", {"prefix": "x", "maxAge": "0s"}, "`maxAge` is '0s'"),
        ("a", {"prefix": "x", "keepNewest": 0}, "`keepNewest` is 0"),
        ("a", {"prefix": "x", "maxAge": "1d", "deleteTombstonesAfter": "1d"}, "`deleteTombstonesAfter` needs"),
        ("a", {"prefix": "x", "keepNewest": 1, "deleteTombstonesAfter": "-1d"}, "`deleteTombstonesAfter`: '-1d'"),
        ("a", {"prefix": "x", "keepNewest": 1, "deleteTombstonesAfter": "101y"}, "must be 0ms to 100y"),
        ("a", {"keepNewest": 1}, "either `prefix`"),
        ("a", {"prefix": "x", "prefixBase64": "eA==", "keepNewest": 1}, "either `prefix`"),
        ("a", {"prefix": "x", "keepNewest": 1, "keep": 2}, "keep"),
        ("-", {"prefix": "x", "keepNewest": 1}, "the policy's name is '-'"),
        ("other", {"prefix": "same", "keepNewest": 1}, "the policy 'first' has the same prefix"),
        ("a", {"prefix": "x" * 70_000, "keepNewest": 1}, "`prefix` has 70000 bytes"),
    ],
)
def test_a_policy_names_what_is_wrong(own: Cluster, name: str, policy: dict[str, Any], text: str) -> None:
    put(own, "first", prefix="same", keepNewest=3)
    assert text in refused(put(own, name, **policy), 400)
