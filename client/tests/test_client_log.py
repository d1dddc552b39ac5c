"""Requests of the log area: what is sent, and what answers mean."""

from __future__ import annotations

import base64
import contextlib
import urllib.parse

import pytest
from client_server import FakeServer, page, reply
from hypothesis import given
from hypothesis import strategies as st
from proto import log_pb2

import triptych
from triptych.records import page_of

OK = {"status": "success"}


def query_of(request):
    return dict(urllib.parse.parse_qsl(request.url.query.decode()))


def test_records_are_appended_as_protobuf():
    server = FakeServer(reply(200, {"status": "success", "recordsAppended": 4, "startSequence": 9}))
    new = triptych.NewRecord(b"\xff", headers={"trace": "00"}, content_type="text/plain", tombstone=True)
    appended = server.client().log.append([("k", "text"), ("k", b"\x00"), ("k", {"ä": [1]}), new], await_durable=True)
    assert (appended.records, appended.start_sequence) == (4, 9)
    sent = log_pb2.AppendRequest.FromString(server.requests[0].content)
    assert [record.value for record in sent.records] == [b"text", b"\x00", '{"ä":[1]}'.encode(), b""]
    assert sent.await_durable
    last = sent.records[3]
    assert (last.key.value, dict(last.headers), last.content_type, last.tombstone) == (
        b"\xff",
        {"trace": "00"},
        "text/plain",
        True,
    )


def test_a_producer_names_itself_and_its_batch():
    server = FakeServer(reply(200, {"status": "success", "recordsAppended": 1, "startSequence": 0}))
    producer = server.client().log.producer("p", sequence=3)
    producer.append([("k", "v")])
    producer.append([("k", "v")])
    sent = [log_pb2.AppendRequest.FromString(request.content) for request in server.requests]
    assert [(message.producer_id, message.producer_seq) for message in sent] == [("p", 3), ("p", 4)]


def test_a_scan_reads_page_after_page():
    head = log_pb2.RecordHeaders(headers={"trace": "00"}, content_type="c", tombstone=True)
    server = FakeServer(
        page([(1, b"a", b"x"), (2, b"b", b"\xff")], 3),
        page([(5, b"a", b"", head)], 9, ["the answer ends early"]),
        page([], 9),
    )
    records = list(server.client().log.scan(prefix="", page_records=2, where="$.a = 1", start_time=5))
    assert [(record.sequence, record.key, record.value, record.time) for record in records] == [
        (1, b"a", b"x", 1.0),
        (2, b"b", b"\xff", 2.0),
        (5, b"a", b"", 5.0),
    ]
    assert (records[2].headers, records[2].content_type, records[2].tombstone) == ({"trace": "00"}, "c", True)
    queries = [query_of(request) for request in server.requests]
    assert [query["start_seq"] for query in queries] == ["0", "3", "9"]
    assert queries[0] == {"where": "$.a = 1", "start_time": "5", "start_seq": "0", "limit": "2"}


def test_a_scan_in_reverse_goes_on_below_and_stops_at_its_limit():
    server = FakeServer(page([(9, b"", b"9"), (8, b"", b"8")], 8, key=b"k"), page([(7, b"", b"7")], 7, key=b"k"))
    records = server.client().log.read(key="k", reverse=True, limit=3, page_records=2)
    assert records.sequences.tolist() == [9, 8, 7]
    assert records.keys == [b"k"] * 3
    queries = [query_of(request) for request in server.requests]
    assert [(query.get("end_seq"), query["limit"]) for query in queries] == [(None, "2"), ("8", "1")]


@pytest.mark.parametrize("limit", [None, 3])
def test_what_any_page_lacks_is_said_at_the_end(limit):
    lacking, other = "values above 1048576 bytes are not examined by 'where'", "shard 1 has lost records"
    server = FakeServer(
        page([(1, b"", b"1"), (2, b"", b"2")], 3, [lacking], key=b"k"),
        page([], 5, [other, "the search is not at the end after 10 s; it goes on at nextSequence"], key=b"k"),
        page([(6, b"", b"6")], 7, key=b"k"),
    )
    with pytest.warns(triptych.PartialAnswer) as said:
        records = server.client().log.read(key="k", where="$.a = 1", limit=limit, page_records=2)
    assert records.sequences.tolist() == [1, 2, 6]
    assert records.warnings == (lacking, other)
    assert [str(warning.message) for warning in said] == [lacking, other]


def test_a_page_that_is_cut_off_is_an_error():
    whole = page([(1, b"a", b"value")], 2)
    server = FakeServer(reply(200, whole.content[:-9]))
    with pytest.raises(triptych.ServerError, match="not a page of records"):
        server.client(timeout=0.1).log.read(prefix="")


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 5))
def test_no_answer_ends_a_read_with_another_error(noise, at, left_out):
    body = page([(1, b"a", b"value"), (2, b"b", b"", log_pb2.RecordHeaders(content_type="c"))], 3, ["w"]).content
    with contextlib.suppress(triptych.ServerError):
        list(page_of(body[:at] + noise + body[at + left_out :], None))


