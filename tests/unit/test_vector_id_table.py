"""The table of ids, read while another thread writes to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from worker.vectors import id_table
from worker.vectors.id_table import GROWTH, NEWER, SLOTS_MIN, IdTable


def filled(rows: int) -> IdTable:
    table = IdTable()
    table.extend([b"%03d" % row for row in range(rows)])
    return table


@pytest.mark.parametrize("rows", [1, SLOTS_MIN // 2, SLOTS_MIN - 1, int(GROWTH * SLOTS_MIN) - 1])
@pytest.mark.parametrize("ids", [[b"000"], [b"000", b"new"], [b"x%d" % number for number in range(100)] + [b"000"]])
def test_an_id_whose_row_comes_while_it_is_looked_up_is_found(
    monkeypatch: pytest.MonkeyPatch, rows: int, ids: list[bytes]
) -> None:
    """At some sizes the arrays are replaced by larger ones, which the reader does not have yet."""
    table = filled(rows)
    find = id_table._find
    calls = []

    def find_late(*arguments: Any) -> int:
        if not calls:
            table.extend(ids)
        calls.append(arguments)
        return find(*arguments)

    monkeypatch.setattr(id_table, "_find", find_late)
    place = ids.index(b"000")
    assert table.latest([b"none", b"000"]).tolist() in ([-1, 0], [-1, rows + place])
    assert table.latest([b"000"]).tolist() == [rows + place]


def test_a_row_that_the_arrays_of_the_reader_do_not_have_is_never_compared() -> None:
    table = filled(SLOTS_MIN - 1)
    slots, rows, offsets, arena = table._slots, table._size, table._offsets, table._arena
    table.extend([b"000"])
    assert table._slots is slots
    assert table._offsets is not offsets
    out = np.full(2, NEWER)
    bounds = np.array([0, 3, 6])
    wanted = np.frombuffer(b"000001", np.uint8)
    assert id_table._find(slots, rows, arena, offsets, wanted, bounds, out) == 1
    assert out.tolist() == [NEWER, 1]
