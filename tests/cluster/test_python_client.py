"""The Python client with a real cluster."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import threading
import time
import urllib.parse
import uuid

import numpy as np
import pyarrow
import pytest
import triptych
from langchain_core.documents import Document
from langchain_tests.integration_tests.vectorstores import VectorStoreIntegrationTests
from triptych.langchain import TriptychVectorStore
from triptych.logging import LogHandler

from coordinator.headers.negotiation import ARROW
from loadtest.harness.cluster import ROOT
from tests.cluster.secured import TOKENS, Files, bearer

START = 1_700_000_000


@pytest.fixture(scope="module")
def client(cluster):
    with triptych.Client(cluster.url) as made:
        yield made


@pytest.fixture
def name():
    return f"client_{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def metric(client):
    """A metric of three series with 50 samples, one every 15 s."""
    made = f"client_{uuid.uuid4().hex}"
    times = START + 15 * np.arange(50)
    rows = [({"__name__": made, "room": room}, np.arange(50.0) * i, times) for i, room in enumerate("abc")]
    assert client.metrics.write(rows).samples == 150
    return made


# Metrics


def test_samples_come_back_bit_for_bit(client, name):
    values = np.array([1.5, -0.0, np.inf, 1e-300, np.nan])
    times = np.array([0.001, 1e9, START, START + 0.5, 5e9])
    client.metrics.write([({"__name__": name, "ä": "ö\n"}, values, times)])
    [series] = client.metrics.query(f"{name}[200y]", 5e9).series
    assert series.labels == {"__name__": name, "ä": "ö\n"}
    np.testing.assert_array_equal(series.timestamps, times)
    np.testing.assert_array_equal(series.values, values)
    assert np.signbit(series.values[1])


def test_queries_and_lists(client, metric):
    end = START + 15 * 49
    frame = client.metrics.query_range(metric, START, end, 15).to_pandas()
    assert len(frame) == 150
    assert frame[frame["room"] == "c"]["value"].tolist() == (np.arange(50.0) * 2).tolist()
    assert client.metrics.query(f"sum({metric})", end).series[0].values.tolist() == [147.0]
    assert client.metrics.query("scalar(vector(2))").value == 2
    assert client.metrics.query('"x"').text == "x"
    assert len(client.metrics.series(metric, START, end)) == 3
    assert "room" in client.metrics.labels(metric)
    assert client.metrics.label_values("room", metric) == ["a", "b", "c"]
    assert client.metrics.metadata() is not None
    assert client.metrics.query(metric, end, stats=True).stats["samples"]["totalQueryableSamples"] > 0
    with pytest.raises(triptych.BadRequest, match="parse error"):
        client.metrics.query("sum(")
    with pytest.raises(triptych.OutOfTime):
        client.metrics.query("sum_over_time(vector(time())[10d:1s])", end, timeout=0.001)
    with pytest.raises(triptych.NotExecutable):
        client.metrics.query("nothing_such(x)")


def test_a_series_of_an_answer_can_be_written(client, metric, name):
    [series] = client.metrics.query(f'{metric}{{room="b"}}[1h]', START + 750).series
    client.metrics.write([triptych.Series({**series.labels, "__name__": name}, series.timestamps, series.values)])
    assert client.metrics.query(f"count_over_time({name}[1h])", START + 750).series[0].values.tolist() == [50]


@pytest.mark.parametrize(
    "query",
    ["{metric}", "{metric}[5m]", "sum by (room) ({metric})", "{metric} > 90", "nothing_there", "topk(2, {metric})"],
)
def test_arrow_answers_are_those_of_json(cluster, client, metric, query):
    with triptych.Client(cluster.url, arrow=True) as arrow:
        for ask in ("query", "query_range"):
            if ask == "query_range" and "[" in query:
                continue
            rest = (START + 700,) if ask == "query" else (START, START + 900, 7)
            text = query.format(metric=metric)
            one, other = (getattr(each.metrics, ask)(text, *rest) for each in (client, arrow))
            assert (one.type, len(one.series)) == (other.type, len(other.series))
            for mine, its in zip(one.series, other.series, strict=True):
                assert mine.labels == its.labels
                np.testing.assert_array_equal(mine.timestamps, its.timestamps)
                np.testing.assert_array_equal(mine.values, its.values)


def test_arrow_is_answered_where_it_is_preferred_and_can_hold_the_value(cluster, metric):
    def content_type(accept, query, **parameters):
        text = urllib.parse.urlencode({"query": query, "time": START, **parameters})
        return cluster.request("GET", f"/api/v1/query?{text}", headers={"Accept": accept}).headers["content-type"]

    assert content_type(ARROW, metric) == ARROW
    assert content_type(f"{ARROW}, application/json;q=0.5", metric) == ARROW
    for accept in ("*/*", f"{ARROW};q=0.5, application/json", "application/json"):
        assert content_type(accept, metric).startswith("application/json")
    for other in ("1", '"x"'):
        assert content_type(ARROW, other).startswith("application/json")
    assert content_type(ARROW, metric, stats="all").startswith("application/json")


def test_a_hint_is_in_an_arrow_answer(cluster, client, metric):
    with triptych.Client(cluster.url, arrow=True) as arrow:
        query, time = f"rate({metric}[1m])", START + 700
        expected = client.metrics.query(query, time).infos
        assert expected
        assert arrow.metrics.query(query, time).infos == expected


# The log


def test_records_are_appended_and_scanned(client, name):
    appended = client.log.append([(name, "text"), (name, b"\xff"), (name, {"a": 1})], await_durable=True)
    tombstone = triptych.NewRecord(name, headers={"trace": "00"}, content_type="x", tombstone=True)
    client.log.append([tombstone])
    records = list(client.log.scan(key=name, page_records=2))
    assert [record.value for record in records] == [b"text", b"\xff", b'{"a":1}', b""]
    assert records[0].sequence == appended.start_sequence
    assert records[2].json() == {"a": 1}
    assert (records[3].headers, records[3].content_type, records[3].tombstone) == ({"trace": "00"}, "x", True)
    assert abs(records[0].time - time.time()) < 60
    newest = client.log.scan(key=name, reverse=True, limit=2)
    assert [record.tombstone for record in newest] == [True, False]
    assert client.log.count(key=name, where="$.a = 1") == 1
    assert list(client.log.keys(name)) == [name.encode()]
    assert client.log.offset(records[0].time, key=name).sequence == appended.start_sequence
    assert client.log.frontier().readable > records[3].sequence
    assert client.log.read(key=name).to_polars()["value"].to_list()[0] == "text"
    assert client.log.delete_key(name, before=records[2].sequence) == 2
    assert len(client.log.read(prefix=name)) == 2


def test_a_long_prefix_is_read_in_pages(client, name):
    for part in range(3):
        client.log.append([(f"{name}/{i % 7}", str(1000 * part + i)) for i in range(1000)])
    found = client.log.read(prefix=name, page_records=700)
    assert [int(value) for value in found.values] == list(range(3000))
    assert found.next > int(found.sequences[-1])


def test_a_repeated_batch_of_a_producer_is_there_once(client, name):
    for _ in range(2):
        client.log.append([(name, "x")], producer=name, producer_sequence=4)
    producer = client.log.producer(name, sequence=5)
    producer.append([(name, "y")])
    assert client.log.read(key=name).values == [b"x", b"y"]


def test_a_follower_gets_what_is_appended_while_it_waits(client, name):
    client.log.append([(name, "before")])
    following = client.log.follow(key=name)
    threading.Timer(0.3, lambda: client.log.append([(name, "after")])).start()
    assert next(following).value == b"after"
    following.close()
    assert [next(client.log.follow(key=name, start=0)).value] == [b"before"]


def test_cursors(client, name):
    client.log.set_cursor(name, {"a": 3, b"\xff": 4})
    assert client.log.cursor(name) == {b"a": 3, b"\xff": 4}
    client.log.set_cursor(name, {"a": 5}, expected={"a": 3})
    with pytest.raises(triptych.Conflict):
        client.log.set_cursor(name, {"a": 6}, expected={"a": 3})
    assert client.log.cursor(name, key="a") == {b"a": 5}
    assert name in list(client.log.cursors())
    client.log.delete_cursor(name)
    assert client.log.cursor(name) == {}


def test_a_group_gives_each_record_until_it_is_committed(client, name):
    client.log.append([(f"{name}/{i}", str(i)) for i in range(10)])
    consumer = client.log.consume(name, prefix=f"{name}/", limit=4)
    seen = [record.value for _ in range(2) for record in next(consumer)]
    consumer.close()
    assert client.log.describe_group(name)["members"] == []
    again = client.log.consume(name, prefix=f"{name}/", member="fixed")
    page = next(again)
    assert {record.value for record in page} | set(seen) == {str(i).encode() for i in range(10)}
    assert len(page) < 10
    again.close()
    member = client.log.join(name, member="fixed")
    records = client.log.poll(member)
    client.log.commit(member, records.next)
    assert len(client.log.poll(member)) == 0
    client.log.leave(member)
    assert name in list(client.log.groups())
    client.log.delete_group(name)


def test_a_scan_as_an_arrow_stream(cluster, client, name):
    new = triptych.NewRecord(name, "v", headers={"h": "1"}, content_type="c")
    first = client.log.append([(name, b"\xff"), new]).start_sequence
    for chosen in (f"key={name}", f"prefix={name}"):
        answer = cluster.request("GET", f"/api/v1/log/scan?{chosen}", headers={"Accept": ARROW})
        assert answer.headers["content-type"] == ARROW, answer.body
        reader = pyarrow.ipc.open_stream(io.BytesIO(answer.body))
        batches = []
        while True:
            try:
                batches.append(reader.read_next_batch_with_custom_metadata())
            except StopIteration:
                break
        rows = [row for batch in batches for row in batch.batch.to_pylist()]
        assert [row["sequence"] for row in rows] == [first, first + 1]
        assert [row["value"] for row in rows] == [b"\xff", b"v"]
        assert {row["key"] for row in rows} == {name.encode()}
        assert rows[0]["headers"] is None
        assert (rows[1]["headers"], rows[1]["contentType"]) == ([("h", "1")], "c")
        assert abs(rows[0]["time"].timestamp() - time.time()) < 60
        assert int(batches[-1].custom_metadata[b"nextSequence"]) >= first + 2
    answer = cluster.request("GET", f"/api/v1/log/scan?key={name}&value_bytes=1", headers={"Accept": ARROW})
    assert answer.status == 400


def test_a_long_scan_is_an_arrow_stream_of_many_batches(cluster, client, name):
    client.log.append([(name, b"x" * 1000)] * 2000)
    answer = cluster.request("GET", f"/api/v1/log/scan?key={name}&limit=5000", headers={"Accept": ARROW})
    table = pyarrow.ipc.open_stream(answer.body).read_all()
    assert len(table) == 2000
    assert set(table.column("value").to_pylist()) == {b"x" * 1000}


def test_the_handler_of_logging_writes_to_the_log(cluster, client, name):
    handler = LogHandler(cluster.url, key=name)
    logger = logging.Logger(name)
    logger.addHandler(handler)
    for i in range(2500):
        logger.warning("message %s", i, extra={"number": i})
    handler.close()
    assert handler.dropped == 0
    assert [record.json()["number"] for record in client.log.scan(key=name)] == list(range(2500))
    assert client.log.count(key=name, where="$.number >= 2000") == 500


# Vectors


def test_vectors_are_stored_searched_changed_and_deleted(cluster, client, name):
    with triptych.Client(cluster.url, arrow=True) as arrow:
        made = client.vectors.create_collection(name, 3, metric="l2", text_fields=["body"])
        assert (made.dimension, made.metric) == (3, "l2")
        assert client.vectors.create_collection(name, 3, metric="l2", text_fields=["body"]) == made
        assert client.vectors.collection(name) == made
        assert made in client.vectors.collections()
        with pytest.raises(triptych.BadRequest):
            client.vectors.create_collection(name, 4)
        rng = np.random.default_rng(1)
        vectors = rng.normal(size=(12_000, 3)).astype(np.float32)
        ids = [f"v{i}" for i in range(len(vectors))]
        attributes = [
            {"n": i, "odd": bool(i % 2), "body": "a quick fox" if i == 7 else "bread"} for i in range(len(ids))
        ]
        assert client.vectors.upsert(ids, vectors, attributes, collection=name) == 12_000
        expected = np.argsort(np.linalg.norm(vectors - vectors[5], axis=1))[:10]
        for each in (client, arrow):
            result = each.vectors.search(vectors[5], exact=True, collection=name)
            assert [hit.id for hit in result] == [f"v{i}" for i in expected]
            assert result.hits[0].score == 0
            np.testing.assert_array_equal(result.hits[1].vector, vectors[expected[1]])
            assert result.hits[1].attributes["n"] == int(expected[1])
            assert len(result.to_arrow()) == 10
            bare = each.vectors.search(vectors[5], k=2, include=[], collection=name).hits
            assert [(hit.vector, hit.attributes) for hit in bare] == [(None, {})] * 2
            many = each.vectors.search_many(vectors[:3], k=1, exact=True, include=["n"], collection=name)
            assert [each_of.hits[0].attributes for each_of in many] == [{"n": 0}, {"n": 1}, {"n": 2}]
            assert each.vectors.search(text="fox", collection=name).hits[0].id == "v7"
            unknown = each.vectors.search([0, 0, 1], filter={"eq": {"field": "oddd", "value": 1}}, collection=name)
            assert not unknown.hits
            assert "the nearest field is 'odd'" in unknown.infos[0]
            grouped = each.vectors.search([0, 0, 1], group_by={"field": "odd"}, collection=name)
            assert {group.value for group in grouped.groups} == {True, False}
        assert client.vectors.count(collection=name, filter={"eq": {"field": "odd", "value": True}}) == 6000
        assert client.vectors.facets("odd", collection=name) == [(False, 6000), (True, 6000)]
        found = client.vectors.get(["v3", "none", "v1"], collection=name)
        assert [vector.id for vector in found] == ["v3", "v1"]
        assert client.vectors.update(["v3"], set={"n": -1}, unset=["odd"], collection=name) == 1
        assert client.vectors.get(["v3"], include=["n", "odd"], collection=name)[0].attributes == {"n": -1}
        scrolled = client.vectors.scroll(order_by={"field": "n", "direction": "desc"}, include=["n"], collection=name)
        assert [vector.attributes["n"] for vector in scrolled][:2] == [11_999, 11_998]
        assert client.vectors.delete(ids[:11_000], collection=name) == 11_000
        assert client.vectors.delete(filter={"exists": {"field": "n"}}, collection=name) == 1000
        assert client.vectors.stats()["collections"][name]["vectors"] == 0
        client.vectors.delete_collection(name)
        with pytest.raises(triptych.NotFound):
            client.vectors.collection(name)


# All areas


def test_the_async_client_does_the_same(cluster, name):
    async def work():
        async with triptych.AsyncClient(cluster.url) as client:
            await asyncio.gather(
                *(client.metrics.write([({"__name__": name, "i": str(i)}, i, START)]) for i in range(5))
            )
            assert len((await client.metrics.query(name, START)).series) == 5
            await client.log.producer().append([(name, str(i)) for i in range(5)])
            assert [record.text async for record in client.log.scan(key=name, page_records=2)] == list("01234")
            following = client.log.follow(key=name)
            waiting = asyncio.ensure_future(anext(following))
            await asyncio.sleep(0.3)
            await client.log.append([(name, "later")])
            assert (await waiting).text == "later"
            await following.aclose()
            await client.vectors.create_collection(name, 2)
            assert await client.vectors.upsert(["a", "b"], [[1, 0], [0, 1]], collection=name) == 2
            assert (await client.vectors.search([1, 0], k=1, collection=name)).hits[0].id == "a"
            assert [vector.id async for vector in client.vectors.scroll(collection=name)] == ["a", "b"]
            await client.vectors.delete_collection(name)

    asyncio.run(work())


def test_tokens_roles_and_certificates(tmp_path):
    files = Files(tmp_path)
    files.write_web()
    files.write_tokens(TOKENS)
    running = files.cluster()
    running.start()
    try:
        secret = bearer("reader").removeprefix("Bearer ")
        with triptych.Client(running.url, token=secret, ca=str(files.ca_file)) as client:
            assert client.metrics.query("1").value == 1
            with pytest.raises(triptych.Forbidden):
                client.log.append([("k", "v")])
        with triptych.Client(running.url, ca=str(files.ca_file)) as stranger, pytest.raises(triptych.Unauthorized):
            stranger.metrics.query("1")
        with triptych.Client(running.url, timeout=0.5) as trusting, pytest.raises(triptych.NotConnected):
            trusting.metrics.query("1")
    finally:
        running.stop()


def test_the_examples_of_the_guide_run(cluster):
    page = (ROOT / "docs" / "guide" / "python-client.md").read_text()
    names = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code.replace("http://127.0.0.1:9090", cluster.url), names)
    try:
        assert len(names["result"].series) == 2
        assert names["newest"].values[:3] == [b"\xff", b"any text", b'{"state":"paid"}']
        assert len(names["frame"]) > 0
        assert names["store"].similarity_search("bread", k=1)[0].page_content == "bread"
    finally:
        root = logging.getLogger()
        for handler in [handler for handler in root.handlers if isinstance(handler, LogHandler)]:
            root.removeHandler(handler)
            handler.close()
            assert handler.dropped == 0
    assert names["client"].log.count(key="app", where="$.order = 17") == 1


# Vector stores


class TestLangChain(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, client):
        store = TriptychVectorStore(self.get_embeddings(), client=client, collection=f"lc_{uuid.uuid4().hex}")
        yield store
        store.delete()


def test_documents_of_langchain_keep_what_the_service_has_no_form_for(client, name):
    embedding = VectorStoreIntegrationTests.get_embeddings()
    store = TriptychVectorStore(embedding, client=client, collection=name, search_text=True)
    metadata = {"none": None, "list": ["a", "b"], "mixed": [1, None], "object": {"a": {"b": []}}, "year": 2020}
    [long_id] = store.add_documents([Document("a quick fox", metadata=metadata, id="i" * 68)])
    assert long_id == "i" * 68
    [found] = store.similarity_search("a quick fox", k=1, filter={"list": "a", "year": {"$gte": 2020}})
    assert (found.id, found.metadata, found.page_content) == (long_id, metadata, "a quick fox")
    assert store.get_by_ids([long_id])[0].metadata == metadata
    assert store.similarity_search("x", filter={"nobody_has": 1}) == []
    assert store.similarity_search("x", filter={"year": []}) == []
    assert len(store.similarity_search("x", filter={"year": {"$nin": []}})) == 1
    with pytest.raises(TypeError, match="delete has filter and no ids"):
        store.delete(filter={"year": 1})
    with pytest.raises(TypeError, match="delete has filter and ids"):
        store.delete([long_id], filter={"year": 1})
    assert store.get_by_ids([long_id])
    texts = [str(i) for i in range(12_000)]
    assert len(store.add_texts(texts, ids=texts)) == 12_000
    assert store.similarity_search_with_score("77", k=1)[0][0].id == "77"
    assert store.similarity_search_with_relevance_scores("77", k=1)[0][1] == pytest.approx(1)
    assert len(store.max_marginal_relevance_search("77", k=3, fetch_k=10)) == 3
    assert store.similarity_search("77", k=1, text="fox")
    assert store.delete([long_id, *texts])
    assert store.get_by_ids([long_id, "77"]) == []
    made = TriptychVectorStore.from_texts(["a"], embedding, client=client, collection=name, search_text=True, ids=["x"])
    assert made.get_by_ids(["x"])[0].page_content == "a"
