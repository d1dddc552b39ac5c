"""Copies of some rows of a table: their vectors, ids and attributes, and their places in the index."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.vectors import Attribute, Collection, Condition
from tests.unit.test_vector_attributes import CONDITIONS, ROWS
from tests.unit.test_vector_lists import METRICS, chains, drawn, filled, trained
from tests.unit.test_vector_recall import finished
from worker.vectors import compaction, inverted_lists
from worker.vectors.attribute_strings import AttributeStrings
from worker.vectors.attributes import Attributes
from worker.vectors.candidate_index import new_index
from worker.vectors.compaction import copy_rows, copy_table
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.list_blocks import BLOCK_ROWS
from worker.vectors.row_filter import Allowed
from worker.vectors.similarity import Rows
from worker.vectors.table import Table

KINDS = [
    *((storage, "lists", metric) for storage in ("f32", "f16", "i8") for metric in METRICS),
    *(("f32", "graph", metric) for metric in METRICS),
    ("b1", "graph", "cosine"),
]


def chosen(count: int, share: float, seed: int = 1) -> Rows:
    """Some of so many rows, ascending."""
    return np.flatnonzero(np.random.default_rng(seed).random(count) < share)


def numbered(rows: Rows, count: int) -> Rows:
    """The numbers of these rows in a row, −1 for the others."""
    numbers = np.full(count, -1)
    numbers[rows] = np.arange(len(rows))
    return numbers


# Lists


def cells(lists: InvertedLists) -> dict[int, tuple[int, bytes, float, int]]:
    """Row → (its list, code, step, square)."""
    own, found = lists._lists, {}
    for number, block in enumerate(own.first.tolist()):
        for place in range(int(own.counts[number])):
            at = place % BLOCK_ROWS
            row = int(own.rows[block, at])
            found[row] = (
                number,
                own.codes[block, at].tobytes(),
                float(own.steps[block, at]),
                int(own.squares[block, at]),
            )
            if at == BLOCK_ROWS - 1:
                block = int(own.following[block])
    return found


@pytest.mark.parametrize("at_once", [1, 100, 1 << 14])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.6, 1.0])
@pytest.mark.parametrize("is_trained", [False, True])
def test_renumbered_rows_keep_their_lists_and_codes(
    is_trained: bool, share: float, at_once: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(inverted_lists, "RENUMBERED_COMPONENTS", 8 * at_once)
    vectors, rows = drawn(3000, 8, "l2"), chosen(3000, share)
    lists = (trained if is_trained else filled)(vectors, "l2")
    before = chains(lists), cells(lists)
    own, slices = finished(lists.renumbered(numbered(rows, 3000), vectors[rows]))
    assert (before[0], before[1]) == (chains(lists), cells(lists))
    assert len(own) == len(rows) and own.lists == lists.lists
    new = {int(row): number for number, row in enumerate(rows)}
    assert chains(own) == [[new[row] for row in chain if row in new] for chain in before[0]]
    assert cells(own) == {new[row]: cell for row, cell in before[1].items() if row in new}
    assert own._used == sum(-(-len(chain) // BLOCK_ROWS) for chain in chains(own))
    assert slices == 1 or at_once < 3000
    own.add(np.arange(len(rows), len(rows) + 500), vectors[:500])
    assert len(own) == len(rows) + 500
    own.save(tmp_path / "index")
    again = InvertedLists(8, "l2")
    again.load(tmp_path / "index", len(rows) + 500)
    assert chains(again) == chains(own)


def test_rows_beyond_the_numbers_are_left_out() -> None:
    vectors = drawn(200, 8, "dot")
    own, _ = finished(filled(vectors, "dot").renumbered(np.arange(100), vectors))
    assert chains(own) == [list(range(100))]


def test_an_empty_index_takes_its_centre_from_the_first_rows_afterwards() -> None:
    vectors = drawn(100, 8, "l2") + np.float32(1000)
    own, _ = finished(InvertedLists(8, "l2").renumbered(np.zeros(0, np.int64), vectors[:0]))
    own.add(np.arange(100), vectors)
    assert (own._lists.centres == filled(vectors, "l2")._lists.centres).all()


@pytest.mark.parametrize("metric", METRICS)
def test_a_renumbered_graph_finds_the_rows_it_has(metric: str) -> None:
    vectors, rows = drawn(500, 8, metric), chosen(500, 0.5)
    graph = new_index(Collection(1, "c", 8, metric, index="graph"))
    graph.add(np.arange(500), vectors)
    own, slices = finished(graph.renumbered(numbered(rows, 500), vectors[rows]))
    assert slices > 1
    if metric != "dot":  # a longer vector may be nearer to a vector than that itself
        assert (own.search(vectors[rows], 1, 1, 64, len(rows), Allowed())[:, 0] == np.arange(len(rows))).all()
    assert set(own.search(vectors[:1], len(rows), len(rows), 1000, 1000, Allowed())[0].tolist()) <= set(
        range(-1, len(rows))
    )


# Attributes


@given(
    rows=ROWS, conditions=st.lists(CONDITIONS, min_size=1, max_size=3), seed=st.integers(0, 99), step=st.integers(1, 9)
)
@settings(max_examples=200, deadline=None)
def test_copied_attributes_mean_what_they_meant(
    rows: list[dict[str, Attribute]], conditions: list[Condition], seed: int, step: int
) -> None:
    packed = [msgspec.msgpack.encode(row) if row else b"" for row in rows]
    source, kept = Attributes(), chosen(len(rows), 0.6, seed)
    source.append(0, packed)
    if seed % 2:
        source = Attributes.restore(source.save(len(rows)), len(rows))
    copied, expected = Attributes(), Attributes()
    own = {"x": "first", "z": 1}  # as rows that are copied behind others find some columns and not others
    for attributes in (copied, expected):
        attributes.append(0, [msgspec.msgpack.encode(own)])
    for start in range(0, len(kept), step):
        copied.append_copies(1 + start, source, kept[start : start + step])
    expected.append(1, [packed[row] for row in kept.tolist()])
    size = 1 + len(kept)
    assert sorted(copied.names()) == sorted(expected.names())
    for condition in conditions:
        assert copied.mask(condition, size).tolist() == expected.mask(condition, size).tolist()
    everything = np.arange(size)
    for name in expected.names():
        mine, theirs = copied.column(name), expected.column(name)
        assert mine is not None and theirs is not None
        assert repr(mine.first_values(everything, 99)) == repr(theirs.first_values(everything, 99))
        assert mine.type_counts(everything) == theirs.type_counts(everything)
        assert sorted(mine._strings.texts()) == sorted(theirs._strings.texts())
    again = Attributes.restore(copied.save(size), size)
    assert [again.mask(c, size).tolist() for c in conditions] == [copied.mask(c, size).tolist() for c in conditions]


def test_strings_are_taken_by_their_codes() -> None:
    strings = AttributeStrings(["b", "a"])
    codes = strings.add(["c", "a", "c", "d", "b", "e", "d"])
    assert codes.tolist() == [2, 1, 2, 3, 0, 4, 3]
    assert strings.take(codes) == ["c", "a", "c", "d", "b", "e", "d"]
    assert strings.texts() == strings.take(np.arange(5)) == ["b", "a", "c", "d", "e"]
    assert strings.take(codes[:0]) == []


# Tables


@pytest.mark.parametrize(("storage", "index", "metric"), KINDS)
def test_a_copy_has_the_rows_and_answers_as_they_did(
    storage: str, index: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "COPY_ROWS", 300)
    collection = Collection(1, "c", 16, metric, storage, index=index)
    old, fresh = (Table(collection, directory=tmp_path) for _ in range(2))
    vectors = drawn(2000, 16, "dot")
    ids = [b"%d" % row for row in range(2000)]
    attributes = [msgspec.msgpack.encode({"n": row % 7, "t": str(row)}) for row in range(2000)]
    old.append(
        ids, vectors, np.arange(2000, dtype=np.uint64) + 5, (np.arange(2000) % 3).astype(np.uint16), attributes, ()
    )
    while old.view.indexed < 1500:
        rows, some, end = old.index_slice(100)
        old.view.index.add(rows, some)
        old.advance(end)
    kept = chosen(2000, 0.5)
    view = old.view
    for _ in copy_table(view, fresh, kept[:900]):
        pass
    for _ in copy_rows(view, fresh, kept[900:]):
        pass
    own = fresh.view
    assert (own.size, own.dead, own.indexed) == (len(kept), 0, int((kept < 1500).sum()))
    assert own.vectors[: own.size].tobytes() == view.vectors[kept].tobytes()
    for name in ("norms", "versions", "shards"):
        assert (getattr(own, name)[: own.size] == getattr(view, name)[kept]).all()
    assert own.ids.take(np.arange(own.size)) == [ids[row] for row in kept.tolist()]
    assert fresh.rows_of([ids[row] for row in kept.tolist()]).tolist() == list(range(own.size))
    condition = Condition("eq", "n", (3,))
    assert own.attributes.mask(condition, own.size).tolist() == view.attributes.mask(condition, 2000)[kept].tolist()
    wanted = int((kept < 1500).sum())
    queries = own.vectors[:wanted].astype(np.float32)
    found = own.index.search(queries, 1, 1, 4000, own.indexed, Allowed())
    if metric != "dot" and storage != "b1":  # else others may be nearer to a vector than that itself
        assert (found == np.arange(wanted)[:, None]).any(axis=1).all()
    everything = own.index.search(queries[:1], wanted, wanted, 4000, own.indexed, Allowed())
    assert set(everything[everything >= 0].tolist()) == set(range(wanted))
    assert own.codes.first + fresh._codes._size == own.size


@pytest.mark.parametrize(("components", "slices"), [(100 * 16, 20), (1, 2000), (1 << 20, 4)])
def test_so_many_components_are_copied_at_once(
    components: int, slices: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compaction, "COPY_COMPONENTS", components)
    old, fresh = (Table(Collection(1, "c", 16, "l2"), directory=tmp_path) for _ in range(2))
    old.append(
        [b"%d" % row for row in range(2000)],
        drawn(2000, 16, "l2"),
        np.arange(2000, dtype=np.uint64),
        0,
        [b""] * 2000,
        (),
    )
    assert sum(1 for _ in copy_rows(old.view, fresh, np.arange(2000))) == slices
    assert fresh.view.size == 2000
