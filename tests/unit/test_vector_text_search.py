"""Searches by text: settings of fields, requests, fusion, statistics of words over workers, and highlights."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.vectors import fusion, search, text_settings
from coordinator.vectors.answers import highlights_protobuf, hits_json
from coordinator.vectors.fusion import RANK_CONSTANT_MAX, WEIGHT_MAX, Fusion, fuse
from coordinator.vectors.merging import Hits
from coordinator.vectors.text import (
    BOOST_MAX,
    FIELD_CHARS_MAX,
    FIELDS_MAX,
    FRAGMENT_CHARS_MAX,
    FRAGMENT_CHARS_MIN,
    FRAGMENTS_MAX,
    HIGHLIGHTED_MAX,
    QUERY_CHARS_MAX,
    TAG_CHARS_MAX,
)
from coordinator.vectors.text_calls import informed
from coordinator.vectors.text_query import COSTLY_MAX, parse
from proto import vector_pb2
from shared import catalogue_file
from shared.errors import BadData
from shared.messages.vector_text import Highlighting, TextField, TextQuery, WordStatistics
from shared.messages.vectors import Collection
from worker.vectors.highlights import TEXT_CHARS_MAX, Highlighter
from worker.vectors.text import TextIndex

TWO = Collection(1, "c", 2, "cosine", "f32", ("title", TextField("body", "english", True)))


def read(**fields: Any) -> search.SearchRequest:
    return search.from_json(json.dumps(fields).encode())


# Settings


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"field": "body"}, "body"),
        ({"field": "body", "stemming": False, "stopWords": False, "asciiFolding": False}, "body"),
        ({"field": "body", "language": "english"}, TextField("body", "english", True)),
        ({"field": "b", "language": "english", "stemming": False, "stopWords": True},
         TextField("b", "english", False, True)),
        ({"field": "body", "asciiFolding": True}, TextField("body", "", False, False, True)),
    ],
)  # fmt: skip
def test_the_same_settings_are_kept_alike(given: dict[str, Any], kept: str | TextField) -> None:
    field = msgspec.convert(given, str | TextField)
    assert text_settings.checked([field]) == (kept,)
    assert text_settings.checked(text_settings.checked([field])) == (kept,)
    (shown,) = text_settings.as_json([kept])
    assert text_settings.checked([msgspec.convert(shown, str | TextField)]) == (kept,)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (TextField("b", "englisch"), "'b' has the language 'englisch'; it must be perhaps 'english', one of arabic, "),
        (TextField("b", "English"), "perhaps 'english'"),
        (TextField("b", "xyzzy"), "must be one of arabic"),
        (TextField("b", stemming=True), "'b' has stemming and no language"),
        (TextField("b", stop_words=True), "'b' has stopWords and the language ''; there are stop words for danish"),
        (TextField("b", "tamil", stop_words=True), "language 'tamil'; there are stop words for"),
        (TextField(""), "different names"),
    ],
)
def test_wrong_settings_of_a_field_are_refused(field: TextField, words: str) -> None:
    with pytest.raises(BadData, match=words):
        text_settings.checked([field])
    with pytest.raises(BadData, match="different names"):
        text_settings.checked(["b", TextField("b", "english")])


def test_documents_of_earlier_releases_are_read_and_stay_as_they_are() -> None:
    old = (
        b'{"next_id":3,"collections":[{"id":1,"name":"a","dimension":4,"metric":"l2","storage":"f32","text":["body"]},'
        b'{"id":2,"name":"b","dimension":4,"metric":"l2","storage":"f32","text":[]}],"dropped":[],"generation":7,'
        b'"format":1,"checksum":"48ce1a4d6e4b4b2d"}'
    )
    content = msgspec.json.decode(old, type=catalogue_file.CatalogueContent)
    written = content.encode()
    assert written[:-26] == old[:-26]
    assert catalogue_file.decode(written).collections[0].text == ("body",)
    stemmed = catalogue_file.CatalogueContent(2, [TWO]).encode()
    assert catalogue_file.decode(stemmed).collections == [TWO]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(TWO), type=Collection) == TWO


# Requests


TEXT: dict[str, Any] = {"field": "body", "query": "w"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"field": "body", "query": ""}, "text.query is empty"),
        ({**TEXT, "fields": {"title": 1}}, "text.field and text.fields are both given"),
        ({"fields": {"title": 0}, "query": "w"}, r"text.fields: the boost of 'title' is 0.0; it must be above 0"),
        ({"fields": {"title": BOOST_MAX + 1}, "query": "w"}, "up to 1000"),
        ({"fields": list(map(str, range(FIELDS_MAX + 1))), "query": "w"}, f"text.fields has {FIELDS_MAX + 1} entries"),
        ({**TEXT, "operator": "xor"}, "xor"),
        ({**TEXT, "query": '"a b"~101'}, "slop"),
        ({**TEXT, "highlight": {"tag": "b"}}, "text.highlight is not right: .*'tag'"),
        ({**TEXT, "highlight": {"fragments": "3"}}, "Expected 'int', got 'str' - at 'text.highlight.fragments'"),
        ({**TEXT, "highlight": {"fragments": 0}}, f"text.highlight.fragments is 0; it must be 1 to {FRAGMENTS_MAX}"),
        ({**TEXT, "highlight": {"fragmentChars": FRAGMENT_CHARS_MIN - 1}}, "fragmentChars is 19"),
        ({**TEXT, "highlight": {"fragment_chars": FRAGMENT_CHARS_MAX + 1}}, "fragmentChars is 1001"),
        ({**TEXT, "highlight": {"preTag": "x" * (TAG_CHARS_MAX + 1)}}, f"preTag has {TAG_CHARS_MAX + 1} characters"),
        ({**TEXT, "highlight": {"postTag": "x" * (TAG_CHARS_MAX + 1)}}, f"postTag has {TAG_CHARS_MAX + 1}"),
        ({**TEXT, "highlight": {"fields": ["f"] * (FIELDS_MAX + 1)}}, "highlight.fields has 17 entries"),
    ],
)
def test_wrong_searches_by_text_are_refused(text: dict[str, Any], words: str) -> None:
    with pytest.raises(BadData, match=words):
        read(text=text)


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"text": {"field": "no", "query": "w"}}, "text.field is 'no'; the text fields .*'c': title, body"),
        ({"text": {"fields": ["title", "no"], "query": "w"}}, "text.fields is 'no'"),
        ({"text": {"query": "x" * QUERY_CHARS_MAX, "fields": ["title", "body"]}}, ""),
        ({"text": {"query": "a* " * (COSTLY_MAX // 4)}}, "for 2 fields"),
        ({"text": {**TEXT, "highlight": {"fields": ["no"]}}}, "text.highlight.fields is 'no'"),
        ({"text": {**TEXT, "highlight": {}}, "k": HIGHLIGHTED_MAX}, ""),
        ({"text": {**TEXT, "highlight": {}}, "k": HIGHLIGHTED_MAX + 1}, "k is 1001; .*at most 1000 results"),
        ({"text": {**TEXT, "highlight": {"fragments": 10, "fragmentChars": 1000}}, "k": 100}, "highlights of 100 res"),
    ],
)
def test_what_the_collection_cannot_answer_is_refused(request_fields: dict[str, Any], words: str) -> None:
    asked = read(**request_fields)
    assert asked.text is not None

    def ask() -> None:
        asked.body(TWO, 0)
        asked.text.highlighting(TWO, asked.k)  # type: ignore[union-attr]

    if words:
        with pytest.raises(BadData, match=words):
            ask()
    else:
        ask()


def test_a_long_query_for_many_fields_is_refused() -> None:
    many = Collection(1, "c", 2, "cosine", "f32", tuple(map(str, range(FIELDS_MAX))))
    asked = read(text={"query": "x" * (FIELD_CHARS_MAX // FIELDS_MAX + 1)})
    with pytest.raises(BadData, match=f"for {FIELDS_MAX} fields.*at most {FIELD_CHARS_MAX}"):
        asked.body(many, 0)


def test_without_fields_all_text_fields_are_searched_and_highlighted() -> None:
    asked = read(text={"query": "w", "highlight": {}})
    query, highlighting = asked.body(TWO, 0).text, asked.text.highlighting(TWO, 1)  # type: ignore[union-attr]
    assert query == TextQuery((("title", 1.0), ("body", 1.0)), parse("w"))
    assert highlighting == Highlighting(("title", "body"), "<em>", "</em>", 150, 3, True)


def test_a_search_by_text_in_json_and_protobuf_says_the_same() -> None:
    message = vector_pb2.SearchRequest(vector=[1, 2], k=3)
    message.text.query, message.text.operator = '"a b" c*', "and"
    message.text.fields["title"], message.text.fields["body"] = 3.0, 1.0
    highlight = {"pre_tag": "<b>", "post_tag": "", "fragment_chars": 60, "fragments": 2, "escape_html": False}
    for name, value in highlight.items():
        setattr(message.text.highlight, name, value)
    message.text.highlight.fields.append("title")
    message.fusion.method, message.fusion.rank_constant = "linear", 0
    message.fusion.weights.text = 0.25
    one = search.from_protobuf(message.SerializeToString())
    other = read(
        vector=[1, 2],
        k=3,
        text={
            "query": '"a b" c*',
            "operator": "and",
            "fields": {"title": 3, "body": 1},
            "highlight": {**highlight, "fields": ["title"]},
        },
        fusion={"method": "linear", "rankConstant": 0, "weights": {"text": 0.25}},
    )
    assert one.fusion == other.fusion == Fusion("linear", (1.0, 0.25), 0.0)
    assert one.text is not None and other.text is not None
    assert one.text.asked(TWO).clauses == other.text.asked(TWO).clauses
    assert (one.text.boosts, one.text.highlight) == (other.text.boosts, other.text.highlight)
    message = vector_pb2.SearchRequest(vector=[1, 2], k=3)
    message.text.query = "w"
    message.text.highlight.SetInParent()
    message.fusion.SetInParent()
    one = search.from_protobuf(message.SerializeToString())
    other = read(vector=[1, 2], k=3, text={"query": "w", "highlight": {}}, fusion={})
    assert (one.text, one.fusion) == (other.text, other.fusion)
    for name, value in (("operator", "xor"), ("query", "")):
        wrong = vector_pb2.SearchRequest(k=3, text=vector_pb2.TextQuery(query="w"))
        setattr(wrong.text, name, value)
        with pytest.raises(BadData, match=f"text.{name}"):
            search.from_protobuf(wrong.SerializeToString())


# Fusion


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"method": "max"}, "fusion is not right: .*'max'"),
        ({"weights": {"vector": -1}}, "fusion.weights.vector is -1.0"),
        ({"weights": {"text": WEIGHT_MAX * 2}}, "fusion.weights.text is"),
        ({"weights": {"vector": 0, "text": 0}}, "both 0"),
        ({"weights": {"words": 1}}, "words.*at 'fusion.weights"),
        ({"rankConstant": -1}, "fusion.rankConstant is -1.0"),
        ({"rank_constant": RANK_CONSTANT_MAX * 2}, "fusion.rankConstant is"),
    ],
)
def test_a_wrong_fusion_is_refused(content: dict[str, Any], words: str) -> None:
    with pytest.raises(BadData, match=words):
        fusion.from_json(content)
    message = vector_pb2.Fusion(method="max")
    with pytest.raises(BadData, match=r"fusion.method is 'max'"):
        fusion.from_protobuf(message)
    for alone in ({"vector": [1]}, {"text": TEXT}):
        with pytest.raises(BadData, match="fusion is given, but only"):
            read(**alone, fusion={})


def hits(**similarities: float) -> Hits:
    return Hits(np.array(list(similarities.values()), np.float32), [name.encode() for name in similarities], [], None)


def fused(way: Fusion, *rankings: Hits, k: int = 9) -> dict[str, float]:
    best = fuse(rankings, k, way)
    return dict(zip([name.decode() for name in best.ids], best.near.tolist(), strict=True))


def test_reciprocal_ranks_are_weighed() -> None:
    by_vector, by_text = hits(a=0.9, b=0.8), hits(b=7.0, c=1.0)
    assert fused(Fusion(), by_vector, by_text) == pytest.approx({"b": 1 / 62 + 1 / 61, "a": 1 / 61, "c": 1 / 62})
    way = Fusion("rrf", (0.7, 0.3), 1)
    assert fused(way, by_vector, by_text) == pytest.approx({"b": 0.7 / 3 + 0.3 / 2, "a": 0.35, "c": 0.1})
    assert list(fused(Fusion("rrf", (0, 1)), by_vector, by_text)) == ["b", "c", "a"]


def test_similarities_are_brought_to_one_scale_and_weighed() -> None:
    by_vector, by_text = hits(a=-1.0, b=-2.0, c=-5.0), hits(c=8.0, d=4.0, b=0.0)
    way = Fusion("linear", (0.7, 0.3))
    assert fused(way, by_vector, by_text) == pytest.approx({"a": 0.7, "b": 0.7 * 0.75, "c": 0.3, "d": 0.15})
    assert fused(way, hits(a=3.0, b=3.0), hits()) == pytest.approx({"a": 0.7, "b": 0.7})
    assert fused(way, by_vector, by_text, k=1) == pytest.approx({"a": 0.7})


# Statistics of words


def index_of(bodies: dict[str, str]) -> TextIndex:
    index = TextIndex({"body": TextField("body")})
    for name, body in bodies.items():
        index.put(name.encode(), msgspec.msgpack.encode({"body": body}))
    return index


@pytest.mark.parametrize("query", ["rare", "often", "rare often", '"rare often"', "+often rare -never", '"often x"~1'])
def test_with_the_statistics_of_all_workers_scores_can_be_compared(query: str) -> None:
    bodies = {f"v{n}": f"often x {'rare often' if n % 16 == 3 else 'y z'}" for n in range(96)}
    alone = index_of(bodies)
    parts = [
        index_of({name: body for name, body in bodies.items() if int(name[1:]) % 7 in own})
        for own in ([0], range(1, 7))
    ]
    asked = TextQuery((("body", 1.0),), parse(query))
    counted = [part.statistics(asked) for part in parts]
    both = WordStatistics(
        sum(one.documents for one in counted), tuple(map(sum, zip(*[one.frequencies for one in counted], strict=True)))
    )
    assert both == alone.statistics(asked)
    informed = TextQuery(asked.fields, asked.clauses, both)
    expected = dict(alone.search(asked, 200))
    scores = dict(hit for part in parts for hit in part.search(informed, 200))
    assert scores == pytest.approx(expected, rel=1e-5)
    if "rare" in query:
        local = dict(hit for part in parts for hit in part.search(asked, 200))
        assert local != pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("counted", "is_asked_again"),
    [
        ([], False),
        ([(100, (1,))], False),
        ([(100, (1,)), (0, ())], False),
        ([(100, (9,)), (100, (9,))], False),
        ([(100, (9,)), (100, (3,))], True),
        ([(100, (1,)), (100, (0,))], True),
        ([(100, (0,)), (100, (0,))], False),
        ([(50_000, (5000, 20)), (50_000, (5100, 20))], False),
        ([(50_000, (5000, 20)), (50_000, (5100, 40))], True),
        ([(50_000, (49_990,)), (50_000, (49_900,))], False),
    ],
)
def test_a_search_is_asked_again_if_words_weigh_differently_in_the_workers(
    counted: list[tuple[int, tuple[int, ...]]], is_asked_again: bool
) -> None:
    query = TextQuery((("body", 1.0),), parse("a b"))
    again = informed(query, [WordStatistics(*one) for one in counted])
    assert (again is not None) is is_asked_again
    if again is not None:
        sums = tuple(map(sum, zip(*[frequencies for _, frequencies in counted], strict=True)))
        assert again.statistics == WordStatistics(sum(documents for documents, _ in counted), sums)


def test_deleted_vectors_count_as_they_do_in_the_scores() -> None:
    index = index_of({f"v{n}": "often" for n in range(20)})
    asked = TextQuery((("body", 1.0),), parse("often"))
    assert index.statistics(asked) == WordStatistics(20, (20,))
    for n in range(5):
        index.remove(f"v{n}".encode())
    counted = index.statistics(asked)
    informed = TextQuery(asked.fields, asked.clauses, counted)
    assert dict(index.search(informed, 20)) == pytest.approx(dict(index.search(asked, 20)))
    assert index_of({}).statistics(asked) == WordStatistics(0, (0,))
    assert index_of({}).search(informed, 20) == []


# Highlights


def highlighted(query: str, text: str, field: TextField | None = None, **wanted: Any) -> list[str]:
    highlighting = Highlighting(
        ("body",),
        wanted.get("pre", "["),
        wanted.get("post", "]"),
        wanted.get("chars", 150),
        wanted.get("fragments", 3),
        wanted.get("escape", True),
    )
    fields = {"body": field or TextField("body")}
    highlighter = Highlighter(fields, TextQuery((("body", 1.0),), parse(query)), highlighting)
    return highlighter.fragments({"body": text, "other": 1}).get("body", [])


@pytest.mark.parametrize(
    ("query", "text", "shown"),
    [
        ("fox", "The quick Fox.", ["The quick [Fox]."]),
        ("fox dog -cat", "cat fox cat dog", ["cat [fox] cat [dog]"]),
        ("cat", "The quick Fox.", []),
        ("-fox", "fox", []),
        ("fo*", "food for a fox", ["[food] [for] a [fox]"]),
        ('"quick fox"', "quick dog, quick fox, fox", ["quick dog, [quick] [fox], fox"]),
        ('"quick fox"~1', "quick brown fox", ["[quick] brown [fox]"]),
        ("fox", "a <b> & fox", ["a &lt;b&gt; &amp; [fox]"]),
        ("été 😀 fox", "çà 😀 été fox", ["çà 😀 [été] [fox]"]),
    ],
)
def test_matching_words_are_between_tags(query: str, text: str, shown: list[str]) -> None:
    assert highlighted(query, text) == shown


def test_words_of_one_stem_are_highlighted_as_they_are_written() -> None:
    english = TextField("body", "english", True, True)
    assert highlighted("runs", "Running, he ran the runs", english) == ["[Running], he ran the [runs]"]
    assert highlighted('"run to the hills"', "running to the hill", english) == ["[running] to the [hill]"]
    folding = TextField("body", ascii_folding=True)
    assert highlighted("cafe", "Café", folding) == ["[Café]"]


def test_fragments_have_the_most_different_words_and_are_in_the_order_of_the_text() -> None:
    filler = "word " * 30
    text = f"{filler}fox {filler}fox dog {filler}dog dog {filler}"
    (one,) = highlighted("fox dog", text, chars=40, fragments=1)
    assert "[fox] [dog]" in one and one.startswith("… word") and one.endswith("word …")
    two = highlighted("fox dog", text, chars=40, fragments=2)
    assert [fragment.count("[") for fragment in two] == [2, 2]
    assert "[fox] [dog]" in two[0] and "[dog] [dog]" in two[1]
    assert len(highlighted("fox dog", text, chars=40, fragments=10)) == 3
    for fragment in two:
        assert len(fragment.replace("[", "").replace("]", "").strip("… ")) <= 40
    assert highlighted("fox", "fox" + "x" * 5, chars=20) == []
    assert highlighted("fox", "y" * 39 + " fox " + "x" * 39, chars=20) == ["… [fox] …"]


@pytest.mark.parametrize("text", ["a " * (1 << 18), "a" * (1 << 19), "fox " * (1 << 17), "\u2474" * (1 << 18)])
def test_highlights_of_the_longest_text_take_bounded_time(text: str) -> None:
    started = time.process_time()
    for fragment in highlighted("fox a*", text, chars=FRAGMENT_CHARS_MAX, fragments=FRAGMENTS_MAX):
        assert len(fragment) <= 3 * FRAGMENT_CHARS_MAX
    assert time.process_time() - started < 2.0
    assert highlighted("end", "x " * (TEXT_CHARS_MAX // 2) + "end") == []


def test_highlights_stand_beside_the_results() -> None:
    two = hits(a=2.0, b=1.0)
    found = json.loads(hits_json(two, "", [b'{"body":["<em>x</em>"]}', b"{}"]))
    assert [result.get("highlights") for result in found] == [{"body": ["<em>x</em>"]}, {}]
    assert "highlights" not in hits_json(two, "")
    message = vector_pb2.SearchResponse(results=[vector_pb2.SearchResult(), vector_pb2.SearchResult()])
    highlights_protobuf([b'{"body":["<em>x</em>","y"]}', b"{}"], message.results)
    assert list(message.results[0].highlights["body"].fragments) == ["<em>x</em>", "y"]
    assert not message.results[1].highlights
