"""Label values that a query makes count in the account of its memory."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from loadtest.harness.local_queries import instant
from loadtest.harness.memory_source import MemorySource
from shared.errors import OverBudget
from shared.labels import COUNTED_AT_ONCE, ENTRY_BYTES, Symbols
from shared.process.array_memory import Account
from shared.promql.ast import Aggregate, StringLiteral, VectorSelector
from shared.promql.engine.aggregate import evaluate_aggregate
from shared.promql.engine.memory import account_of, bounded
from shared.promql.model import String
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.operators_setup import Bench
from worker.series.index.texts import TextTable

MEGABYTE = 1 << 20
TEXTS = 2000
SIZE = 1000
"""Characters of each text: 2 MB in all."""


def made(symbols: Symbols, count: int = TEXTS) -> None:
    for i in range(count):
        symbols.code_of_made(f"{i:0{SIZE}}")


def bytes_of(count: int) -> int:
    return count * (sys.getsizeof("0" * SIZE) + ENTRY_BYTES)


@pytest.mark.parametrize("parent", [None, Symbols(), TextTable()])
def test_made_texts_count_as_long_as_their_table_exists(parent: Symbols | None) -> None:
    account, symbols = Account(64 * MEGABYTE), Symbols(parent)
    with account.open():
        made(symbols)
    assert bytes_of(TEXTS) - COUNTED_AT_ONCE < account.used_bytes <= bytes_of(TEXTS)
    del symbols
    assert account.used_bytes == 0


def test_a_text_counts_once_and_one_that_the_table_or_its_parent_has_does_not() -> None:
    parent = Symbols()
    parent.codes([f"{i:0{SIZE}}" for i in range(TEXTS)])
    account, symbols, again = Account(64 * MEGABYTE), Symbols(parent), Symbols()
    with account.open():
        made(symbols)
        assert account.used_bytes == 0
        made(again)
        once = account.used_bytes
        made(again)
    assert account.used_bytes == once > 0


def test_a_text_that_the_parent_got_later_counts() -> None:
    parent = Symbols()
    account, symbols = Account(64 * MEGABYTE), Symbols(parent)
    parent.codes([f"{i:0{SIZE}}" for i in range(TEXTS)])
    with account.open():
        made(symbols)
    assert account.used_bytes > bytes_of(TEXTS) - COUNTED_AT_ONCE


def test_codes_of_made_texts_are_those_of_any_others() -> None:
    parent = Symbols()
    known = parent.code("known")
    symbols = Symbols(parent)
    assert symbols.code_of_made("") == 0
    assert symbols.code_of_made("known") == known
    assert symbols.code_of_made("new") == symbols.code("new") == symbols.find("new")


def source(series: int, size: int) -> MemorySource:
    """Series whose label `i` has so many characters."""
    return MemorySource.of({f'm{{i="{i:0{size}}"}}': ([0], [float(i) / 7]) for i in range(series)})


@pytest.mark.parametrize(
    ("query", "size"),
    [
        pytest.param('label_replace(m, "x", "$1-", "i", "(.*)")', SIZE, id="label_replace"),
        pytest.param('label_join(m, "x", "-", "i", "i")', SIZE, id="label_join"),
        pytest.param('count_values("x", m)', 6, id="count_values"),
    ],
)
def test_functions_that_make_texts_are_refused_past_the_memory_of_the_query(query: str, size: int) -> None:
    data = source(6000, size)
    needed = Account(1 << 30)
    with needed.open():
        instant(query, data, 0)
    arrays = Account(1 << 30)
    with pytest.MonkeyPatch.context() as patched, arrays.open():
        patched.setattr(Symbols, "code_of_made", Symbols.code)
        instant(query, data, 0)
    assert needed.peak_bytes > arrays.peak_bytes + COUNTED_AT_ONCE
    account = account_of(arrays.peak_bytes + COUNTED_AT_ONCE, is_light=False)
    with pytest.raises(OverBudget, match="more memory than"), bounded(account, is_light=False):
        instant(query, data, 0)


def test_texts_of_counted_histograms_count() -> None:
    bench = Bench()
    histogram = NativeHistogram(count=40.0, positive=dict.fromkeys(range(40), 1.0))
    matrix = bench.matrix(*(({"i": str(i)}, [replace(histogram, sum=float(i))]) for i in range(400)))
    node = Aggregate("count_values", VectorSelector("m", ()), StringLiteral("v"))
    account = Account(64 * MEGABYTE)
    account.hold(8 * MEGABYTE)  # besides all this, so that differences are seen
    with account.open():
        value = evaluate_aggregate(node, matrix, String("v"), bench.grid, bench.context)
    size = sum(sys.getsizeof(dict(value.labels.labels(row))["v"]) for row in range(value.labels.size))
    del value
    with_texts = account.used_bytes
    del matrix, bench
    assert with_texts - account.used_bytes > size - COUNTED_AT_ONCE > 0


def test_a_nested_call_counts_in_addition_to_the_one_inside() -> None:
    query, peaks = "m", []
    for call in range(3):
        data = source(2000, SIZE)
        query = f'label_replace({query}, "x", "$1-{call}", "i", "(.*)")'
        account = Account(1 << 30)
        with account.open():
            result = instant(query, data, 0)
        peaks.append(account.peak_bytes)
        del result, data  # the source keeps the table of a query
        assert account.used_bytes == 0
    assert np.diff(peaks).min() > bytes_of(2000) - COUNTED_AT_ONCE
