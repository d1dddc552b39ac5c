"""Consumer groups over HTTP: who gets what, what is committed, and what happens when a member or a process dies."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import quote
from uuid import uuid4

import pytest

from loadtest.harness.cluster import ROOT, Cluster
from proto import log_pb2
from tests.cluster.log_groups import Consumer, describe, pairs
from tests.cluster.log_requests import append, b64, refused


@pytest.fixture
def prefix() -> str:
    """Of keys of the test's own."""
    return f"{uuid4().hex}/"


def fill(cluster: Cluster, prefix: str, keys: int, each: int) -> list[tuple[bytes, bytes]]:
    """Records in the order of their numbers."""
    records = [(f"{prefix}{key}".encode(), b"%d" % number) for number in range(each) for key in range(keys)]
    append(cluster, records)
    return records


def by_key(records: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    values: dict[bytes, list[bytes]] = {}
    for key, value in records:
        values.setdefault(key, []).append(value)
    return values


def test_members_divide_the_keys_and_each_reads_its_own_in_order(cluster: Cluster, prefix: str) -> None:
    records = fill(cluster, prefix, 50, 20)
    members = [Consumer(cluster, prefix[:-1], name, {"prefixText": prefix}) for name in "abc"]
    received: list[tuple[bytes, bytes]] = []
    owners: dict[bytes, str] = {}
    for member in members:
        member.go_on()
        after = 0
        while answer := member.poll(after=after, max=37):
            if not answer["records"]:
                break
            assert [r["sequence"] for r in answer["records"]] == sorted(r["sequence"] for r in answer["records"])
            received += pairs(answer)
            assert all(owners.setdefault(key, member.member) == member.member for key, _ in pairs(answer))
            after = answer["nextSequence"]
    assert by_key(received) == by_key(records)
    assert set(owners.values()) == {"a", "b", "c"}
    assert len(received) == len(records)


def test_a_poll_repeats_what_is_not_committed(cluster: Cluster, prefix: str) -> None:
    fill(cluster, prefix, 5, 4)
    member = Consumer(cluster, prefix[:-1], "a", {"prefixText": prefix})
    first = member.poll(max=8)
    assert 0 < len(first["records"]) <= 8 and member.poll(max=8) == first
    second = member.poll(max=8, commit=first["nextSequence"])
    assert [r["sequence"] for r in second["records"]] > [r["sequence"] for r in first["records"]]
    assert describe(cluster, prefix[:-1])["lag"] == 20 - len(first["records"])
    part = second["records"][2]["sequence"] + 1
    member.commit(part)
    assert member.poll()["records"][0]["sequence"] == second["records"][3]["sequence"]
    member.commit(0)  # never goes back
    assert describe(cluster, prefix[:-1])["committedSequence"] == part


def test_a_stale_generation_is_refused_and_told_the_new_one(cluster: Cluster, prefix: str) -> None:
    fill(cluster, prefix, 20, 2)
    group = prefix[:-1]
    a = Consumer(cluster, group, "a", {"prefixText": prefix})
    given = a.poll()
    b = Consumer(cluster, group, "b")
    for act, fields in (
        ("commit", {"upTo": given["nextSequence"]}),
        ("poll", {}),
        ("poll", {"commit": 1}),
        ("leave", {}),
    ):
        status, body = a.act(act, **fields)
        assert status == 409 and body["generation"] == b.generation, body
        assert "go on with generation" in body["message"]
    assert describe(cluster, group)["lag"] == 40
    a.go_on()
    status, body = a.act("commit", upTo=given["nextSequence"])
    assert status == 409 and "has been given records only up to 0" in body["message"]
    a.commit(a.poll()["nextSequence"])
    b.commit(b.poll()["nextSequence"])
    assert describe(cluster, group)["lag"] == 0


def test_a_second_process_of_the_same_name_takes_over(cluster: Cluster, prefix: str) -> None:
    fill(cluster, prefix, 20, 2)
    group = prefix[:-1]
    old, other = Consumer(cluster, group, "a", {"prefixText": prefix}), Consumer(cluster, group, "b")
    old.go_on()
    new = Consumer(cluster, group, "a")
    assert new.joined["slots"] == 512
    status, body = old.act("commit", upTo=1)
    assert (status, "generation" in body) == (409, False) and "join again" in body["message"]
    new.commit(new.poll()["nextSequence"])
    other.commit(other.poll()["nextSequence"])  # the generation of the others is what it was
    assert describe(cluster, group)["lag"] == 0


def test_the_slots_of_a_silent_member_go_to_others_within_its_session(cluster: Cluster, prefix: str) -> None:
    records = fill(cluster, prefix, 30, 2)
    group = prefix[:-1]
    a = Consumer(cluster, group, "a", {"prefixText": prefix, "sessionTimeoutMs": 60_000})
    b = Consumer(cluster, group, "b", {"sessionTimeoutMs": 1000})
    a.go_on()
    given = b.poll()["nextSequence"]
    a.commit(a.poll()["nextSequence"])
    began = time.monotonic()
    status, body = a.act("poll", waitMs=20_000)  # waits for a record, and is woken by the change
    assert status == 409 and time.monotonic() - began < 3, body
    a.generation = body["generation"]
    rest = a.poll()
    a.commit(rest["nextSequence"])
    assert 0 < len(rest["records"]) < len(records)
    status, body = b.act("commit", upTo=given)
    assert status == 409 and "no member" in body["message"]
    assert describe(cluster, group)["lag"] == 0


def test_a_member_that_waits_is_alive_and_woken_by_an_append(cluster: Cluster, prefix: str) -> None:
    member = Consumer(cluster, prefix[:-1], "a", {"prefixText": prefix, "sessionTimeoutMs": 2000})
    threading.Timer(1.0, fill, (cluster, prefix, 1, 1)).start()
    began = time.monotonic()
    answer = member.poll(waitMs=30_000)
    assert len(answer["records"]) == 1 and 0.9 < time.monotonic() - began < 2
    began = time.monotonic()
    assert member.poll(waitMs=200, commit=answer["nextSequence"])["records"] == []
    assert 0.15 < time.monotonic() - began < 2


def test_a_member_that_leaves_is_replaced_at_once(cluster: Cluster, prefix: str) -> None:
    group = prefix[:-1]
    a, b = (Consumer(cluster, group, name, {"prefixText": prefix}) for name in "ab")
    assert b.act("leave")[0] == 200
    a.go_on()
    assert describe(cluster, group, lag="false")["members"][0]["slots"] == 1024
    assert a.act("leave")[0] == 200
    assert describe(cluster, group, lag="false")["members"] == []
    assert Consumer(cluster, group, "c").generation > b.generation


def test_groups_begin_where_the_first_member_says(cluster: Cluster, prefix: str) -> None:
    fill(cluster, prefix, 1, 3)
    third = cluster.get("/api/v1/log/scan", prefix=prefix).json()["records"][2]["sequence"]
    for start, count in (("earliest", 3), ("latest", 0), (third, 1)):
        member = Consumer(cluster, f"{prefix[:-1]}-{start}", "a", {"prefixText": prefix, "startFrom": start})
        assert len(member.poll()["records"]) == count


def test_lag_is_told_for_each_key_in_pages(cluster: Cluster, prefix: str) -> None:
    fill(cluster, prefix, 5, 3)
    group = prefix[:-1]
    member = Consumer(cluster, group, "a", {"prefix": b64(prefix.encode())})
    state = describe(cluster, group, limit="2")
    assert (state["lag"], state["more"], len(state["keys"])) == (15, True, 2)
    key = base64.b64decode(state["keys"][1]["key"])
    assert key == f"{prefix}1".encode()
    rest = describe(cluster, group, limit="10", after_base64=state["keys"][1]["key"])
    assert [row["lag"] for row in rest["keys"]] == [3, 3, 3] and not rest["more"]
    assert {row["member"] for row in rest["keys"]} == {"a"}
    member.commit(member.poll()["records"][5]["sequence"])
    assert describe(cluster, group)["lag"] == 10
    assert [row["lag"] for row in describe(cluster, group)["keys"]] == [2] * 5


def test_groups_and_cursors_are_listed_and_deleted(cluster: Cluster, prefix: str) -> None:
    group = prefix[:-1]
    old = Consumer(cluster, f"{group}-1", "a", {"prefixText": prefix})
    Consumer(cluster, f"{group}-2", "a")
    listed = cluster.get("/api/v1/log/groups", after=group, limit="1").json()
    assert listed["more"] and listed["groups"] == [
        {"group": f"{group}-1", "members": 1, "prefix": b64(prefix.encode())}
    ]
    assert cluster.get("/api/v1/log/groups", after=f"{group}-1").json()["groups"][0]["group"] == f"{group}-2"
    assert cluster.request("DELETE", f"/api/v1/log/groups/{group}-1").status == 200
    assert "first join makes it" in refused(cluster.get(f"/api/v1/log/groups/{group}-1"), 404)
    assert refused(cluster.request("DELETE", f"/api/v1/log/groups/{group}-1"), 404)
    assert old.act("poll")[0] == old.act("commit", upTo=0)[0] == 404
    again = Consumer(cluster, f"{group}-1", "a", {"startFrom": "latest"})
    assert again.generation > old.generation, "a stale member of the old group cannot commit to the new one"
    assert old.act("commit", upTo=0)[0] == 409
    put = b'{"positions": [{"key": "", "sequence": 1}]}'
    for name in "ab":
        assert cluster.request("PUT", f"/api/v1/log/cursors/{group}-{name}", put).status == 200
    page = cluster.get("/api/v1/log/cursors", after=group, limit="1").json()
    assert page == {"status": "success", "cursors": [{"name": f"{group}-a"}], "more": True}


def test_a_poll_answers_in_protobuf(cluster: Cluster, prefix: str) -> None:
    records = fill(cluster, prefix, 10, 3)
    member = Consumer(cluster, prefix[:-1], "a", {"prefixText": prefix})
    body = b'{"member": "a", "generation": %d}' % member.generation
    headers = {"Accept": "application/protobuf", "Content-Type": "application/json"}
    answer = cluster.request("POST", f"/api/v1/log/groups/{prefix[:-1]}/poll", body, headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/protobuf")
    page = log_pb2.ScanResponse.FromString(answer.body)
    assert sum(len(columns.sequences) for columns in page.pages) == len(records)
    assert page.next_sequence == member.poll()["nextSequence"]


def test_a_connection_is_kept_after_a_large_answer(cluster: Cluster, prefix: str) -> None:
    append(cluster, [(prefix.encode(), b"v" * 10_000)] * 100)
    member = Consumer(cluster, prefix[:-1], "a", {"prefixText": prefix})
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
    for _ in range(2):
        body = b'{"member": "a", "generation": %d}' % member.generation
        connection.request("POST", f"/api/v1/log/groups/{prefix[:-1]}/poll", body)
        local = connection.sock
        answer = connection.getresponse()
        assert len(json.loads(answer.read())["records"]) == 100
        assert connection.sock is local is not None
    connection.close()


def test_a_poll_answers_in_text(cluster: Cluster, prefix: str) -> None:
    append(cluster, [(prefix.encode(), b"text")])
    Consumer(cluster, prefix[:-1], "a", {"prefixText": prefix})
    generation = describe(cluster, prefix[:-1])["generation"]
    path = f"/api/v1/log/groups/{prefix[:-1]}/poll"
    answer = cluster.post_json(f"{path}?encoding=text", {"member": "a", "generation": generation}).json()
    assert (answer["records"][0]["keyText"], answer["records"][0]["text"]) == (prefix, "text")
    assert describe(cluster, prefix[:-1], encoding="text")["keys"][0]["keyText"] == prefix


@pytest.mark.parametrize(
    ("act", "body", "says"),
    [
        ("join", b"[]", "the body is not valid"),
        ("join", b'{"sessionTimeoutMs": 10}', "sessionTimeoutMs"),
        ("join", b'{"startFrom": "now"}', "`startFrom` is 'now'; it must be"),
        ("join", b'{"startFrom": -1}', "startFrom"),
        ("join", b'{"prefix": "", "prefixText": ""}', "exclude each other"),
        ("join", b'{"member": "%s"}' % (b"m" * 257), "`member` has 257 bytes"),
        ("join", b'{"members": "a"}', "unknown field `members`"),
        ("join", b'{"prefixText": "other"}', "a group has one prefix"),
        ("poll", b"{}", "missing required field `member`"),
        ("poll", b'{"member": "a", "generation": 1, "max": 50001}', "max"),
        ("poll", b'{"member": "a", "generation": 1, "waitMs": -1}', "waitMs"),
        ("commit", b'{"member": "a", "generation": 1}', "missing required field `upTo`"),
        ("commit", b'{"member": "a", "generation": 1, "upTo": 4611686018427387904}', "it must be at most"),
        ("commit", b'{"member": "a", "generation": 1, "upTo": "\xff"}', "the body is not valid"),
    ],
)
def test_what_is_wrong_is_named(cluster: Cluster, prefix: str, act: str, body: bytes, says: str) -> None:
    Consumer(cluster, prefix[:-1], "first", {"prefixText": prefix})
    answer = cluster.request("POST", f"/api/v1/log/groups/{prefix[:-1]}/{act}", body)
    assert says in refused(answer, 400)


def test_names_and_pages_are_bounded(cluster: Cluster) -> None:
    assert "257 bytes" in refused(cluster.post_json(f"/api/v1/log/groups/{'g' * 257}/join", {}), 400)
    for path in ("groups", "cursors"):
        assert "'limit'" in refused(cluster.get(f"/api/v1/log/{path}", limit="1001"), 400)


def test_a_member_without_a_name_is_given_one(cluster: Cluster, prefix: str) -> None:
    answer = cluster.post_json(f"/api/v1/log/groups/{prefix[:-1]}/join", {}).json()
    assert answer["member"].startswith("member-")


def test_a_restart_of_the_coordinator_keeps_generations_and_commits(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster().start()
    fill(cluster, "p/", 20, 5)
    a, b = (Consumer(cluster, "g", name, {"sessionTimeoutMs": 20_000}) for name in "ab")
    a.go_on()
    a.commit(a.poll(max=10)["nextSequence"])
    before = describe(cluster, "g")
    assert cluster.coordinator is not None
    cluster.coordinator.kill()
    cluster.coordinator.wait()
    cluster.start_coordinator()
    cluster.wait_ready()
    assert describe(cluster, "g") == before
    a.commit(a.poll()["nextSequence"])
    b.commit(b.poll()["nextSequence"])
    assert describe(cluster, "g")["lag"] == 0
    assert Consumer(cluster, "g", "c").generation > b.generation
    assert b.act("commit", upTo=1)[0] == 409


def test_the_command_lists_shows_and_deletes_groups(cluster: Cluster, prefix: str) -> None:
    def run(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "coordinator.cli", "log", *arguments, "--url", cluster.url]
        return subprocess.run(command, capture_output=True, cwd=ROOT, timeout=60, check=True).stdout

    group = f"{prefix}?&"
    fill(cluster, prefix, 2, 1)
    joined = cluster.post_json(f"/api/v1/log/groups/{quote(group, safe='')}/join", {"prefixText": prefix})
    assert joined.status == 200, joined.body
    assert f"{group}\t1 member\t{prefix}\n".encode() in run("groups")
    assert json.loads(run("group", group))["lag"] == 2
    run("delete-group", group)
    assert group.encode() not in run("groups")