def test_following_goes_on_after_the_last_record_and_outlives_the_server(monkeypatch):
    monkeypatch.setattr("triptych.client.time.sleep", lambda seconds: None)
    frontier = {**OK, "nextSequence": 5, "readableSequence": 4, "durableSequence": 4, "logStartSequence": 0}
    full = reply(503, {"message": "restarting"}, Retry_After="100")
    server = FakeServer(
        reply(200, frontier),
        page([], 4, key=b"k"),
        page([(6, b"", b"x")], 7, key=b"k"),
        full,
        page([(8, b"", b"y")], 9, key=b"k"),
    )
    following = server.client(timeout=1).log.follow(key="k")
    assert [next(following).value for _ in range(2)] == [b"x", b"y"]
    following.close()
    queries = [query_of(request) for request in server.requests[1:]]
    assert [query["start_seq"] for query in queries] == ["4", "4", "7", "7"]
    assert queries[0]["follow"] == "true"


def test_following_from_a_time_on_goes_on_where_the_last_request_ended():
    """A time that is in the future on the server's clock means from now on there, and a search may have come far."""
    server = FakeServer(page([], 4, key=b"k"), page([], 9, key=b"k"), page([(9, b"", b"x")], 10, key=b"k"))
    following = server.client().log.follow(key="k", start_time=5, grep="x")
    assert next(following).value == b"x"
    following.close()
    queries = [query_of(request) for request in server.requests]
    assert [(query.get("start_time"), query.get("start_seq")) for query in queries] == [
        ("5", None),
        (None, "4"),
        (None, "9"),
    ]


def test_following_says_what_is_missing_and_not_that_it_goes_on():
    searching = "the search is not at the end after 10 s; it goes on at nextSequence"
    server = FakeServer(
        page([], 5, [searching], key=b"k"), page([(5, b"", b"x")], 6, ["shard 1 has lost records"], key=b"k")
    )
    following = server.client().log.follow(key="k", start=0, grep="x")
    with pytest.warns(triptych.PartialAnswer) as said:
        assert next(following).sequence == 5
    following.close()
    assert [str(warning.message) for warning in said] == ["shard 1 has lost records"]


def test_keys_are_read_in_pages():
    encoded = [base64.b64encode(key).decode() for key in (b"a", b"b", b"c")]
    server = FakeServer(
        reply(200, {**OK, "keys": [{"key": encoded[0]}, {"key": encoded[1]}], "more": True}),
        reply(200, {**OK, "keys": [{"key": encoded[2]}], "more": False}),
    )
    assert list(server.client().log.keys()) == [b"a", b"b", b"c"]
    assert query_of(server.requests[1])["after_base64"] == encoded[1]


def test_positions_are_compared_whether_keys_are_texts_or_bytes():
    server = FakeServer(reply(200, OK))
    server.client().log.set_cursor("c", {"a": 3, b"b": 4, "c": 5}, expected={b"a": 1, "b": None})
    rows = {base64.b64decode(row.pop("key")): row for row in server.json()["positions"]}
    assert rows == {
        b"a": {"sequence": 3, "expected": 1},
        b"b": {"sequence": 4, "expected": None},
        b"c": {"sequence": 5},
    }


def test_a_position_that_is_expected_and_not_set_is_refused():
    server = FakeServer(reply(200, OK))
    with pytest.raises(ValueError, match=r"keys without a new position: b'b', b'.*xff'"):
        server.client().log.set_cursor("c", {"a": 3}, expected={"a": 1, "b": 2, b"\xff": None})
    assert server.requests == []


def test_a_consumer_commits_a_page_when_it_asks_for_the_next():
    joined = reply(200, {**OK, "member": "m", "generation": 1})
    server = FakeServer(
        joined,
        page([(2, b"b", b"2"), (1, b"a", b"1")], 3),
        reply(409, {"status": "error", "message": "slots have moved", "generation": 5}),
        page([(1, b"a", b"1")], 3),
        reply(409, {"status": "error", "message": "not known"}),
        joined,
        page([(4, b"a", b"4")], 5),
        reply(200, OK),
    )
    pages = server.client().log.consume("g", prefix="p/", member="m")
    assert [record.value for record in next(pages)] == [b"1", b"2"]
    assert [record.value for record in next(pages)] == [b"1"]
    assert [record.value for record in next(pages)] == [b"4"]
    pages.close()
    bodies = [server.json(at) for at in range(len(server.requests))]
    assert bodies[0]["prefix"] == base64.b64encode(b"p/").decode()
    assert [body.get("commit") for body in bodies[1:7]] == [None, 3, None, 3, None, None]
    assert bodies[3]["generation"] == 5
    assert server.requests[-1].url.path == "/api/v1/log/groups/g/leave"
