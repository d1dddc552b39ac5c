"""Searches by text over HTTP on a real cluster with several workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster
from proto import vector_pb2
from tests.cluster.vector_requests import ids, put, refused, search, write
from tests.forked_cluster import ForkedCluster

NOTES = {
    "dimension": 2,
    "metric": "l2",
    "textFields": ["title", {"field": "body", "language": "english", "stopWords": True, "asciiFolding": True}],
}
KEPT = [
    "title",
    {"field": "body", "language": "english", "stemming": True, "stopWords": True, "asciiFolding": True},
]
BODIES = {
    "a": ("Foxes", "The quick brown fox jumps over the lazy dog"),
    "b": ("Dogs", "Dogs are running <fast> in the Café"),
    "c": ("Cats", "A cat is neither quick nor brown: quick cats, brown foxes"),
    "d": ("Birds", "Nothing to see"),
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = ForkedCluster(tmp_path_factory.mktemp("texts"), shards=4, workers=2).start()
    put(running, "notes", NOTES)
    vectors = [
        (name, {"vector": [place, 0], "title": title, "body": body})
        for place, (name, (title, body)) in enumerate(BODIES.items())
    ]
    write(running, *vectors, collection="notes")
    yield running
    running.stop()


def texts(notes: Cluster, query: str, **text: Any) -> list[str]:
    return ids(search(notes, collection="notes", text={"query": query, **text}))


def test_text_fields_have_settings_of_their_own(notes: Cluster) -> None:
    path = "/api/v1/vector/collections/notes"
    assert notes.get(path).json()["collection"]["textFields"] == KEPT
    same = put(notes, "notes", NOTES).json()
    assert same["collection"]["textFields"] == KEPT
    refused(put(notes, "notes", {**NOTES, "textFields": ["title", "body"]}), "body (english, stemming, stop words")
    polish = {**NOTES, "textFields": [{"field": "body", "language": "polish"}]}
    refused(put(notes, "other", polish), "'polish'", "english")
    unknown = {**NOTES, "textFields": [{"field": "body", "stem": True}]}
    refused(put(notes, "other", unknown), "'stem'")


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("run cafe", {"field": "body"}, "b"),
        ('"quick fox"', {"field": "body"}, ""),
        ('"quick fox"~1', {"field": "body"}, "a"),
        ("the", {"field": "body"}, ""),
        ("fox*", {}, "ac"),
        ("fox*", {"field": "title"}, "a"),
        ("+brown -cat", {}, "a"),
        ("dog quick", {"operator": "and"}, "a"),
        ("dog", {"fields": {"title": 1, "body": 0.5}}, "ab"),
        ("dogs", {"fields": ["title", "body"]}, "ab"),
        ('\\" * AND OR ( ] title:', {}, ""),
    ],
)
def test_a_query_finds_what_its_language_says(notes: Cluster, query: str, text: dict[str, Any], expected: str) -> None:
    assert sorted(texts(notes, query, **text)) == list(expected)


def test_scores_of_all_workers_can_be_compared(notes: Cluster) -> None:
    put(notes, "same", {**NOTES, "textFields": ["body"]})
    vectors = [(f"v{n}", {"vector": [n, 0], "body": "rare word" if n in (3, 4, 5) else "a word"}) for n in range(64)]
    write(notes, *vectors, collection="same")
    for query, count in (("rare", 3), ('"rare word"', 3), ("word", 64)):
        found = search(notes, collection="same", text={"field": "body", "query": query}, k=64, includeFields=[])
        assert len(found["results"]) == count
        scores = [result["score"] for result in found["results"]]
        # What nearly every vector has hardly counts, and is not asked for once more.
        assert scores == pytest.approx([scores[0]] * count, rel=1e-5, abs=0.05 if query == "word" else 0.0), query


def test_highlights_show_the_matching_words(notes: Cluster) -> None:
    text = {"query": "running fox*", "field": "body", "highlight": {"fields": ["body", "title"]}}
    for fields in (None, []):
        found = search(notes, collection="notes", text=text, includeFields=fields)
        by_id = {result["vector"]["id"]: result["highlights"] for result in found["results"]}
        assert by_id == {
            "a": {"title": ["<em>Foxes</em>"], "body": ["The quick brown <em>fox</em> jumps over the lazy dog"]},
            "b": {"body": ["Dogs are <em>running</em> &lt;fast&gt; in the Café"]},
            "c": {"body": ["A cat is neither quick nor brown: quick cats, brown <em>foxes</em>"]},
        }
    plain = {"preTag": "*", "postTag": "*", "escapeHtml": False, "fragmentChars": 20, "fragments": 1}
    found = search(notes, collection="notes", text={**text, "highlight": plain})
    by_id = {result["vector"]["id"]: result["highlights"] for result in found["results"]}
    assert by_id["b"] == {"body": ["… are *running* <fast> …"]}
    hybrid = search(notes, collection="notes", vector=[3, 0], text=text, k=4)
    assert [result["highlights"] for result in hybrid["results"] if result["vector"]["id"] == "d"] == [{}]


def test_highlights_in_protobuf(notes: Cluster) -> None:
    wanted = vector_pb2.SearchRequest(collection="notes", k=1, include_fields=["title"])
    wanted.text.query = "lazy"
    wanted.text.highlight.pre_tag, wanted.text.highlight.post_tag = "[", "]"
    headers = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
    answer = notes.request("POST", "/api/v1/vector/search", wanted.SerializeToString(), headers)
    found = vector_pb2.SearchResponse.FromString(answer.body)
    (fragment,) = found.results[0].highlights["body"].fragments
    assert fragment == "The quick brown fox jumps over the [lazy] dog"


def test_the_rankings_of_a_hybrid_search_are_weighed(notes: Cluster) -> None:
    hybrid: dict[str, Any] = {"collection": "notes", "vector": [3, 0], "text": {"query": "lazy dog"}, "k": 4}
    usual = search(notes, **hybrid)["results"]
    assert usual == search(notes, **hybrid, fusion={"method": "rrf", "weights": {"vector": 1, "text": 1}})["results"]
    assert usual[0]["score"] == pytest.approx(1 / 61 + 1 / 64)
    by_vector = search(notes, **hybrid, fusion={"weights": {"text": 0}})
    assert ids(by_vector) == ["d", "c", "b", "a"]
    linear = search(notes, **hybrid, fusion={"method": "linear", "weights": {"vector": 0.4, "text": 0.6}})
    assert ids(linear)[0] == "a"
    assert linear["results"][0]["score"] == pytest.approx(0.6)
    assert linear["results"][1]["score"] == pytest.approx(0.4)
    answer = notes.post_json("/api/v1/vector/search", {**hybrid, "fusion": {"method": "max"}})
    refused(answer, "fusion", "'max'")


def test_the_settings_are_there_after_a_restart(notes: Cluster) -> None:
    notes.stop()
    notes.start()
    assert notes.get("/api/v1/vector/collections/notes").json()["collection"]["textFields"] == KEPT
    assert texts(notes, "run", field="body") == ["b"]
