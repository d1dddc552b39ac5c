"""What is sent, and what answers mean."""

from __future__ import annotations

import base64
import datetime
import inspect
import urllib.parse

import cramjam
import numpy as np
import pytest
from client_server import FakeServer, data, page, reply
from proto import remote_write_pb2, vector_pb2

import triptych
from triptych import AsyncClient, Client, async_client, client, metrics
from triptych.times import milliseconds, text_of
from triptych.transport import Connection

OK = {"status": "success"}


def form(request):
    return urllib.parse.parse_qs(request.content.decode())


# Metrics


def test_a_vector_becomes_series_of_one_sample():
    element = {"metric": {"__name__": "up", "job": "a"}, "value": [1700000000.5, "+Inf"]}
    server = FakeServer(data({"resultType": "vector", "result": [element]}, infos=["a hint"]))
    result = server.client().metrics.query("up", 1700000000.5, timeout="5s", limit=3, partial=False)
    assert form(server.requests[0]) == {
        "query": ["up"],
        "time": ["1700000000.5"],
        "timeout": ["5s"],
        "limit": ["3"],
        "partial_response": ["false"],
    }
    [series] = result.series
    assert series.labels == {"__name__": "up", "job": "a"}
    assert series.timestamps.tolist() == [1700000000.5]
    assert series.values.tolist() == [np.inf]
    assert result.infos == ("a hint",)
    assert str(series.times[0]) == "2023-11-14T22:13:20.500"


@pytest.mark.parametrize(
    ("timeout", "wait_s"),
    [(None, 0), (90, 90), (np.int64(90), 90), ("1m30s", 90), ("1500ms", 1.5), ("1h", 3600), ("2.5", 2.5), ("soon", 0)],
)
def test_a_request_may_take_as_much_longer_as_its_query_may(timeout, wait_s):
    assert metrics.query("up", timeout=timeout).wait_s == wait_s


def test_a_matrix_has_floats_and_histograms():
    histogram = {"count": "3", "sum": "4.5", "buckets": [[3, "-1", "1", "2"], [0, "1", "2", "1"]]}
    element = {"metric": {}, "values": [[1, "NaN"], [2, "7"]], "histograms": [[3, histogram]]}
    server = FakeServer(data({"resultType": "matrix", "result": [element]}))
    [series] = server.client().metrics.query_range("x", 1, 3, "1s").series
    assert np.isnan(series.values[0])
    assert series.values[1] == 7
    assert series.histogram_timestamps.tolist() == [3]
    [found] = series.histograms
    assert (found.count, found.sum, len(found.buckets)) == (3, 4.5, 2)
    assert (found.buckets[0].left_inclusive, found.buckets[1].left_inclusive) == (True, False)


def test_scalars_and_strings():
    server = FakeServer(
        data({"resultType": "scalar", "result": [1, "2.5"]}), data({"resultType": "string", "result": [1, "x"]})
    )
    assert server.client().metrics.query("2.5").value == 2.5
    assert server.client().metrics.query('"x"').text == "x"


def test_what_is_missing_is_a_warning_where_the_caller_stands():
    server = FakeServer(data({"resultType": "vector", "result": []}, warnings=["shard 1 is down"]))
    with pytest.warns(triptych.PartialAnswer, match="shard 1 is down") as caught:
        result = server.client().metrics.query("up")
    assert caught[0].filename == __file__
    assert result.warnings == ("shard 1 is down",)


@pytest.mark.parametrize(
    ("times", "values"),
    [([1700000000.5, 1700000015], [1.0, np.nan]), ([0, 1, 5e9], [1.0, -0.0, np.inf]), ([-1.5], [2])],
)
def test_samples_are_the_protocols_message(times, values):
    server = FakeServer(reply(204, b""))
    labels = {"job": "ä", "__name__": "m"}
    written = server.client().metrics.write([(labels, values, times)])
    assert (written.samples, written.requests) == (len(values), 1)
    message = remote_write_pb2.WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(server.requests[0].content)))
    [series] = message.timeseries
    assert [(label.name, label.value) for label in series.labels] == [("__name__", "m"), ("job", "ä")]
    assert [sample.timestamp for sample in series.samples] == [round(time * 1000) for time in times]
    np.testing.assert_array_equal([sample.value for sample in series.samples], values)
    assert server.requests[0].headers["content-encoding"] == "snappy"


