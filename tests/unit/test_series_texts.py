"""The worker's symbol table against the plain one."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.labels import Symbols
from worker.series.index.texts import TextTable


@given(st.lists(st.lists(st.text(max_size=20), max_size=20), max_size=5), st.text(max_size=5))
def test_the_table_gives_the_codes_of_plain_symbols(batches: list[list[str]], other: str) -> None:
    table, plain = TextTable(), Symbols()
    for texts in batches:
        codes = table.codes(texts)
        assert codes.tolist() == plain.codes(texts).tolist()
        assert table.texts(codes) == texts
    assert len(table) == len(plain)
    assert table.find(other) == plain.find(other)
    assert table.find("") == 0 and table.text(0) == ""


def test_a_table_above_sees_its_texts_and_adds_none() -> None:
    table = TextTable()
    a, b = table.codes(["a", "b"]).tolist()
    child = Symbols(table)
    assert (child.code("a"), child.find("b")) == (a, b)
    own = child.code("c")
    assert own < 0 and table.find("c") is None
    assert child.texts(np.array([own, b, 0, a], dtype=np.int32)) == ["c", "b", "", "a"]
    late = table.code("late")
    [adopted] = child.adopt(np.array([late], dtype=np.int32)).tolist()
    assert adopted < 0 and child.text(adopted) == "late"


def test_texts_are_read_while_others_are_entered() -> None:
    table = TextTable()
    done = threading.Event()

    def enter() -> None:
        for i in range(200):
            table.codes([f"text {i} {j}" for j in range(50)])
        done.set()

    thread = threading.Thread(target=enter)
    thread.start()
    while not done.is_set():
        size = len(table)
        found = table.texts(np.arange(size, dtype=np.int32))
        assert table.find(found[-1]) == size - 1
    thread.join()
    assert len(set(table.texts(np.arange(len(table))))) == 200 * 50 + 1
