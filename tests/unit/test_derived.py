"""What is made from a selection's labels is made once, and is what it would be without."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
import pytest

from shared.derived import Derived
from shared.labels import LabelFrame, Symbols
from shared.process.array_memory import Account
from shared.promql.ast import Matcher
from shared.promql.engine.rows import name_dropped
from shared.promql.rendering import labels as rendering
from shared.promql.rendering.labels import label_texts
from tests.unit.series_shard import EVERYTHING, Shard, m
from worker.queries.source import ShardSource
from worker.series.selections import DERIVED_BYTES, DERIVED_SERIES_MAX, Selected

OF_M = (Matcher("__name__", "=", "m"),)


@pytest.fixture
def shard(tmp_path):  # type: ignore[no-untyped-def]
    own = Shard(tmp_path)
    yield own
    own.close()


def frame(shard: Shard, window: tuple[int, int] = EVERYTHING) -> LabelFrame:
    return ShardSource([shard.part]).select(OF_M, *window, Symbols(shard.symbols)).labels


def forms(labels: LabelFrame) -> list[object]:
    texts = label_texts(labels)
    size, names, values = msgspec.msgpack.decode(labels.to_frames()[0])
    places = np.frombuffer(labels.to_frames()[1], np.int32).tolist()
    return [
        bytes(texts.pool),
        texts.offsets.tolist(),
        texts.pieces.tolist(),
        labels.sort_order().tolist(),
        (size, names, [values[place] for place in places]),
    ]


def without(labels: LabelFrame) -> LabelFrame:
    return LabelFrame(labels.symbols, labels.size, labels.columns)


def test_what_was_made_is_kept_as_long_as_there_is_room() -> None:
    derived, made = Derived(10), []

    def make(kind: str, size: int) -> int:
        def now() -> int:
            made.append(kind)
            return size

        return derived.get(kind, now, lambda size: size)

    assert [make("a", 6), make("b", 5), make("a", 6), make("b", 5), make("c", 4), make("c", 4)] == [6, 5, 6, 5, 4, 4]
    assert made == ["a", "b", "b", "c"]


def test_it_is_in_the_account_of_no_query() -> None:
    derived = Derived(1 << 20)
    with Account(1000).open():
        with pytest.raises(MemoryError):
            np.zeros(100_000)
        kept = derived.get("a", lambda: np.zeros(100_000), lambda array: array.nbytes)
    assert kept is derived.get("a", lambda: np.zeros(0), lambda array: array.nbytes)


def test_labels_are_rendered_once_for_the_same_selection(shard, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    shard.write([(m(i=str(i), **({"more": "x"} if i % 2 else {})), [(i, 1.0)]) for i in (3, 1, 2)])
    rendered: list[int] = []
    pairs = rendering.label_pairs
    monkeypatch.setattr(rendering, "label_pairs", lambda own, by: rendered.append(own.size) or pairs(own, by))
    for _ in range(3):
        own = frame(shard)
        assert own.derived is not None and forms(own) == forms(without(own))
    assert rendered == [3, 3, 3, 3], "once for the selection, and three times without keeping"
    some = frame(shard, (1, 2))
    assert (some.size, some.derived) == (2, None)
    assert forms(some) != forms(frame(shard))
    shard.write([(m(i="4"), [(1, 1.0)])])
    own = frame(shard)
    assert own.size == 4 and forms(own) == forms(without(own))


def test_labels_without_names_are_rendered_once_too(shard, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    shard.write([(m(i="2"), [(1, 1.0)]), (m(i="1"), [(2, 1.0)])])
    rendered: list[int] = []
    pairs = rendering.label_pairs
    monkeypatch.setattr(rendering, "label_pairs", lambda own, by: rendered.append(own.size) or pairs(own, by))
    for _ in range(3):
        own = frame(shard)
        nameless = name_dropped(own)
        assert "__name__" not in nameless.columns and nameless.labels(0) != own.labels(0)
        assert nameless.derived is not None and nameless.derived is not own.derived
        assert forms(own) == forms(without(own)) and forms(nameless) == forms(without(nameless))
    assert rendered == [2, 2, 2, 2] + [2, 2] * 2, "both once for the selection, and each time without keeping"


def test_a_part_has_half_of_the_room_as_long_as_there_is_so_much() -> None:
    derived = Derived(10)
    part = derived.part("a")
    assert part.bytes_max == 5 and part is derived.part("a")
    assert [derived.get("b", partial(int, size), int) for size in (6, 5)] == [6, 5]
    full = Derived(10)
    full.get("b", partial(int, 6), int)
    assert full.part("a") is not full.part("a")


def test_labels_of_a_table_that_knows_only_some_are_the_same(shard) -> None:  # type: ignore[no-untyped-def]
    early = Symbols(shard.symbols)
    shard.write([(m(i="new"), [(1, 1.0)]), (m(i="newer"), [(1, 1.0)])])
    expected = forms(frame(shard))
    own = ShardSource([shard.part]).select(OF_M, *EVERYTHING, early).labels
    assert own.column("i").min() < 0
    assert forms(own) == forms(without(own)) == expected


def test_nothing_is_kept_for_many_series_or_beyond_the_bound(shard) -> None:  # type: ignore[no-untyped-def]
    shard.write([(m(i="x" * 2 * DERIVED_BYTES), [(1, 1.0)])])
    own = frame(shard)
    assert own.derived is not None and label_texts(own) is not label_texts(own)
    shard.write([(m(i=str(i)), [(1, 1.0)]) for i in range(DERIVED_SERIES_MAX)])
    assert frame(shard).derived is None


def test_the_room_for_it_counts_in_the_size_of_a_selection(shard) -> None:  # type: ignore[no-untyped-def]
    def selected(labels: LabelFrame) -> Selected:
        return Selected((), (), labels, 0)

    shard.write([(m(i=str(i)), [(1, 1.0)]) for i in range(5)])
    own = frame(shard)
    assert selected(own).size_bytes - selected(without(own)).size_bytes == 5 * DERIVED_BYTES