def test_samples_are_not_taken_for_stored_when_another_service_answers():
    server = FakeServer(reply(200, b"<html>"))
    with pytest.raises(triptych.ServerError, match="the status 200; it must be 204"):
        server.client().metrics.write([({"__name__": "m"}, 1.0)])
    assert len(server.requests) == 1


def test_many_samples_are_divided_into_requests():
    server = FakeServer(reply(204, b""))
    rows = [({"__name__": f"m{i}"}, np.arange(70.0), 1700000000 + np.arange(70)) for i in range(3)]
    written = server.client().metrics.write(rows, samples_per_request=100)
    assert (written.samples, written.requests, len(server.requests)) == (210, 3, 3)
    found = {}
    for request in server.requests:
        message = remote_write_pb2.WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(request.content)))
        assert sum(len(series.samples) for series in message.timeseries) <= 100
        for series in message.timeseries:
            found.setdefault(series.labels[0].value, []).extend(sample.value for sample in series.samples)
    assert found == {f"m{i}": list(range(70)) for i in range(3)}


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (({"job": "a"}, 1.0), "no `__name__`"),
        (({"__name__": "m", "code": 200}, 1.0), "'code' is 200; it must be a text"),
        (({"__name__": "m"}, [1.0, 2.0], [1.0]), "2 values and 1 times"),
        (({"__name__": "m"}, 1.0, float("nan")), "not finite"),
        (({"__name__": "m"}, 1.0, np.datetime64("NaT")), "NaT"),
        (({"__name__": "m"}, [1.0, 2.0], np.array(["2026-01-01", "NaT"], "datetime64[ns]")), "NaT"),
        (({"__name__": "m"}, 1.0, np.datetime64(2**62, "s")), "beyond int64 milliseconds"),
        (({"__name__": "m"}, 1.0, 1_700_000_000 * 10**9), r"the time is 1\.7e\+18; it must be in Unix seconds"),
        (
            ({"__name__": "m"}, [1.0, 2.0], [0, -(2**63) / 1000]),
            r"the time is -9\.22337e\+15; it must be in Unix seconds",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_before_it_is_sent(series, message):
    server = FakeServer(reply(204, b""))
    with pytest.raises(ValueError, match=message):
        server.client().metrics.write([series])
    assert server.requests == []


def test_lists_of_series_and_labels():
    server = FakeServer(
        data([{"__name__": "up"}]), data(["job"]), data({"up": [{"type": "gauge", "help": "h", "unit": ""}]})
    )
    metrics = server.client().metrics
    assert metrics.series("up", 1, 2) == [{"__name__": "up"}]
    assert form(server.requests[0]) == {"match[]": ["up"], "start": ["1"], "end": ["2"]}
    assert metrics.label_values("a/b", ["x", "y"]) == ["job"]
    assert server.requests[1].url.raw_path == b"/api/v1/label/a%2Fb/values?match%5B%5D=x&match%5B%5D=y"
    assert metrics.metadata()["up"][0].type == "gauge"


def test_times_are_unix_seconds_or_datetimes():
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=datetime.timezone.utc)
    for time in (1700000000.5, moment, np.datetime64("2023-11-14T22:13:20.5")):
        assert text_of(time) == "1700000000.5"
        assert milliseconds(time).tolist() == [1700000000500]
    with pytest.raises(ValueError, match="NaT"):
        text_of(np.datetime64("NaT"))
    assert text_of("2023-11-14T22:13:20Z") == "2023-11-14T22:13:20Z"
    mixed = [moment, 1700000000.5, np.datetime64("2023-11-14T22:13:20.5")]
    assert milliseconds(mixed).tolist() == [1700000000500] * 3


