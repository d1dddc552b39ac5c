"""Native histograms as answers show them, and the boundaries of buckets with all digits."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from shared.histograms import schemas
from shared.histograms.text import answer_number, answer_object, general_number, plain_texts
from tests.conformance.histogram_notation import parse_histogram, parse_histograms
from tests.histogram_batches import batch_of
from tests.oracle_aggregations import histogram_text
from tests.oracle_native_histograms import NativeHistogram, boundary


@pytest.mark.parametrize(
    ("notation", "text"),
    [
        (
            "schema:0 count:20 sum:10 z_bucket:2 z_bucket_w:0.001 buckets:[1 2] n_buckets:[1 2]",
            "{count:20, sum:10, [-2,-1):2, [-1,-0.5):1, [-0.001,0.001]:2, (0.5,1]:1, (1,2]:2}",
        ),
        # The specification's example.
        (
            "schema:1 count:3493.3 sum:2349209.324 z_bucket:5.5 z_bucket_w:0.01 offset:-2 "
            "buckets:[1 0 0 3.3 4.2 0.1] n_offset:3 n_buckets:[3.1 3 0 0 0 123400 1000]",
            "{count:3493.3, sum:2.349209324e+06, [-22.62741699796952,-16):1000, [-16,-11.31370849898476):123400, "
            "[-4,-2.82842712474619):3, [-2.82842712474619,-2):3.1, [-0.01,0.01]:5.5, (0.35355339059327373,0.5]:1, "
            "(1,1.414213562373095]:3.3, (1.414213562373095,2]:4.2, (2,2.82842712474619]:0.1}",
        ),
        (
            "schema:-53 count:5 sum:nan custom_values:[0.5 1e9] buckets:[1 0 4]",
            "{count:5, sum:NaN, (-Inf,0.5]:1, (1e+09,+Inf]:4}",
        ),
        ("", "{count:0, sum:0}"),
        # The zero threshold cuts both buckets.
        (
            "count:6 sum:3 z_bucket_w:0.7 buckets:[4] n_buckets:[2]",
            "{count:6, sum:3, [-1,-0.7):2, (0.7,1]:4}",
        ),
    ],
)
def test_the_text_of_a_histogram(notation: str, text: str) -> None:
    assert plain_texts(batch_of([NativeHistogram(), parse_histogram(notation)]), np.array([1])) == [text]


def test_the_texts_of_many_histograms_are_those_of_each() -> None:
    notations = (
        "schema:0 count:20 sum:10 z_bucket:2 z_bucket_w:0.001 buckets:[1 2] n_buckets:[1 2]",
        "schema:-53 count:5 sum:nan custom_values:[0.5 1e9] buckets:[1 0 4]",
        "schema:-1 count:1e7 sum:-0 offset:3 buckets:[2500000 7500000]",
        "count:3",
        "schema:0 count:20 sum:10 z_bucket:2 z_bucket_w:0.001 buckets:[1 0 2] n_buckets:[1 2]",
    )
    histograms = [parse_histogram(notations[i]) for i in (0, 1, 2, 0, 3, 4, 1, 2, 3)]
    rows = np.array([8, 0, 1, 1, 2, 3, 4, 5, 6, 7])

    assert plain_texts(batch_of(histograms), rows) == [histogram_text(histograms[row]) for row in rows]


def test_equal_histograms_and_equal_numbers_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []
    monkeypatch.setattr(
        "shared.histograms.text.general_number", lambda value: written.append(value) or general_number(value)
    )
    histogram = parse_histogram("schema:0 count:9 sum:2.5 buckets:[3 3 3]")

    plain_texts(batch_of([histogram] * 50), np.arange(50))

    # The count and the sum, the beginnings and the ends of the buckets, their counts.
    assert sorted(written) == sorted([9, 2.5, 0.5, 1, 2, 1, 2, 4, 3])


def test_the_object_of_an_answer() -> None:
    batch = batch_of(
        [
            parse_histogram("schema:0 count:10 sum:1e22 z_bucket:1 buckets:[2 0 1e-7] n_buckets:[5]"),
            parse_histogram("schema:-53 count:1 sum:2 custom_values:[5] buckets:[0 1]"),
            parse_histogram("count:1 sum:inf"),
        ]
    )
    assert answer_object(batch, 0) == {
        "count": "10",
        "sum": "1e+22",
        "buckets": [[1, "-1", "-0.5", "5"], [3, "-0", "0", "1"], [0, "0.5", "1", "2"], [0, "2", "4", "1e-07"]],
    }
    assert answer_object(batch, 1) == {"count": "1", "sum": "2", "buckets": [[0, "5", "+Inf", "1"]]}
    assert answer_object(batch, 2) == {"count": "1", "sum": "+Inf"}


@pytest.mark.parametrize(
    ("number", "general", "answer"),
    [
        (999999.0, "999999", "999999"),
        (1000000.0, "1e+06", "1000000"),
        (-0.0001, "-0.0001", "-0.0001"),
        (0.00001, "1e-05", "0.00001"),
        (-1234567.25, "-1.23456725e+06", "-1234567.25"),
        (9007199254740993.0, "9.007199254740992e+15", "9007199254740992"),
        (1e16, "1e+16", "10000000000000000"),
        (1e-7, "1e-07", "1e-07"),
        (1e21, "1e+21", "1e+21"),
        (123456789012345680000.0, "1.2345678901234568e+20", "123456789012345680000"),
        (-0.0, "-0", "-0"),
        (5e-324, "5e-324", "5e-324"),
        (-math.inf, "-Inf", "-Inf"),
    ],
)
def test_numbers(number: float, general: str, answer: str) -> None:
    assert (general_number(number), answer_number(number)) == (general, answer)


def test_boundaries_are_powers_of_two() -> None:
    for schema in range(schemas.SCHEMA_MIN, schemas.SCHEMA_MAX + 1):
        first, last = -(1074 << 8 >> 8 - schema), 1024 << 8 >> 8 - schema
        indexes = sorted({first, *range(max(first, -300), min(last, 300), 7), last, last + 1})
        edges = batch_of([NativeHistogram(schema=schema, positive=dict.fromkeys(indexes, 1.0))]).layouts.edges[1:, 1]
        assert edges == pytest.approx([boundary(schema, index) for index in indexes], rel=1e-15, abs=5e-324)
        assert edges[-2:].tolist() == [schemas.FLOAT_MAX, math.inf]


def test_boundaries_of_a_schema_are_among_those_of_the_next() -> None:
    table = schemas.BOUNDARIES
    for schema in range(schemas.SCHEMA_MAX):
        size = 1 << schema
        assert table[2 * size - 1 : 4 * size - 1 : 2].tolist() == table[size - 1 : 2 * size - 1].tolist()
    assert (np.diff(table[255:]) > 0).all()


def test_boundaries_are_those_of_prometheus_with_all_digits() -> None:
    """The answers of Prometheus 2.42 over histograms of all schemas had the same texts as those of this table."""
    assert zlib.crc32(schemas.BOUNDARIES.tobytes()) == 826242513


def test_the_notation_of_scripts() -> None:
    assert parse_histogram("schema:1 count:2 sum:-1e2 offset:-1 buckets:[1 2]") == NativeHistogram(
        schema=1, count=2.0, sum=-100.0, positive={-1: 1.0, 0: 2.0}
    )
    growing = parse_histograms("{{count:1 buckets:[1]}}+{{sum:2 count:1 buckets:[1] offset:1}}x2")
    assert [(h.count, h.sum, h.positive) for h in growing] == [
        (1.0, 0.0, {0: 1.0}),
        (2.0, 2.0, {0: 1.0, 1: 1.0}),
        (3.0, 4.0, {0: 1.0, 1: 2.0}),
    ]
    assert [h.count for h in parse_histograms("{{count:5}}-{{count:2}}x1")] == [5.0, 3.0]
    assert len(parse_histograms("{{count:5}}x3")) == 4
    for text in ("{{count}}", "{{bucket:[1]}}", "{{count:1 count:2}}", "{{count:1}", "{{count:x}}"):
        with pytest.raises(ValueError, match=r"is not a native histogram|could not convert"):
            parse_histograms(text)
