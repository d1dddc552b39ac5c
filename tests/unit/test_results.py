"""The JSON of results: numbers, timestamps and shapes as the Prometheus HTTP API writes them."""

from __future__ import annotations

import json
import math
import struct
import zlib
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.http.compression import compressed
from coordinator.queries import results
from coordinator.queries.results import Result, envelope, ordered, truncated
from shared.labels import LabelFrame, Symbols
from shared.promql.model import Grid, Matrix, RangeVector, Samples, Scalar, String, Value


def matrix(rows: list[dict[str, str]], values: list[list[float | None]]) -> Matrix:
    present = np.array([[v is not None for v in row] for row in values], dtype=bool).reshape(len(rows), -1)
    cells = np.array([[0.0 if v is None else v for v in row] for row in values], dtype=float).reshape(len(rows), -1)
    return Matrix(LabelFrame.of(rows, Symbols()), cells, present, np.zeros(len(rows), dtype=bool))


def text_of(result: Result) -> str:
    return b"".join(result.chunks()).decode()


def sample_text(value: float) -> str:
    return json.loads(text_of(Result(matrix([{}], [[value]]), Grid(0, 0), is_range=False)))[0]["value"][1]


def by_the_book(value: float) -> str:
    """Go's shortest 'f' or 'e' format, from Python's shortest repr."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value and (abs(value) < 1e-6 or abs(value) >= 1e21):
        sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
        text = "".join(map(str, digits))
        exponent = int(exponent) + len(text) - 1
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{'-' if sign else ''}{text[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    text = f"{Decimal(repr(value)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (-12.5, "-12.5"),
        (0.1, "0.1"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (-1.25e22, "-1.25e+22"),
        (1e-6, "0.000001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-07"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740993.0, "9007199254740992"),
        (123456789.125, "123456789.125"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_sample_values_are_written_like_prometheus(value: float, text: str) -> None:
    assert sample_text(value) == text


@given(st.floats())
def test_every_float_has_its_shortest_text(value: float) -> None:
    assert sample_text(value) == by_the_book(value)


@given(st.integers(0, 2**64 - 1))
def test_every_bit_pattern_has_its_shortest_text(bits: int) -> None:
    value = struct.unpack("d", struct.pack("Q", bits))[0]
    assert sample_text(value) == by_the_book(value)


@given(st.integers(-1074, 1023))
def test_powers_of_two_have_their_shortest_text(exponent: int) -> None:
    assert sample_text(2.0**exponent) == by_the_book(2.0**exponent)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "0"),
        (1_435_781_430_781, "1435781430.781"),
        (1_435_781_430_700, "1435781430.700"),
        (1_435_781_430_005, "1435781430.005"),
        (-1_500, "-1.500"),
        (-62_135_596_800_000, "-62135596800"),
    ],
)
def test_timestamps_are_unix_seconds(time_ms: int, text: str) -> None:
    result = Result(matrix([{}], [[1.0]]), Grid(time_ms, time_ms), is_range=False)
    assert text_of(result) == f'[{{"metric":{{}},"value":[{text},"1"]}}]'


def test_vector_element_has_metric_and_value() -> None:
    value = matrix([{"__name__": "up", "job": 'a"b\n\\é'}, {"job": "x"}], [[1.0], [2.0]])
    assert json.loads(text_of(Result(value, Grid(5000, 5000), is_range=False))) == [
        {"metric": {"__name__": "up", "job": 'a"b\n\\é'}, "value": [5, "1"]},
        {"metric": {"job": "x"}, "value": [5, "2"]},
    ]


def test_matrix_has_no_pair_where_no_sample_is() -> None:
    value = matrix([{"a": "1"}, {"a": "2"}], [[1.0, None, 3.5], [None, math.nan, None]])
    assert json.loads(text_of(Result(value, Grid(1000, 3000, 1000), is_range=True))) == [
        {"metric": {"a": "1"}, "values": [[1, "1"], [3, "3.5"]]},
        {"metric": {"a": "2"}, "values": [[2, "NaN"]]},
    ]


def test_range_vector_is_a_matrix_with_its_own_timestamps() -> None:
    samples = Samples(np.array([0, 2, 3]), np.array([1, 2001, 5000]), np.array([1.0, 2.0, 0.25]))
    value = RangeVector(LabelFrame.of([{"a": "1"}, {"a": "2"}], Symbols()), samples, np.zeros(2, dtype=bool))
    result = Result(value, Grid(9000, 9000), is_range=False)
    assert result.type == "matrix"
    assert json.loads(text_of(result)) == [
        {"metric": {"a": "1"}, "values": [[0.001, "1"], [2.001, "2"]]},
        {"metric": {"a": "2"}, "values": [[5, "0.25"]]},
    ]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (Scalar(np.array([1e-7])), "scalar", '[1.78,"0.0000001"]'),
        (Scalar(np.array([1e22])), "scalar", '[1.78,"10000000000000000000000"]'),
        (Scalar(np.array([-0.0])), "scalar", '[1.78,"-0"]'),
        (Scalar(np.array([math.inf])), "scalar", '[1.78,"+Inf"]'),
        (String('say "x"'), "string", '[1.78,"say \\"x\\""]'),
    ],
)
def test_scalars_and_strings_are_one_pair(value: Value, kind: str, text: str) -> None:
    result = Result(value, Grid(1780, 1780), is_range=False)
    assert result.type == kind
    assert text_of(result) == text


def test_scalar_of_a_range_query_is_one_series_without_labels() -> None:
    grid = Grid(0, 2000, 1000)
    value = results.as_range(Scalar(np.array([1.0, 2.0, 3.0])), grid)
    assert json.loads(text_of(Result(value, grid, is_range=True))) == [
        {"metric": {}, "values": [[0, "1"], [1, "2"], [2, "3"]]}
    ]


def test_empty_result_is_an_empty_array() -> None:
    empty = Matrix(LabelFrame(Symbols(), 0), np.zeros((0, 3)), np.zeros((0, 3), dtype=bool), np.zeros(0, dtype=bool))
    assert text_of(Result(empty, Grid(0, 2000, 1000), is_range=True)) == "[]"


def test_chunks_join_to_one_document_however_many_series_there_are() -> None:
    rng = np.random.default_rng(3)
    rows = [{"__name__": "m", "i": str(i)} for i in range(2000)]
    value = matrix(rows, rng.random((2000, 50)).tolist())
    grid = Grid(0, 49_000, 1000)
    chunks = list(Result(value, grid, is_range=True).chunks())
    assert len(chunks) > 3
    decoded = json.loads(b"".join(chunks))
    assert [series["metric"]["i"] for series in decoded] == [str(i) for i in range(2000)]
    assert [[float(v) for _, v in series["values"]] for series in decoded] == value.values.tolist()


def test_envelope_has_remarks_beside_data_and_only_if_there_are_any() -> None:
    result = Result(matrix([{}], [[1.0]]), Grid(0, 0), is_range=False)
    answer = json.loads(b"".join(envelope(result, lambda _: {"stats": {"x": 1}}, {"warnings": ["w"], "infos": []})))
    assert answer == {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {}, "value": [0, "1"]}], "stats": {"x": 1}},
        "warnings": ["w"],
    }


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b""],
        [b"abc" * 1000],
        [b"abc" * 1000, b"", b"xyz"],
        [b"a", b"b", bytes(200_000), b"c"],
        [bytes(range(256)) * 300, memoryview(bytes(range(256)) * 300), b"end"] * 7,
    ],
)
def test_gzip_is_the_same_bytes(pieces: list[bytes]) -> None:
    packed = b"".join(compressed(iter(pieces)))
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert inflate.decompress(packed) == b"".join(pieces)
    assert inflate.eof and not inflate.unused_data  # one member, which every client understands


def test_gzip_refers_back_across_pieces() -> None:
    piece = np.random.default_rng(1).integers(0, 256, 30_000, dtype=np.uint8).tobytes()
    assert len(b"".join(compressed(iter([piece, piece, piece])))) < 1.1 * len(piece)


def test_series_are_sorted_by_label_set() -> None:
    rows = [{"b": "1"}, {"a": "2", "b": "0"}, {"a": "2"}, {"__name__": "z"}, {"a": "10"}, {}]
    value = ordered(matrix(rows, [[float(i)] for i in range(6)]))
    assert isinstance(value, Matrix)
    assert [value.labels.labels(i) for i in range(6)] == sorted(tuple(sorted(row.items())) for row in rows)
    assert value.values[:, 0].tolist() == [5.0, 3.0, 4.0, 2.0, 1.0, 0.0]


def test_limit_keeps_the_first_series_and_says_so() -> None:
    value = matrix([{"a": "1"}, {"a": "2"}], [[1.0], [2.0]])
    kept, cut = truncated(value, 1)
    assert isinstance(kept, Matrix) and kept.labels.size == 1 and cut
    assert truncated(value, 2) == (value, False)
    assert truncated(value, 0) == (value, False)


def test_range_vector_rows_can_be_reordered() -> None:
    samples = Samples(np.array([0, 2, 2, 3]), np.array([1, 2, 7]), np.array([1.0, 2.0, 3.0]))
    value = RangeVector(
        LabelFrame.of([{"a": "c"}, {"a": "b"}, {"a": "a"}], Symbols()), samples, np.zeros(3, dtype=bool)
    )
    moved = ordered(value)
    assert isinstance(moved, RangeVector)
    assert moved.samples.offsets.tolist() == [0, 1, 1, 3]
    assert moved.samples.timestamps_ms.tolist() == [7, 1, 2]
    assert moved.samples.values.tolist() == [3.0, 1.0, 2.0]