# Vectors


def test_vectors_are_written_as_protobuf():
    server = FakeServer(reply(200, {**OK, "vectorsUpserted": 2}))
    attributes = [
        {"s": "ä", "i": -3, "f": 2.0, "b": True, "n": None, "l": ["x", "y"], "m": [1, 2.5]},
        {"i": np.int64(4)},
    ]
    assert server.client().vectors.upsert(["a", "b"], [[1, 2], [3, 4]], attributes, collection="c") == 2
    sent = vector_pb2.WriteRequest.FromString(server.requests[0].content)
    assert sent.collection == "c"
    first = sent.upsert_vectors[0].attributes
    assert list(first["vector"].vector_value.values) == [1, 2]
    assert (first["s"].string_value, first["i"].int64_value, first["f"].float64_value, first["b"].bool_value) == (
        "ä",
        -3,
        2.0,
        True,
    )
    assert [element.string_value for element in first["l"].array_value.values] == ["x", "y"]
    assert first["m"].array_value.values[1].float64_value == 2.5
    assert "n" not in first
    assert sent.upsert_vectors[1].attributes["i"].int64_value == 4


def test_many_vectors_are_divided_into_requests():
    server = FakeServer(
        lambda request: reply(
            200, {"vectorsUpserted": len(vector_pb2.WriteRequest.FromString(request.content).upsert_vectors)}
        )
    )
    ids = [str(i) for i in range(12_000)]
    assert server.client().vectors.upsert(ids, np.zeros((12_000, 2))) == 12_000
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("ids", "vectors", "attributes", "message"),
    [
        (["a"], [1, 2], None, r"the shape \(2,\)"),
        (["a"], [[1, 2], [1, 2]], None, r"it must be \(1, dimension\)"),
        (["a"], [[1]], [{}, {}], "2 sets of attributes for 1 ids"),
        (["a"], [[1]], [{"vector": 1}], "the name of the vector itself"),
        (["a"], [[1]], [{"x": {}}], "'x' is dict"),
        (["a"], [[1]], [{"x": 1 << 63}], "at most 64 bits"),
    ],
)
def test_vectors_that_cannot_be_sent_are_refused(ids, vectors, attributes, message):
    server = FakeServer(reply(200, OK))
    with pytest.raises((ValueError, TypeError), match=message):
        server.client().vectors.upsert(ids, vectors, attributes)
    assert server.requests == []


def test_a_search_gives_hits():
    hit = {
        "score": 0.5,
        "vector": {"id": "a", "attributes": {"vector": [1, 2], "colour": "red"}},
        "highlights": {"t": ["x"]},
    }
    server = FakeServer(reply(200, {**OK, "results": [hit], "infos": ["hint"]}))
    result = server.client().vectors.search(
        np.array([1, 2]), k=1, text="fox", filter={"eq": {"field": "f", "value": 1}}, collection="c"
    )
    assert server.json() == {
        "collection": "c",
        "vector": [1, 2],
        "k": 1,
        "text": {"query": "fox"},
        "filter": {"eq": {"field": "f", "value": 1}},
    }
    [found] = result
    assert (found.id, found.score, found.attributes, found.highlights) == ("a", 0.5, {"colour": "red"}, {"t": ["x"]})
    assert found.vector.tolist() == [1, 2]
    assert result.infos == ("hint",)


def test_a_batch_of_searches_has_a_result_for_each():
    server = FakeServer(reply(200, {**OK, "resultSets": [{"results": []}, {"results": []}]}))
    assert [len(result) for result in server.client().vectors.search_many([[1], [2]])] == [0, 0]


def test_a_scroll_reads_page_after_page():
    vectors = [{"id": str(i), "attributes": {}} for i in range(3)]
    server = FakeServer(
        reply(200, {**OK, "vectors": vectors[:2], "nextPageToken": "t"}), reply(200, {**OK, "vectors": vectors[2:]})
    )
    assert [vector.id for vector in server.client().vectors.scroll(include=[], order_by="year")] == ["0", "1", "2"]
    assert server.json(1) == {"limit": 1000, "orderBy": {"field": "year"}, "includeFields": [], "pageToken": "t"}


