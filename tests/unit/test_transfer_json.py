"""Samples as JSON lines and CSV, written and read back."""

from __future__ import annotations

import io
import json
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.series.label_sets import Limits
from coordinator.transfer import csv_reading, json_reading
from coordinator.transfer.csv_reading import Columns
from coordinator.transfer.csv_rows import CsvRows
from coordinator.transfer.histograms import Histogram, histograms_of, message_of
from coordinator.transfer.json_lines import LINE_SAMPLES_MAX, JsonLines
from coordinator.transfer.json_reading import LabelSets
from coordinator.transfer.refusals import Refusals
from coordinator.transfer.series_body import SeriesArrays
from coordinator.transfer.slices import Slice
from loadtest.harness.histogram_messages import body_of
from shared.errors import BadData, TooLarge
from shared.histograms import decoding
from shared.histograms.references import references
from shared.labels import LabelFrame, Symbols, decode
from shared.promql.model import STALE_NAN_BITS, Samples
from shared.settings import Settings
from tests.histogram_batches import histograms_of as oracle_of
from tests.histogram_batches import message_of as oracle_message
from tests.histogram_strategies import histograms as some_histograms
from tests.oracle_native_histograms import NativeHistogram

STALE = np.array([STALE_NAN_BITS]).view(np.float64).item()
LIMITS = Limits.of(Settings())
SPECIAL = [
    math.nan,
    math.inf,
    -math.inf,
    STALE,
    0.0,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    2**53 + 1.0,
    0.1,
    1e22,
    1e23,
]


def slice_of(series: dict[str, list[tuple[int, float]]], job: str = 'a"b,\\\nü') -> Slice:
    names = list(series)
    labels = LabelFrame.of([{"__name__": name, "job": job} for name in names], Symbols())
    counts = [len(series[name]) for name in names]
    pairs = [pair for name in names for pair in series[name]]
    return Slice(
        labels,
        Samples(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.array([time for time, _ in pairs], dtype=np.int64),
            np.array([value for _, value in pairs], dtype=np.float64),
        ),
    )


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def held(arrays: SeriesArrays) -> list[tuple[dict[str, str], list[tuple[int, bytes]]]]:
    """Series with their samples, of which ordinary NaNs are all the same."""
    found = []
    for i, label_bytes in enumerate(arrays.labels):
        own = slice(int(arrays.firsts[i]), int(arrays.firsts[i] + arrays.counts[i]))
        values = arrays.values[own]
        texts = [b"nan" if math.isnan(v) and bits(v) != bits(STALE) else bits(v) for v in values.tolist()]
        found.append((dict(decode(label_bytes)), list(zip(arrays.times_ms[own].tolist(), texts, strict=True))))
    return found


def read_json(text: bytes, first_line: int = 1) -> tuple[SeriesArrays, Refusals]:
    refusals = Refusals("lines")
    arrays, lines = json_reading.read(text, first_line, LabelSets(LIMITS), refusals)
    assert len(lines) == len(arrays.labels) + len(arrays.histograms)
    return arrays, refusals


def read_csv(text: str, columns: str = "") -> tuple[SeriesArrays, Refusals]:
    refusals = Refusals("lines")
    layout = Columns.of_format(columns) if columns else None
    read = csv_reading.read(io.StringIO(text, newline=""), layout, LabelSets(LIMITS), refusals)
    parts = [arrays for arrays, _ in read]
    assert len(parts) <= 1
    return (parts[0] if parts else SeriesArrays([], *np.zeros((3, 0), np.int64), np.zeros(0))), refusals


@given(st.lists(st.tuples(st.integers(-(10**13), 10**13), st.floats() | st.sampled_from(SPECIAL)), min_size=1))
def test_what_is_written_as_json_lines_or_csv_is_read_back_bit_for_bit(pairs: list[tuple[int, float]]) -> None:
    one = slice_of({"up": pairs, "down": pairs[:1]})
    expected = [
        (
            dict(one.labels.labels(row)),
            [(t, b"nan" if math.isnan(v) and bits(v) != bits(STALE) else bits(v)) for t, v in own],
        )
        for row, own in enumerate((pairs, pairs[:1]))
    ]
    arrays, refusals = read_json(b"".join(JsonLines().chunks(one)))
    assert not refusals.count
    assert held(arrays) == expected
    writer = CsvRows(["job", "__name__", "unused"])
    arrays, refusals = read_csv((writer.head + b"".join(writer.chunks(one))).decode())
    assert not refusals.count
    assert held(arrays) == expected


