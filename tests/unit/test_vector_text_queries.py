"""The language of text queries, and what the workers find with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest
import tantivy
from hypothesis import given
from hypothesis import strategies as st

from coordinator.vectors.text_query import COSTLY_MAX, SLOP_MAX, check_cost, parse
from shared.errors import BadData
from shared.messages.vector_text import LANGUAGES, STOP_WORD_LANGUAGES, TextClause, TextField, TextQuery
from worker.vectors.text import TextIndex

BODIES = {
    "a": "the quick brown fox jumps over the lazy dog",
    "b": "a fox is quick",
    "c": "quick dogs and foxes, quick cats",
    "d": "Überraschung im Café",
    "e": "state-of-the-art foxtrot",
}


@pytest.mark.parametrize(
    ("query", "clauses"),
    [
        ("quick fox", [TextClause("quick fox")]),
        ('fox "quick brown" dog', [TextClause("quick brown", "phrase"), TextClause("fox dog")]),
        ('"quick fox"~2', [TextClause("quick fox", "phrase", "", 2)]),
        ('-"lazy dog" fox*', [TextClause("lazy dog", "phrase", "-"), TextClause("fox", "prefix")]),
        ("+fox -dog* cat", [TextClause("fox", "words", "+"), TextClause("dog", "prefix", "-"), TextClause("cat")]),
        ('state-of-the-art C++ a*b 5"', [TextClause('state-of-the-art C++ a*b 5"')]),
        (r"\-5 \"x y\" fox\* \fox*", [TextClause(r'-5 "x y\" fox\* fox*')]),
        ("- + * -* --fox", [TextClause("*", "words", "-"), TextClause("-fox", "words", "-"), TextClause("- + *")]),
        ('"never closed fox', [TextClause('"never closed fox')]),
        ('""~3', [TextClause("", "phrase", "", 3)]),
        (" \t\n", []),
    ],
)
def test_a_query_has_the_clauses(query: str, clauses: list[TextClause]) -> None:
    assert sorted(parse(query), key=repr) == sorted(clauses, key=repr)


def test_with_and_what_has_no_sign_must_match() -> None:
    assert parse('quick -dog "a b"', "and") == (
        TextClause("quick", "words", "+"),
        TextClause("dog", "words", "-"),
        TextClause("a b", "phrase", "+"),
    )


def test_phrases_and_prefixes_of_all_fields_together_are_limited() -> None:
    parse(f'"a b"~{SLOP_MAX}')
    with pytest.raises(BadData, match=f"slop of a phrase is {SLOP_MAX + 1}"):
        parse(f'"a b"~{SLOP_MAX + 1}')
    check_cost(parse('"' + "a.b " * (COSTLY_MAX // 4) + '"'), 2)
    check_cost(parse("a* " * (COSTLY_MAX // 8)), 2)
    for query in ('"' + "a.b " * (COSTLY_MAX // 4) + '" c*', "a* " * (COSTLY_MAX // 8 + 1)):
        with pytest.raises(BadData, match=f"for 2 fields.*at most {COSTLY_MAX}"):
            check_cost(parse(query), 2)
    check_cost(parse("word " * 800), 16)


def index_of(bodies: dict[str, str], field: TextField | None = None) -> TextIndex:
    index = TextIndex({"body": field or TextField("body")})
    for name, body in bodies.items():
        index.put(name.encode(), msgspec.msgpack.encode({"body": body}))
    return index


def found(
    index: TextIndex, query: str, operator: str = "or", fields: Sequence[tuple[str, float]] = (("body", 1.0),)
) -> list[str]:
    hits = index.search(TextQuery(tuple(fields), parse(query, operator)), 10)  # type: ignore[arg-type]
    return [name.decode() for name, _ in hits]


@pytest.fixture(scope="module")
def index() -> Iterator[TextIndex]:
    yield index_of(BODIES)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("fox", "ab"),
        ("fox dogs", "abc"),
        ('"quick fox"', ""),
        ('"quick fox"~1', "a"),
        ('"fox is quick"', "b"),
        ('"quick"', "abc"),
        ("fox*", "abce"),
        ("FOX*", "abce"),
        ("über*", "d"),
        ("uber*", ""),
        ("quick +dog*", "ac"),
        ("quick -dog*", "b"),
        ("+quick +fox -lazy", "b"),
        ("-quick", "de"),
        ("-quick -art", "d"),
        ("-state-of-the-moon", "abcde"),
        ("-state-of-the-art", "abcd"),
        ('-"lazy dog" fox', "b"),
        ("state-of-the-fo*", "e"),
        ("!? * + -", ""),
        ("-*", ""),
        ('""', ""),
    ],
)
def test_a_query_finds(index: TextIndex, query: str, names: str) -> None:
    assert sorted(found(index, query)) == list(names)


def test_with_and_every_word_must_be_there(index: TextIndex) -> None:
    assert found(index, "quick fox", "and") == ["b", "a"]
    assert found(index, "quick fox lazy", "and") == ["a"]
    assert found(index, "quick fox -lazy", "and") == ["b"]


def test_plain_words_score_as_tantivy_scores_their_terms(index: TextIndex) -> None:
    searcher, _ = index._searcher()
    terms = [tantivy.Query.term_query(index._index.schema, "text0", word) for word in ("quick", "fox")]
    wanted = tantivy.Query.boolean_query([(tantivy.Occur.Should, term) for term in terms])
    scores = [score for score, _ in searcher.search(wanted, 10).hits]
    assert [score for _, score in index.search(TextQuery((("body", 1.0),), parse("Quick fox quick")), 10)] == scores


@given(st.text(st.sampled_from('ab+-"*~\\ 1\u2474é\x00'), max_size=30), st.sampled_from(("or", "and")))
def test_every_text_is_a_query(text: str, operator: str) -> None:
    try:
        clauses = parse(text, operator)  # type: ignore[arg-type]
    except BadData as error:
        assert "slop" in str(error)
        return
    for index in (EVERY[0], EVERY[1]):
        index.search(TextQuery((("body", 2.0),), clauses), 10)


EVERY = (index_of(BODIES), index_of(BODIES, TextField("body", "english", True, True, True)))


def test_fields_are_weighed_by_their_boosts() -> None:
    index = TextIndex({"title": TextField("title"), "body": TextField("body")})
    index.put(b"t", msgspec.msgpack.encode({"title": "fox", "body": "dog"}))
    index.put(b"b", msgspec.msgpack.encode({"title": "dog", "body": "fox"}))
    assert found(index, "fox", fields=[("title", 3.0), ("body", 1.0)]) == ["t", "b"]
    assert found(index, "fox", fields=[("title", 1.0), ("body", 3.0)]) == ["b", "t"]
    hits = index.search(TextQuery((("title", 3.0), ("body", 1.0)), parse("fox")), 2)
    assert hits[0][1] == pytest.approx(3 * hits[1][1])
    both = [("title", 1.0), ("body", 1.0)]
    assert sorted(found(index, "fox dog", "and", both)) == ["b", "t"]  # each word in some field
    assert found(index, "+fox -dog", fields=both) == []
    for query, boosted in (('"fox"', 3.0), ("fo*", 3.0), ("+fox", 3.0)):
        hits = index.search(TextQuery((("title", boosted), ("body", 1.0)), parse(query)), 2)
        assert hits[0][1] == pytest.approx(boosted * hits[1][1])


def test_a_stop_word_of_one_field_is_not_demanded_of_the_others() -> None:
    index = TextIndex({"title": TextField("title"), "body": TextField("body", "english", True, True)})
    index.put(b"a", msgspec.msgpack.encode({"title": "fox", "body": "the foxes"}))
    assert found(index, "the fox", "and", [("title", 1.0), ("body", 1.0)]) == ["a"]
    assert found(index, "the", "and", [("title", 1.0), ("body", 1.0)]) == []


@pytest.mark.parametrize(
    ("field", "query", "names"),
    [
        (TextField("body", "english", True), "running dog", "ac"),
        (TextField("body", "english", True), "running*", "a"),
        (TextField("body", "english", True), "runn*", ""),
        (TextField("body", "english", True), '"runs dogs"', "a"),
        (TextField("body", "english", False), "dogs", "c"),
        (TextField("body", "english", False, True), "the", ""),
        (TextField("body", "english", False, True), '"over the moon"', "b"),
        (TextField("body", "english", False, True), '"over moon"', ""),
        (TextField("body", ascii_folding=True), "uber", "d"),
        (TextField("body", ascii_folding=True), "ÜBER caf*", "d"),
        (TextField("body", "german", True), "hauses", "e"),
        (TextField("body"), "uber hauses dogs", "c"),
    ],
)
def test_the_settings_of_a_field_decide_which_words_are_the_same(field: TextField, query: str, names: str) -> None:
    bodies = {"a": "run dog", "b": "over the moon", "c": "dogs", "d": "Über Café", "e": "Häuser"}
    assert sorted(found(index_of(bodies, field), query)) == list(names)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_a_stemmer_and_perhaps_stop_words(language: str) -> None:
    stop_words = language in STOP_WORD_LANGUAGES
    index_of(BODIES, TextField("body", language, True, stop_words, True))
    if not stop_words:
        with pytest.raises(ValueError, match=language):
            index_of(BODIES, TextField("body", language, True, True))
