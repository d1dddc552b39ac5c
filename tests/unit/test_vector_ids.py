"""The ids of a table's rows in arrays, against a list and a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.vectors import pack_blobs
from worker.vectors.id_table import LOAD_MAX, IdTable

IDS = st.lists(st.binary(min_size=1, max_size=12) | st.sampled_from([b"a", b"b", b"longer than eight"]), max_size=40)


@given(st.lists(IDS, max_size=6))
def test_it_says_what_a_list_and_a_dict_say(batches: list[list[bytes]]) -> None:
    table, names, latest = IdTable(), list[bytes](), dict[bytes, int]()
    for batch in batches:
        table.extend(batch)
        for name in batch:
            latest[name] = len(names)
            names.append(name)
    assert len(table) == len(names)
    assert [table[row] for row in range(len(names))] == names
    backwards = np.arange(len(names))[::-1].copy()
    assert table.take(backwards) == names[::-1]
    assert table.pack(backwards) == pack_blobs(names[::-1])
    asked = [*latest, b"", b"no such id", b"a"]
    assert table.latest(asked).tolist() == [latest.get(name, -1) for name in asked]


def test_rows_without_an_id_are_found_by_none() -> None:
    table = IdTable()
    table.extend([b"a", b"", b"b", b""])
    assert table.latest([b"", b"a", b"b"]).tolist() == [-1, 0, 2]
    assert [table[row] for row in range(4)] == [b"a", b"", b"b", b""]


def test_packed_ids_are_those_of_a_new_table() -> None:
    table = IdTable()
    table.extend([b"a", b"bcd", b"ef", b"g"])
    assert table.packed(np.ones(3, np.bool_)) == pack_blobs([b"a", b"bcd", b"ef"])
    assert table.packed(np.array([True, False, True])) == pack_blobs([b"a", b"", b"ef"])
    fresh = IdTable()
    fresh.extend_packed(*table.packed(np.ones(4, np.bool_)))
    assert fresh.latest([b"bcd", b"g"]).tolist() == [1, 3]


def test_an_id_takes_few_bytes() -> None:
    table = IdTable()
    for first in range(0, 100_000, 1000):
        table.extend([b"%010d" % row for row in range(first, first + 1000)])
    assert table.memory_bytes <= 100_000 * (10 + 8 + 4 * 2 / LOAD_MAX) + 64
    assert len(table._arena) < 1.3 * 1_000_000 and len(table._offsets) < 130_000


def test_readers_keep_what_they_had_while_the_arrays_grow() -> None:
    table = IdTable()
    table.extend([b"first", b"second"])
    offsets, arena = table._offsets, table._arena
    table.extend([b"%d" % row for row in range(1000)])
    assert arena[offsets[1] : offsets[2]].tobytes() == b"second" == table[1]