def test_a_line_is_what_other_programs_write() -> None:
    one = slice_of({"up": [(1700000000000, 1.0), (1700000015000, math.nan), (-5, -math.inf), (7, 0.5)]}, job="a")
    assert b"".join(JsonLines().chunks(one)) == (
        b'{"metric":{"__name__":"up","job":"a"},"values":[1,null,"-Infinity",0.5],'
        b'"timestamps":[1700000000000,1700000015000,-5,7]}\n'
    )


def test_csv_has_a_column_for_each_label_and_quotes_where_it_must() -> None:
    writer = CsvRows(["job", "__name__", "instance"])
    text = writer.head + b"".join(writer.chunks(slice_of({"up": [(5, 0.5)]}, job='a"b,c')))
    assert text == b'__name__,instance,job,__timestamp__,__value__\nup,,"a""b,c",5,0.5\n'


def test_labels_named_as_the_columns_of_a_sample_are_read_back() -> None:
    label_set = {"__name__": "up", "__timestamp__": "9", "__value__": "x"}
    one = replace(slice_of({"up": [(5, 0.5)]}), labels=LabelFrame.of([label_set], Symbols()))
    writer = CsvRows(label_set)
    arrays, refusals = read_csv((writer.head + b"".join(writer.chunks(one))).decode())
    assert not refusals.count
    assert held(arrays) == [(label_set, [(5, bits(0.5))])]
    with pytest.raises(BadData, match="must have the column __value__ once"):
        read_csv("__value__,__timestamp__,__value__,job\n1,2,3,a\n")


def test_a_series_with_many_samples_has_several_lines() -> None:
    pairs = [(i, float(i)) for i in range(LINE_SAMPLES_MAX + 7)]
    lines = b"".join(JsonLines().chunks(slice_of({"a": pairs, "b": [(1, 1.0)]}))).splitlines()
    assert [len(json.loads(line)["values"]) for line in lines] == [LINE_SAMPLES_MAX, 7, 1]
    assert [time for line in lines[:2] for time in json.loads(line)["timestamps"]] == list(range(LINE_SAMPLES_MAX + 7))


def test_numbers_of_many_digits_are_the_nearest_floats() -> None:
    random = np.random.default_rng(3)
    texts = [repr(value) for value in (random.normal(size=2000) * 10.0 ** random.integers(-3, 15, 2000)).tolist()]
    texts += [
        f"{a}.{b:0{c}d}"
        for a, b, c in zip(
            random.integers(0, 99, 2000).tolist(),
            random.integers(0, 10**15, 2000).tolist(),
            random.integers(15, 17, 2000).tolist(),
            strict=True,
        )
    ]
    # Halfway between two floats, and next to it: of the even neighbour, and of the odd one.
    texts += [
        "9007199254740993",
        "9007199254740995",
        "900719925474099.25",
        "900719925474099.2500",
        "0.500000000000000055",
    ]
    texts += [
        "0.500000000000000056",
        "4503599627370496.5",
        "4503599627370497.5",
        "1e-18",
        "999999999999999999",
        "0.1e-17",
    ]
    texts += ["123456789012345678e-18", "1.0000000000000001110", "0.000000000000000000", "-0.30000000000000004"]
    line = f'{{"metric":{{"__name__":"a"}},"values":[{",".join(texts)}],"timestamps":[{",".join("1" for _ in texts)}]}}'
    arrays, refusals = read_json(line.encode())
    assert not refusals.count
    assert arrays.values[: len(texts)].tobytes() == np.array([float(text) for text in texts]).tobytes()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "it is no JSON object"),
        ('{"metric":{"__name__":"a"},"values":[1],"timestamps":[1]', "it is no JSON object"),
        ('{"metric":{"__name__":"a"},"values":[1],"timestamps":[1]}x', "it is no JSON object"),
        ('{"values":[1],"timestamps":[1]}', "it has no `metric`"),
        ('{"metric":{"__name__":"a"},"values":[1]}', "it lacks `values` or `timestamps`"),
        ('{"metric":{"__name__":"a"},"values":[1,2],"timestamps":[1]}', "it has 2 values and 1 timestamps"),
        ('{"metric":{"__name__":"a"},"values":[1,"x"],"timestamps":[1,2]}', 'a value is \'"x"]'),
        ('{"metric":{"__name__":"a"},"values":[1,.5],"timestamps":[1,2]}', "a value is '.5]"),
        ('{"metric":{"__name__":"a"},"values":[1],"timestamps":[1.5]}', "a timestamp is '1.5]"),
        ('{"metric":{"__name__":"a"},"values":[1],"timestamps":[9999999999999999999]}', "a timestamp is '9999"),
        ('{"metric":{"job":"a"},"values":[1],"timestamps":[1]}', "it has no label __name__"),
        ('{"metric":{"__name__":1},"values":[1],"timestamps":[1]}', "`metric` is not an object of texts"),
        ('{"metric":{"__name__":"a"},"histograms":[{"schema":0}],"timestamps":[1]}', "it is no line of histograms"),
        ('{"metric":{"__name__":"\\ud800"},"values":[1],"timestamps":[1]}', ""),
    ],
)
def test_a_line_that_is_wrong_is_named_and_the_others_are_read(line: str, reason: str) -> None:
    good = '{"timestamps":[ 5 , 6 ], "values" : [0.12345678901234567, 2e400],"x":{"y":[1]},"metric":{"__name__":"b"}}\r'
    wrong_numbers = '{"metric":{"__name__":"a"},"values":[0.98765432109876543],"timestamps":[]}'
    arrays, refusals = read_json(f"{wrong_numbers}\n\n{line}\n{good}\n".encode(), first_line=8)
    assert held(arrays) == [({"__name__": "b"}, [(5, bits(0.12345678901234567)), (6, bits(math.inf))])]
    assert refusals.count == 2
    assert refusals.texts[0] == "line 8: it has 1 values and 0 timestamps"
    assert refusals.texts[1].startswith("line 10: ")
    assert reason in refusals.texts[1]


