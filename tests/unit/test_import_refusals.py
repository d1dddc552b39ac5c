"""What imports refuse: each item by the number of its line or row, and nothing but that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.api import imports
from coordinator.series.label_sets import Limits
from coordinator.transfer.arrow import library
from coordinator.transfer.csv_reading import Columns
from coordinator.transfer.json_reading import LabelSets
from coordinator.transfer.refusals import Refusals
from coordinator.transfer.text_source import TextSource
from shared.settings import Settings
from tests.unit.test_transfer_files import read_arrow, stream_of
from tests.unit.test_transfer_json import held

GOOD = {"metric": {"__name__": "x"}, "values": [1], "timestamps": [1]}
BAD_HISTOGRAM = {"schema": 99, "count": 0, "sum": 0}
FAR_MS = 10**17


def refused(parts_of: Any, body: bytes, what: str = "lines") -> list[str]:
    """The beginnings of the texts of what is refused."""
    settings, refusals = Settings(), Refusals(what)
    source = TextSource(body, is_gzip=False, bytes_max=1 << 20)
    for part in parts_of(source, LabelSets(Limits.of(settings)), refusals):
        imports._split(*part, settings, refusals)
    assert refusals.count == len(refusals.texts)
    return [text.partition(":")[0].partition(",")[0] for text in refusals.texts]


def test_a_line_of_json_with_a_wrong_histogram_is_named_by_its_number() -> None:
    lines = [GOOD, GOOD, {**GOOD, "timestamps": [FAR_MS]}]
    lines += [{"metric": {"__name__": "x"}, "histograms": [own], "timestamps": [1]} for own in (BAD_HISTOGRAM,) * 2]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert refused(imports._json_parts, body) == ["line 3", "line 4", "line 5"]


def test_a_row_of_csv_with_a_wrong_sample_is_named_by_its_line() -> None:
    histogram = json.dumps(BAD_HISTOGRAM).replace('"', '""')
    body = f'__name__,__timestamp__,__value__\nx,1,1\nx,2,"{histogram}"\ny,{FAR_MS},1\nx,3,"{histogram}"\nx,4,1\n'

    def parts(*arguments: Any) -> imports.Parts:
        return imports._csv_parts(None, *arguments)

    assert refused(parts, body.encode()) == ["line 4", "line 3", "line 5"]
    columns = Columns.of_format("1:label:what,2:metric:m,3:time:unix_ms")
    assert refused(lambda *own: imports._csv_parts(columns, *own), b"a,1,1\na,1,x\n") == ["line 2"]


def table(times: list[list[int | None] | None], values: list[list[float | None] | None], histograms: Any = None) -> Any:
    pa = library()
    pairs = [[("__name__", "x"), ("row", str(row))] for row in range(len(times))]
    columns = {
        "metric": pa.array(pairs, pa.map_(pa.string(), pa.string())),
        "timestamps": pa.array(times, pa.list_(pa.int64())),
        "values": pa.array(values, pa.list_(pa.float64())),
    }
    if histograms is not None:
        columns["histograms"] = pa.array(histograms, pa.list_(pa.string()))
    return pa.table(columns)


def test_a_row_of_arrow_with_a_wrong_sample_is_named_by_its_number() -> None:
    own = table([[1], [FAR_MS], [1]], [[1.0], [1.0], None], [None, None, [json.dumps(BAD_HISTOGRAM)]])
    assert refused(imports._arrow_parts, stream_of(own), "rows") == ["row 1", "row 2"]


def test_a_null_in_a_list_refuses_its_row_only() -> None:
    body = stream_of(table([[1, 2], [3], [None], [5]], [[1.0, None], [3.0], [4.0], [5.0]]))
    (arrays,), refusals = read_arrow(body)
    assert [(labels["row"], [time for time, _ in pairs]) for labels, pairs in held(arrays)] == [("1", [3]), ("3", [5])]
    assert refusals.texts == [f"row {row}: a list has nulls; right are numbers, NaN too" for row in (0, 2)]


def test_a_null_that_belongs_to_no_row_refuses_nothing() -> None:
    pa = library()
    offsets = pa.array([0, 1, 2], pa.int32())
    hidden = pa.ListArray.from_arrays(offsets, pa.array([1.0, None], pa.float64()), mask=pa.array([False, True]))
    own = table([[1], []], [[1.0], None])
    (arrays,), refusals = read_arrow(stream_of(own.set_column(2, "values", hidden)))
    assert not refusals.count
    assert [(labels["row"], len(pairs)) for labels, pairs in held(arrays)] == [("0", 1), ("1", 0)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_nulls_among_timestamps_of_any_unit_refuse_their_row_only(unit: str) -> None:
    pa = library()
    own = table([[1], [None]], [[1.0], [1.0]])
    times = own.column("timestamps").cast(pa.list_(pa.timestamp(unit, tz="UTC")))
    (arrays,), refusals = read_arrow(stream_of(own.set_column(1, "timestamps", times)))
    assert [labels["row"] for labels, _ in held(arrays)] == ["0"] and len(refusals.texts) == 1
