"""The index against a naive matcher over dictionaries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.harness.memory_source import label_set
from shared import labels
from shared.errors import BadData, DeadlineExceeded
from shared.hashing import hash64
from shared.labels import Labels, Symbols
from shared.promql.ast import Matcher
from worker.series.index import postings, texts
from worker.series.index.bytemap import ByteMap
from worker.series.index.index import Index
from worker.series.index.patterns import Pattern, Patterns
from worker.series.index.texts import TextTable

NAMES = ["__name__", "job", "instance", "zone", "ünit"]
VALUES = ["a", "b", "ab", "abc", "x-1", "x-2", "é\n", "1", ""]
EXPRESSIONS = ["", "a", "a|b", "a|", "a.*", ".*", ".+", "x-[12]", "[^a]*", "(?i)A", "é.", "x-1|x-2|nothing", "b?"]

label_sets = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=5).map(label_set)
matchers = st.builds(
    Matcher,
    name=st.sampled_from([*NAMES, "missing"]),
    op=st.sampled_from(["=", "!="]),
    value=st.sampled_from([*VALUES, "never seen"]),
) | st.builds(
    Matcher,
    name=st.sampled_from([*NAMES, "missing"]),
    op=st.sampled_from(["=~", "!~"]),
    value=st.sampled_from(EXPRESSIONS),
)


def register(index: Index, sets: list[Labels]) -> list[int]:
    encoded = [labels.encode(own) for own in sets]
    offsets = np.cumsum([0, *map(len, encoded)])
    hashes = np.array([hash64(own) for own in encoded], dtype=np.uint64)
    data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    ids = index.resolve(data, offsets[:-1].copy(), offsets[1:].copy(), hashes)
    index.register()
    return ids.tolist()


def accepts(matcher: Matcher, own: dict[str, str]) -> bool:
    value = own.get(matcher.name, "")
    if matcher.op in ("=", "!="):
        return (value == matcher.value) == (matcher.op == "=")
    return Pattern(matcher.value).matches(value) == (matcher.op == "=~")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(label_sets, max_size=20), max_size=4), st.lists(matchers, max_size=4), st.booleans())
def test_selection_equals_a_naive_scan(batches: list[list[Labels]], wanted: list[Matcher], parent: bool) -> None:
    symbols = TextTable()
    index = Index(symbols, Patterns())
    child = Symbols(symbols) if parent else symbols
    known: dict[Labels, int] = {}
    for batch in batches:
        for own, number in zip(batch, register(index, batch), strict=True):
            assert known.setdefault(own, len(known)) == number
        assert index.lookup().size == len(known)  # a reader between batches makes runs of the postings
    lookup = index.lookup()
    found = lookup.select(wanted)
    assert found.tolist() == [i for own, i in known.items() if all(accepts(m, dict(own)) for m in wanted)]
    frame = lookup.frame(found, child)
    by_id = {i: own for own, i in known.items()}
    assert [frame.labels(row) for row in range(frame.size)] == [by_id[i] for i in found.tolist()]
    assert set(lookup.names(found)) == {name for i in found.tolist() for name, _ in by_id[i]}
    job = [symbols.text(code) for code in lookup.column(found, "job").tolist()]
    assert job == [dict(by_id[i]).get("job", "") for i in found.tolist()]


def test_a_lookup_stays_as_it_was_while_the_index_grows() -> None:
    index = Index(TextTable(), Patterns())
    register(index, [(("__name__", "m"), ("i", str(i))) for i in range(10)])
    lookup = index.lookup()
    register(index, [(("__name__", "m"), ("new", str(i))) for i in range(5000)])
    assert len(lookup.select([Matcher("__name__", "=", "m")])) == 10
    assert len(lookup.select([Matcher("new", "!=", "")])) == 0
    assert len(index.lookup().select([Matcher("__name__", "=", "m")])) == 5010


def test_series_of_several_batches_are_registered_at_once() -> None:
    index = Index(TextTable(), Patterns())
    sets = [(("__name__", "m"), ("i", str(i)), *((("odd", "__name__"),) if i % 2 else ())) for i in range(100)]
    for batch in (sets[:40], sets[30:], sets):
        encoded = [labels.encode(own) for own in batch]
        offsets = np.cumsum([0, *map(len, encoded)])
        hashes = np.array([hash64(own) for own in encoded], dtype=np.uint64)
        ids = index.resolve(np.frombuffer(b"".join(encoded), np.uint8), offsets[:-1], offsets[1:], hashes)
        assert ids.tolist() == [sets.index(own) for own in batch]
    assert index.lookup().size == 0
    index.register()
    index.register()
    lookup = index.lookup()
    frame = lookup.frame(np.arange(100), lookup.symbols)
    assert [frame.labels(row) for row in range(frame.size)] == sets
    assert lookup.select([Matcher("odd", "=", "__name__"), Matcher("i", "=~", "[0-9]")]).tolist() == [1, 3, 5, 7, 9]


def test_postings_of_many_batches_stay_few_runs_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postings, "TAIL_PAIRS_MAX", 8)
    own = postings.Postings()
    random = np.random.default_rng(1)
    pairs = np.sort(random.integers(0, 50, (300, 3)), axis=1).astype(np.int32)
    for i, row in enumerate(pairs):
        own.add(np.arange(3) << 32 | row, np.full(3, i, dtype=np.int32))
    lists = own.lists()
    assert len(lists.runs) <= 10
    for name in range(3):
        assert lists.values(name).tolist() == np.unique(pairs[:, name]).tolist()
        for code in range(50):
            assert postings.joined(lists.pieces(name, code)).tolist() == np.flatnonzero(pairs[:, name] == code).tolist()
        some = np.array([3, 7, 20], dtype=np.int32)
        assert lists.union(name, some).tolist() == np.flatnonzero(np.isin(pairs[:, name], some)).tolist()


steps = st.tuples(st.lists(label_sets, max_size=20), st.booleans(), st.integers(0, 100))


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=6), st.integers(1, 3))
def test_series_are_found_by_their_labels_when_their_bytes_are_dropped(
    batches: list[tuple[list[Labels], bool, int]], hashes: int
) -> None:
    index = Index(TextTable(), Patterns())
    known: dict[Labels, int] = {}
    dropped = registered = 0
    for batch, is_registered, share in batches:
        encoded = [labels.encode(own) for own in batch]
        offsets = np.cumsum([0, *map(len, encoded)])
        # Few hashes, so that label sets of equal hash have to be told apart.
        few = np.array([hash64(own) % hashes for own in encoded], dtype=np.uint64)
        data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        ids = index.resolve(data, offsets[:-1].copy(), offsets[1:].copy(), few)
        assert ids.tolist() == [known.setdefault(own, len(known)) for own in batch]
        assert len(index) == len(known)
        kept, bounds = index.label_bytes(dropped)
        every = [labels.encode(own) for own in known]
        assert [kept[a:b].tobytes() for a, b in itertools.pairwise(bounds)] == every[dropped:]
        if is_registered:
            index.register()
            registered = len(known)
            dropped = max(dropped, registered * share // 100)
            index.drop_label_bytes(dropped)


def test_bytes_of_series_that_are_not_registered_or_were_dropped_are_not_to_be_had() -> None:
    index = Index(TextTable(), Patterns())
    register(index, [(("a", "1"),), (("a", "2"),)])
    with pytest.raises(AssertionError, match="series 3 are to be dropped, 2 known"):
        index.drop_label_bytes(3)
    size_bytes = index.size_bytes
    index.drop_label_bytes(1)
    assert index.size_bytes == size_bytes - len(labels.encode((("a", "1"),))) - 8  # and where they began
    index.drop_label_bytes(0)  # has been done
    with pytest.raises(AssertionError, match="set 0 were dropped, kept are those from 1"):
        index.label_bytes(0)


@pytest.mark.parametrize("size", [*range(1, 34), 63, 64, 65])
def test_values_that_differ_in_one_byte_are_different_series_when_their_bytes_are_dropped(size: int) -> None:
    index = Index(TextTable(), Patterns())
    values = ["x" * size, *("x" * at + "y" + "x" * (size - at - 1) for at in range(size))]
    same = np.zeros(1, np.uint64)
    for _ in range(2):
        for number, value in enumerate(values):
            data = np.frombuffer(labels.encode((("a", value), ("b", "1"))), np.uint8)
            ids = index.resolve(data, np.zeros(1, np.int64), np.array([len(data)]), same)
            assert ids.tolist() == [number]
            index.register()
            index.drop_label_bytes(len(index))


def test_label_sets_that_begin_alike_are_different_series() -> None:
    index = Index(TextTable(), Patterns())
    long = "v" * 300  # its length takes two bytes
    sets = [
        (("a", "1"),),
        (("a", "1"), ("b", "2")),
        (("a", "1"), ("b", "23")),
        (("a", "1"), ("bc", "2")),
        (("a", long),),
        (("a", long + "w"),),
        (("a", "1"), ("b", "2"), ("c", "3")),
    ]
    encoded = [labels.encode(own) for own in sets]
    offsets = np.cumsum([0, *map(len, encoded)])
    data, same = np.frombuffer(b"".join(encoded), np.uint8), np.zeros(len(sets), np.uint64)
    for _ in range(3):
        ids = index.resolve(data, offsets[:-1].copy(), offsets[1:].copy(), same)
        assert ids.tolist() == list(range(len(sets)))
        index.register()
        index.drop_label_bytes(len(index))


@settings(deadline=None)
@given(st.lists(st.lists(st.binary(max_size=20), max_size=30), max_size=5))
def test_byte_map_numbers_strings_in_order_of_appearance(batches: list[list[bytes]]) -> None:
    own = ByteMap()
    known: dict[bytes, int] = {}
    for batch in batches:
        offsets = np.cumsum([0, *map(len, batch)])
        # Two hashes only, so that strings of equal hash have to be told apart by their bytes.
        hashes = np.array([len(text) % 2 for text in batch], dtype=np.uint64)
        data = np.frombuffer(b"".join(batch), dtype=np.uint8)
        numbers = own.resolve(data, offsets[:-1].copy(), offsets[1:].copy(), hashes)
        assert numbers.tolist() == [known.setdefault(text, len(known)) for text in batch]
    data, offsets = own.bytes_of(np.arange(len(own)))
    assert [data[a:b] for a, b in itertools.pairwise(offsets)] == list(known)


def test_byte_map_keeps_its_numbers_when_it_grows() -> None:
    own = ByteMap()
    texts = [f"text {i}".encode() for i in range(20_000)]
    offsets = np.cumsum([0, *map(len, texts)])
    hashes = np.array([hash64(text) for text in texts], dtype=np.uint64)
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    for _ in range(2):
        assert (own.resolve(data, offsets[:-1].copy(), offsets[1:].copy(), hashes) == np.arange(20_000)).all()


@pytest.mark.parametrize("expression", ["(", "a**", "[", r"\p{Nope}", "(?=a)", "a{2,1}"])
def test_an_expression_that_is_not_re2_is_bad_data_naming_it(expression: str) -> None:
    index = Index(TextTable(), Patterns())
    with pytest.raises(BadData, match="invalid regular expression"):
        index.lookup().select([Matcher("a", "=~", expression)])


def test_a_dot_matches_a_line_feed_and_expressions_are_anchored() -> None:
    assert Pattern("a.b").matches("a\nb")
    assert not Pattern("a").matches("ab")
    assert not Pattern("a|b").matches("ab")


def test_texts_that_are_looked_for_often_are_kept_with_their_codes_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(texts, "FOUND_MAX", 3)
    table, long = TextTable(), "l" * (texts.FOUND_BYTES_MAX + 1)
    assert table.find("a") is None  # not yet
    words = ["a", "b", "c", "d", long]
    codes = table.codes(words).tolist()
    for _ in range(2):
        assert [table.find(word) for word in words] == codes
        assert len(table._found) <= 3
    assert "d" in table._found and long not in table._found
    assert table.find("\ud800") is None


def test_a_selection_is_checked_for_each_of_its_matchers_and_may_be_ended() -> None:
    index = Index(TextTable(), Patterns())
    register(index, [(("__name__", "m"), ("i", str(i))) for i in range(10)])
    selectors = [[Matcher("__name__", "=", "m"), Matcher("i", op, "1")] for op in ("=", "!=", "=~", "!~")]
    looks: list[None] = []
    index.lookup().select_any(selectors, lambda: looks.append(None))
    assert len(looks) >= 8

    def ended() -> None:
        raise DeadlineExceeded("over")

    for matchers in selectors:
        with pytest.raises(DeadlineExceeded):
            index.lookup().select(matchers, ended)