@pytest.mark.parametrize(
    "name", ["timeseries", "valves", "Values", "value", "values ", "meteoric", "mettic", "tiiiiiiiis", "historians"]
)
def test_a_member_of_another_name_is_passed_over(name: str) -> None:
    line = '{"metric":{"__name__":"a"},"values":[1],"timestamps":[1000]}'
    for other in ("[2000]", '"x"', "{}"):
        arrays, refusals = read_json(f'{line[:-1]},"{name}":{other}}}'.encode())
        assert not refusals.count
        assert held(arrays) == [({"__name__": "a"}, [(1000, bits(1.0))])]


def test_words_that_are_values_are_known_in_any_case() -> None:
    words = ['"Inf"', '"-iNF"', '"+infinity"', '"-INFINITY"', '"NaN"', '"nan"', "null", '"stale"', '"Stale"']
    expected = [math.inf, -math.inf, math.inf, -math.inf, math.nan, math.nan, math.nan, STALE, STALE]
    times = list(range(len(words)))
    arrays, refusals = read_json(
        f'{{"metric":{{"__name__":"a"}},"values":[{",".join(words)}],"timestamps":{times}}}'.encode()
    )
    assert not refusals.count
    assert arrays.values[: len(words)].tobytes() == np.array(expected).tobytes()


@pytest.mark.parametrize(
    "word", ['"start"', '"stall"', '"infantry"', '"INFINITI"', '"in"', '"info"', '"nad"', '"nano"', '""', "nul", "Null"]
)
def test_words_that_only_look_like_a_value_are_refused(word: str) -> None:
    arrays, refusals = read_json(f'{{"metric":{{"__name__":"a"}},"values":[{word}],"timestamps":[1]}}'.encode())
    assert not arrays.labels
    [text] = refusals.texts
    assert text.startswith(f"line 1: a value is '{word}")


def test_columns_of_csv_can_be_described() -> None:
    text = "goog,1.5,0.5,1700000000.25\n,7,,1700000001\nx,y,1,1\nz,1\n"
    arrays, refusals = read_csv(text, "2:metric:ask,3:metric:bid,1:label:ticker,4:time:unix_s")
    assert held(arrays) == [
        ({"__name__": "ask", "ticker": "goog"}, [(1700000000250, bits(1.5))]),
        ({"__name__": "bid", "ticker": "goog"}, [(1700000000250, bits(0.5))]),
        ({"__name__": "ask"}, [(1700000001000, bits(7.0))]),
    ]
    assert [text.partition(":")[0] for text in refusals.texts] == ["line 3", "line 4"]
    (_, samples), *_ = held(read_csv("1,2026-01-01T00:00:00Z", "1:metric:up,2:time:rfc3339")[0])
    assert samples == [(1767225600000, bits(1.0))]


