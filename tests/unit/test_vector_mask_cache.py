"""The masks of the latest filters: which are kept, and that a filter means the same when its mask was kept."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from shared.messages.vectors import Condition
from worker.vectors import mask_cache as module
from worker.vectors.attribute_column import Where
from worker.vectors.attribute_index import AttributeIndex
from worker.vectors.attribute_strings import Mask
from worker.vectors.attributes import Attributes
from worker.vectors.mask_cache import MaskCache
from worker.vectors.row_filter import Bits

ROWS = 100


def kept(cache: MaskCache, *values: int) -> list[bool]:
    return [cache.get(cache.key(Condition("eq", "a", (value,)))) is not None for value in values]


def put(cache: MaskCache, value: int) -> None:
    cache.put(cache.key(Condition("eq", "a", (value,))), Bits.of(np.zeros(80, np.bool_)))


def test_the_mask_that_was_not_used_for_the_longest_gives_way() -> None:
    cache = MaskCache()
    for value in range(module.MASKS_MAX):
        put(cache, value)
    assert kept(cache, 0) == [True]  # and thereby used
    put(cache, 1000)
    put(cache, 1001)
    assert kept(cache, 0, 1, 2, 3, 1000, 1001) == [True, False, False, True, True, True]
    assert cache.memory_bytes == 10 * module.MASKS_MAX


def test_a_mask_that_comes_again_is_kept_once() -> None:
    cache = MaskCache()
    for _ in range(3):
        put(cache, 1)
    assert cache.memory_bytes == 10


def test_a_long_condition_is_not_kept() -> None:
    cache = MaskCache()
    key = cache.key(Condition("in", "a", tuple("x" * 10 + str(n) for n in range(200))))
    cache.put(key, Bits.of(np.zeros(80, np.bool_)))
    assert cache.get(key) is None


def test_values_that_python_takes_for_equal_are_told_apart() -> None:
    conditions = [Condition("eq", "a", (value,)) for value in (1, True, 1.0, "1")]
    assert len({MaskCache.key(condition) for condition in conditions}) == 4


@pytest.fixture
def attributes() -> Attributes:
    own = Attributes()
    values = [True, 1, 1.0, 2, "1"]
    own.append(0, [msgspec.msgpack.encode({"a": values[row % 5], "n": row}) for row in range(ROWS)])
    own.build_index(ROWS)
    return own


CONDITIONS = [
    Condition("eq", "a", (True,)),
    Condition("eq", "a", (1,)),
    Condition("lt", "n", (30,)),
    Condition("and", children=(Condition("lt", "n", (30,)), Condition("eq", "a", (1,)))),
    Condition("or", children=(Condition("gte", "n", (90,)), Condition("eq", "a", (True,)))),
    Condition("not", children=(Condition("lt", "n", (30,)),)),
    Condition("exists", "a"),
]


def test_a_filter_means_the_same_the_second_time(attributes: Attributes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [attributes.mask(condition, ROWS).copy() for condition in CONDITIONS]
    evaluated: list[Condition] = []
    indexed = Attributes._indexed

    def noted(self: Attributes, condition: Condition, index: AttributeIndex) -> Mask:
        evaluated.append(condition)
        return indexed(self, condition, index)

    monkeypatch.setattr(Attributes, "_indexed", noted)
    again = [attributes.mask(condition, ROWS) for condition in CONDITIONS]
    assert [mask.tolist() for mask in again] == [mask.tolist() for mask in first]
    assert not evaluated
    compared = [attributes.compared(condition, np.arange(ROWS)) for condition in CONDITIONS]
    assert [mask.tolist() for mask in again] == [mask.tolist() for mask in compared]


def test_rows_that_came_later_are_compared_once(attributes: Attributes, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Where] = []
    whole = Attributes._compared

    def noted(self: Attributes, condition: Condition, where: Where) -> Mask:
        compared.append(where)
        return whole(self, condition, where)

    monkeypatch.setattr(Attributes, "_compared", noted)
    condition = Condition("gte", "n", (95,))
    assert attributes.mask(condition, ROWS).sum() == 5
    attributes.append(ROWS, [msgspec.msgpack.encode({"n": 200}), msgspec.msgpack.encode({"n": 1})])
    assert attributes.mask(condition, ROWS + 2).tolist() == [False] * 95 + [True] * 6 + [False]
    assert attributes.mask(condition, ROWS - 1).sum() == 4
    assert compared == [slice(ROWS, ROWS + 2)]
    head = attributes.bits(condition, ROWS).head
    assert head.size == ROWS
    for size in range(ROWS + 3, ROWS + 8):
        attributes.append(size - 1, [msgspec.msgpack.encode({"n": 100})])
        bits = attributes.bits(condition, size)
        assert bits.mask(0, size).tolist() == [False] * 95 + [True] * 6 + [False] + [True] * (size - ROWS - 2)
        assert (bits.head is head) == (size <= ROWS + 6)
        assert attributes.bits(condition, size) is bits
    assert bits.head is bits


def test_extended_bits_count_with_those_that_they_extend(attributes: Attributes) -> None:
    attributes.append(ROWS, [b""])
    before = attributes.memory_bytes
    attributes.mask(CONDITIONS[0], ROWS + 1)
    assert attributes._index.masks.memory_bytes == 2 * -(-ROWS // 8)
    assert attributes.memory_bytes == before + 2 * -(-ROWS // 8)


def test_a_new_index_begins_without_masks_and_they_count_as_memory(attributes: Attributes) -> None:
    before = attributes.memory_bytes
    attributes.mask(CONDITIONS[0], ROWS)
    assert attributes.memory_bytes == before + -(-ROWS // 8)
    attributes.append(ROWS, [msgspec.msgpack.encode({"a": True})])
    attributes.build_index(ROWS + 1)
    assert attributes._index.masks.memory_bytes == 0
    assert attributes.mask(CONDITIONS[0], ROWS + 1)[ROWS]