def test_many_ids_are_divided_into_requests():
    server = FakeServer(lambda request: reply(200, {"vectorsDeleted": request.content.count(b",") + 1}))
    assert server.client().vectors.delete([str(i) for i in range(10_001)]) == 10_001
    with pytest.raises(TypeError, match="it must be a list of ids"):
        server.client().vectors.delete("abc")
    with pytest.raises(ValueError, match="exclude each other"):
        server.client().vectors.delete(["a"], filter={"exists": {"field": "x"}})


# All areas


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, triptych.BadRequest),
        (401, triptych.Unauthorized),
        (403, triptych.Forbidden),
        (404, triptych.NotFound),
        (409, triptych.Conflict),
        (413, triptych.TooLarge),
        (422, triptych.NotExecutable),
        (500, triptych.ServerError),
        (302, triptych.BadRequest),
    ],
)
def test_errors_are_typed_by_status_and_have_the_servers_message(status, error):
    for content in ({"status": "error", "errorType": "x", "error": "why"}, {"status": "error", "message": "why"}):
        with pytest.raises(error, match=r"^why$") as caught:
            FakeServer(reply(status, content)).client().metrics.query("x")
        assert caught.value.status == status
    with pytest.raises(error, match="<html>"):
        FakeServer(reply(status, b"<html>")).client().metrics.query("x")


def test_an_answer_that_is_no_json_is_an_error():
    for body in (b"<html>", b"[]"):
        with pytest.raises(triptych.ServerError):
            FakeServer(reply(200, body)).client().metrics.query("x")


def test_both_clients_have_the_same_methods():
    assert (
        inspect.signature(Client.__init__).parameters.keys()
        == inspect.signature(AsyncClient.__init__).parameters.keys()
    )
    for area in ("Metrics", "Log", "Vectors", "Producer"):
        plain, awaited = getattr(client, area), getattr(async_client, f"Async{area}")
        names = {name for name in vars(plain) if not name.startswith("_")}
        assert names == {name for name in vars(awaited) if not name.startswith("_")}
        for name in names:
            mine, other = inspect.signature(getattr(plain, name)), inspect.signature(getattr(awaited, name))
            assert list(mine.parameters.values()) == list(other.parameters.values())
            assert getattr(plain, name).__doc__


async def test_the_async_client_runs_steps_and_readings():
    server = FakeServer(reply(204, b""), page([(1, b"a", b"x"), (2, b"a", b"y")], 3), page([], 3))
    async with server.async_client() as client:
        assert (await client.metrics.write([({"__name__": "m"}, 1.0)])).samples == 1
        assert [record.value async for record in client.log.scan(prefix="", page_records=2)] == [b"x", b"y"]


def test_credentials_and_addresses(monkeypatch):
    monkeypatch.delenv("TRIPTYCH_URL", raising=False)
    monkeypatch.delenv("TRIPTYCH_TOKEN", raising=False)
    assert Connection().base == "http://127.0.0.1:9090"
    assert Connection("host:1/prefix/").base == "http://host:1/prefix"
    assert "Authorization" not in Connection().options()["headers"]
    assert Connection(token="t").options()["headers"]["Authorization"] == "Bearer t"
    basic = "Basic " + base64.b64encode(b"u:p").decode()
    assert Connection(user="u", password="p").options()["headers"]["Authorization"] == basic
    monkeypatch.setenv("TRIPTYCH_TOKEN", "u:p\n")
    monkeypatch.setenv("TRIPTYCH_URL", "https://host")
    assert Connection().options()["headers"]["Authorization"] == basic
    assert Connection().base == "https://host"
    for wrong in ("ftp://host", "http://", "http://u:p@host", "http://host?x=1"):
        with pytest.raises(ValueError, match="url"):
            Connection(wrong).options()
    assert "secret" not in repr(Connection(token="secret", password="secret"))
