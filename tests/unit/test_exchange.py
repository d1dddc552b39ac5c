"""Values survive the wire between workers and the coordinator."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.labels import LabelFrame, Symbols
from shared.messages import exchange
from shared.promql.engine.partial import Partial
from shared.promql.model import Annotations, Matrix, RangeVector, Samples

ROWS = [{"__name__": "a", "x": "1"}, {"x": "2", "y": "é"}, {}]


def frames_of(value: exchange.Shipped) -> tuple[exchange.Shape, list[bytes]]:
    shape, frames = exchange.encode(value)
    return shape, [bytes(frame) for frame in frames]


def labels(frame: LabelFrame) -> list[tuple[tuple[str, str], ...]]:
    return [frame.labels(row) for row in range(frame.size)]


@given(st.integers(0, 3), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_matrix_comes_back(series: int, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    present = rng.random((series, steps)) < rng.choice([0.0, 0.5, 1.0])
    value = Matrix(
        LabelFrame.of(ROWS[:series], Symbols()), rng.normal(size=(series, steps)), present, rng.random(series) < 0.5
    )
    back = exchange.decode(*frames_of(value), Symbols())
    assert isinstance(back, Matrix)
    assert labels(back.labels) == labels(value.labels)
    assert back.values.tobytes() == value.values.tobytes()
    assert back.present.tolist() == value.present.tolist()
    assert back.drop_name.tolist() == value.drop_name.tolist()


def test_full_presence_costs_nothing() -> None:
    value = Matrix(
        LabelFrame.of(ROWS, Symbols()), np.zeros((3, 4)), np.ones((3, 4), dtype=bool), np.ones(3, dtype=bool)
    )
    _, frames = frames_of(value)
    assert frames[-2:] == [b"", b""]


def test_transposed_values_are_sent_in_row_order() -> None:
    values = np.arange(6.0).reshape(2, 3).T
    value = Matrix(LabelFrame.of(ROWS, Symbols()), values, np.ones((3, 2), dtype=bool), np.zeros(3, dtype=bool))
    back = exchange.decode(*frames_of(value), Symbols())
    assert isinstance(back, Matrix) and back.values.tolist() == values.tolist()


def test_decoding_copies_no_values() -> None:
    value = Matrix(LabelFrame.of(ROWS, Symbols()), np.ones((3, 4)), np.ones((3, 4), dtype=bool), np.ones(3, dtype=bool))
    shape, frames = exchange.encode(value)
    back = exchange.decode(shape, frames, Symbols())
    assert isinstance(back, Matrix) and np.shares_memory(back.values, value.values)


def test_range_vector_comes_back_with_start_timestamps_only_if_it_had_some() -> None:
    for starts in (None, np.array([0, 5, 6])):
        samples = Samples(np.array([0, 2, 2, 3]), np.array([1, 2, 3]), np.array([1.0, np.nan, 3.0]), starts)
        value = RangeVector(LabelFrame.of(ROWS, Symbols()), samples, np.array([True, False, True]))
        back = exchange.decode(*frames_of(value), Symbols())
        assert isinstance(back, RangeVector)
        assert back.samples.offsets.tolist() == [0, 2, 2, 3]
        assert back.samples.timestamps_ms.tolist() == [1, 2, 3]
        assert back.samples.values.tobytes() == samples.values.tobytes()
        assert (back.samples.start_timestamps_ms is None) == (starts is None)
        assert back.drop_name.tolist() == [True, False, True]


def test_partial_comes_back_with_its_planes_by_name() -> None:
    planes = {"sum": np.array([[1.0, 2.0]]), "compensation": np.array([[1e-20, 0.0]])}
    value = Partial(LabelFrame.of([{"job": "a"}], Symbols()), planes, np.array([[True, False]]), np.array([False]))
    back = exchange.decode(*frames_of(value), Symbols())
    assert isinstance(back, Partial)
    assert {name: plane.tolist() for name, plane in back.planes.items()} == {
        "sum": [[1.0, 2.0]],
        "compensation": [[1e-20, 0.0]],
    }
    assert labels(back.groups) == [(("job", "a"),)]


def test_answers_of_workers_are_joined_on_one_symbol_table() -> None:
    symbols = Symbols()
    parts = []
    for rows in (ROWS[:1], [], ROWS[1:]):
        n = len(rows)
        value = Matrix(
            LabelFrame.of(rows, Symbols()), np.full((n, 2), float(n)), np.ones((n, 2), bool), np.zeros(n, bool)
        )
        part = exchange.decode(*frames_of(value), symbols)
        assert isinstance(part, Matrix)
        parts.append(part)
    joined = exchange.joined(parts)
    assert isinstance(joined, Matrix)
    assert labels(joined.labels) == [tuple(sorted(row.items())) for row in ROWS]
    assert joined.values.tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]


def test_remarks_are_moved_to_where_the_sub_query_stands() -> None:
    there, here = Annotations(), Annotations()
    there.warn("odd", 3)
    there.info("nothing to see", None)
    exchange.add_remarks(here, exchange.remarks(there), 10)
    exchange.add_remarks(here, exchange.remarks(there), 10)
    assert [(a.level, a.text, a.offset) for a in here.items.values()] == [
        ("warning", "PromQL warning: odd", 13),
        ("info", "PromQL info: nothing to see", None),
    ]