def test_a_label_has_one_column_of_csv() -> None:
    with pytest.raises(BadData, match="the header has the label 'job' twice"):
        read_csv("job,x,job,__timestamp__,__value__\na,b,c,1,2\n")
    with pytest.raises(BadData, match="parameter 'format' has the label 'job' twice"):
        read_csv("a,b,1\n", "1:label:job,2:label:job,3:metric:up")
    arrays, _ = read_csv("__name__,__timestamp__,__timestamp__,__value__\nup,x,1,2\n")
    assert held(arrays) == [({"__name__": "up", "__timestamp__": "x"}, [(1, bits(2.0))])]


def test_a_byte_order_mark_before_csv_is_no_part_of_it() -> None:
    with_header = "\ufeffjob,__name__,__timestamp__,__value__\na,up,1,2\n\ufeffb,up,1,2\n"
    described = "\ufeffa,2,1\n\ufeffb,2,1\n"
    expected = [({"__name__": "up", "job": job}, [(1, bits(2.0))]) for job in ("a", "\ufeffb")]
    assert held(read_csv(with_header)[0]) == expected
    assert held(read_csv(described, "1:label:job,2:metric:up,3:time:unix_ms")[0]) == expected


@pytest.mark.parametrize("kind", ["unix_s", "unix_ms", "unix_us", "unix_ns"])
def test_a_time_with_underscores_is_no_number(kind: str) -> None:
    arrays, refusals = read_csv("1,1_700\n1,1700\n", f"1:metric:up,2:time:{kind}")
    assert refusals.texts == ["line 1: its time is '1_700', which cannot be read"]
    assert len(held(arrays)) == 1


def test_a_row_of_csv_has_a_bound() -> None:
    with pytest.raises(TooLarge, match="line 2 has more than 1048576 characters"):
        read_csv("1,2\n" + "," * 2_000_000, "1:metric:up,2:time:unix_s")


@pytest.mark.parametrize(
    "columns", ["", "1", "0:metric:up", "1:metric:up,2:time:soon", "1:label:job", "x:metric:y", "1:metric:a,1:metric:b"]
)
def test_a_description_that_makes_no_sense_is_refused(columns: str) -> None:
    with pytest.raises(BadData, match=r"parameter 'format'|the header must have"):
        read_csv("a,b\n1,2\n", columns)


@pytest.mark.parametrize(
    "line",
    [
        '{"metric":{"__name__":"a","i":"%d"},"values":[1],"timestamps":[1]}',
        '{"metric":{"__name__":"a"},"values":[1e30,%d.5e-50],"timestamps":[1,2]}',
        '{"metric":{"__name__":"a","i":"%d"},"histograms":[],"timestamps":[]}',
    ],
)
def test_the_interpreted_work_of_an_import_is_bounded(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(line % i for i in range(100)).encode()
    assert not read_json(text)[1].count
    monkeypatch.setattr("coordinator.transfer.refusals.WORK_US_MAX", 50)
    with pytest.raises(TooLarge, match="send it in smaller parts"):
        read_json(text)
    with pytest.raises(TooLarge, match="send it in smaller parts"):
        read_csv("1,2\n" * 100, "1:metric:up,2:time:unix_s")


@given(some_histograms)
def test_a_histogram_keeps_all_that_is_stored_of_it(histogram: NativeHistogram) -> None:
    batch = decoding.decoded(*body_of([oracle_message(histogram, 1)])).batch
    one = slice_of({"h": [(1, 0.0)]})
    one.samples.histograms = batch
    one.samples.values[:] = references(np.zeros(1, np.int64))
    ((row, time_ms, text),) = histograms_of(one)
    assert (row, time_ms) == (0, 1)
    (line,) = b"".join(JsonLines().chunks(one)).splitlines()
    assert json.loads(line)["histograms"] == [json.loads(text)]
    arrays, refusals = read_json(line)
    assert not refusals.count
    ((label_bytes, (message,)),) = arrays.histograms
    assert dict(decode(label_bytes)) == dict(one.labels.labels(0))
    decoded = decoding.decoded(*body_of([message]))
    assert not decoded.faults.any(), decoded.fault_text(0)
    assert decoded.timestamps_ms.tolist() == [1]
    assert repr(oracle_of(decoded.batch)) == repr(oracle_of(batch))


def test_a_histogram_that_no_message_can_have_is_refused() -> None:
    whole = {"schema": 0, "count": 1, "sum": 1.0, "zero_count": 1}
    for wrong in ({"count": 1.5}, {"positive": {1 << 40: 1}}, {"schema": 1 << 40}, {"zero_count": -1}):
        with pytest.raises(BadData):
            message_of(Histogram(**{**whole, **wrong}), 1)
    with pytest.raises(BadData, match="timestamp"):
        message_of(Histogram(**whole), 1 << 60)
