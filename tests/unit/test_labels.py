from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.harness.memory_source import label_set
from proto import remote_write_pb2
from shared import hashing, labels
from shared.labels import LabelFrame, Symbols

label_sets = st.dictionaries(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=200), max_size=6)


@given(label_sets)
def test_canonical_bytes_are_those_of_the_protobuf_library(mapping):
    series = remote_write_pb2.TimeSeries()
    for name, value in sorted(mapping.items(), key=lambda pair: pair[0].encode()):
        series.labels.add(name=name, value=value)
    encoded = labels.encode(label_set(mapping))
    assert encoded == series.SerializeToString()
    assert dict(labels.decode(encoded)) == mapping


def test_the_hash_is_xxh64_with_seed_0():
    assert hashing.hash64(b"") == 0xEF46DB3751D8E999
    assert hashing.shard_of(b"", 8) == 0xEF46DB3751D8E999 % 8


def test_symbols_of_a_child_never_enter_the_parent():
    parent = Symbols()
    known = parent.code("known")
    child = Symbols(parent)
    assert child.code("known") == known
    assert child.code("new") < 0
    assert parent.find("new") is None


def test_codes_the_parent_gave_later_are_adopted():
    parent = Symbols()
    child = Symbols(parent)
    own = child.code("late")
    late = parent.code("late")
    assert child.adopt(np.array([0, late], dtype=np.int32)).tolist() == [0, own]


@given(st.lists(label_sets, max_size=8))
def test_a_frame_survives_the_wire(sets):
    frame = LabelFrame.of(sets, Symbols())
    again = LabelFrame.from_frames(frame.to_frames(), Symbols())
    assert [again.labels(row) for row in range(again.size)] == [label_set(s) for s in sets]


@given(st.lists(label_sets, max_size=8), st.lists(st.text(min_size=1, max_size=8), max_size=3), st.booleans())
def test_grouping_puts_equal_keys_together(sets, names, without):
    frame = LabelFrame.of(sets, Symbols())
    ids, groups = frame.group(names, without=without)
    keys = [label_set({n: v for n, v in s.items() if (n in names) != without}) for s in sets]
    assert [groups.labels(group) for group in ids] == keys
    assert groups.size == len(set(keys))


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y", "é", "10", "9"])), min_size=2),
    st.sampled_from([0, 64]),
)
def test_few_series_and_many_have_the_same_order(label_sets, few_rows):
    frame = LabelFrame.of(label_sets, Symbols())
    expected = sorted(range(len(label_sets)), key=lambda row: sorted(label_sets[row].items()))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(labels, "FEW_ROWS", few_rows)
        assert frame.sort_order().tolist() == expected


def test_sort_order_compares_names_then_values():
    frame = LabelFrame.of([{"b": "1"}, {"a": "2"}, {"a": "1", "b": "2"}, {"a": "1"}], Symbols())
    assert frame.sort_order().tolist() == [3, 2, 1, 0]


def test_frames_concatenate_with_absent_columns():
    symbols = Symbols()
    both = labels.concat([LabelFrame.of([{"a": "1"}], symbols), LabelFrame.of([{"b": "2"}], symbols)])
    assert [both.labels(row) for row in range(2)] == [(("a", "1"),), (("b", "2"),)]


@pytest.mark.parametrize("rows", [slice(1, 3), np.array([1, 2]), np.array([False, True, True])])
def test_take_selects_rows(rows):
    frame = LabelFrame.of([{"a": "0"}, {"a": "1"}, {"a": "2"}], Symbols())
    taken = frame.take(rows)
    assert [taken.labels(row) for row in range(taken.size)] == [(("a", "1"),), (("a", "2"),)]
