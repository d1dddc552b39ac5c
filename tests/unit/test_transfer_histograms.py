"""Native histograms that are exported: what is stored can be imported again, however large it is."""

from __future__ import annotations

import io
import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from coordinator.transfer import arrow_reading, csv_reading, json_reading
from coordinator.transfer.arrow import batches
from coordinator.transfer.csv_rows import CsvRows
from coordinator.transfer.histograms import Histogram, histogram_lines, message_of
from coordinator.transfer.json_reading import LabelSets
from coordinator.transfer.refusals import Refusals
from coordinator.transfer.sample_files import ArrowFile
from coordinator.transfer.slices import Slice
from loadtest.harness.histogram_messages import body_of
from proto.exposition_pb2 import StoredHistogram
from shared.errors import BadData
from shared.histograms import decoding
from shared.histograms.references import references
from tests.unit.test_transfer_files import stream_of
from tests.unit.test_transfer_json import LIMITS, slice_of

NUMBERS = {"sum": 1.5, "schema": 0, "zero_threshold": 1e-128}
TWO = [{"offset": 0, "length": 2}]


def stored(*messages: StoredHistogram) -> Slice:
    """A series that has these histograms, one each second."""
    one = slice_of({"h": [(1000 * i, 0.0) for i in range(len(messages))]}, job="a")
    decoded = decoding.decoded(*body_of([message.SerializeToString() for message in messages]))
    assert not decoded.faults.any()
    one.samples.histograms = decoded.batch
    one.samples.values[:] = references(np.arange(len(messages)))
    return one


def read_back(one: Slice) -> list[list[str]]:
    """What is stored of the histograms after an import of each format: as the text that an export has."""
    table = CsvRows(["__name__", "job"])
    text = (table.head + b"".join(table.chunks(one))).decode()
    found, label_sets = [], LabelSets(LIMITS)
    refusals = Refusals("items")
    parts = [json_reading.read(b"".join(histogram_lines(one)), 1, label_sets, refusals)]
    parts += csv_reading.read(io.StringIO(text, newline=""), None, label_sets, refusals)
    for batch in batches(one):
        parts += arrow_reading.read(stream_of(batch), label_sets, refusals)
    assert refusals.texts == []
    for arrays, _ in parts:
        messages = [StoredHistogram.FromString(message) for _, own in arrays.histograms for message in own]
        found.append([text for line in histogram_lines(stored(*messages)) for text in json.loads(line)["histograms"]])
    return found


def test_whole_counts_above_2_to_53_are_imported_as_they_are_stored() -> None:
    large = (1 << 62) + (1 << 40)
    one = stored(
        StoredHistogram(
            **NUMBERS, count_int=large + 1, zero_count_int=1, positive_spans=TWO, positive_deltas=[large, -large]
        )
    )
    (line,) = histogram_lines(one)
    (histogram,) = json.loads(line)["histograms"]
    assert (histogram["count"], histogram["positive"]) == (large, {"0": large, "1": 0})
    assert read_back(one) == [[histogram]] * 3


@pytest.mark.parametrize("count", [-1.0, 0.5, 2.0**64, math.inf, math.nan])
def test_a_count_that_is_no_whole_number_is_refused(count: float) -> None:
    with pytest.raises(BadData, match=r"has a count of .*; right are whole numbers below 2\^64"):
        message_of(Histogram(schema=0, count=count, sum=1.0), 1)
    with pytest.raises(BadData, match=r"has a count of .*; right are whole numbers below 2\^63"):
        message_of(Histogram(schema=0, count=1, sum=1.0, positive={0: count if count != 2.0**64 else 2.0**63}), 1)


def test_infinite_counts_are_imported_as_they_are_stored() -> None:
    one = stored(
        StoredHistogram(
            **{**NUMBERS, "sum": math.inf}, count_float=math.inf, zero_count_float=math.inf,
            positive_spans=TWO, positive_counts=[1.0, math.inf],
        )
    )  # fmt: skip
    (line,) = histogram_lines(one)
    (histogram,) = json.loads(line)["histograms"]
    assert (histogram["count"], histogram["zeroCount"]) == ("Infinity", "Infinity")
    assert histogram["positive"] == {"0": 1, "1": "Infinity"}
    assert read_back(one) == [[histogram]] * 3


def wide(buckets: int, seed: int) -> StoredHistogram:
    counts = np.random.default_rng(seed).random(buckets).tolist()
    spans = [{"offset": -buckets // 2, "length": buckets}]
    return StoredHistogram(
        **{**NUMBERS, "schema": 8}, count_float=1.0, zero_count_float=0.0, positive_spans=spans, positive_counts=counts
    )


def test_a_histogram_of_many_buckets_is_imported_again() -> None:
    (as_line, as_row, as_arrow) = read_back(stored(wide(7000, 1)))
    assert as_line == as_row == as_arrow and len(as_line[0]["positive"]) == 7000


def test_histograms_are_in_lines_of_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = stored(*(wide(10, i) for i in range(50)))
    (whole,) = histogram_lines(one)
    monkeypatch.setattr("coordinator.transfer.histograms.LINE_TEXT_MAX", 1000)
    lines = list(histogram_lines(one))
    assert 10 < len(lines) < 50 and max(map(len, lines)) < 1300
    texts = [json.dumps(text) for line in lines for text in json.loads(line)["histograms"]]
    assert texts == [json.dumps(text) for text in json.loads(whole)["histograms"]]
    (batch,) = batches(one)
    assert [len(own) for own in batch.column("histograms").to_pylist()] == [
        len(json.loads(line)["timestamps"]) for line in lines
    ]
    monkeypatch.setattr("coordinator.transfer.arrow_reading.SAMPLES_AT_ONCE", 300)
    parts = list(arrow_reading.read(stream_of(batch), LabelSets(LIMITS), Refusals("rows")))
    assert len(parts) > 5
    assert sum(len(messages) for arrays, _ in parts for _, messages in arrays.histograms) == 50


def test_a_request_of_an_arrow_file_has_few_bytes_of_histograms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.transfer.histograms.LINE_TEXT_MAX", 1000)
    path = tmp_path / "h.arrow"
    (batch,) = batches(stored(*(wide(10, i) for i in range(50))))
    path.write_bytes(stream_of(batch))
    assert len(list(ArrowFile(path).batches(0))) == 1
    monkeypatch.setattr("coordinator.transfer.sample_files.SAMPLES_AT_ONCE", 200)
    requests = list(ArrowFile(path).batches(0))
    assert len(requests) > 3
    assert [request.position for request in requests] == [0] * (len(requests) - 1) + [1]


def test_the_bits_of_a_sum_are_kept() -> None:
    (lines, rows, arrow) = read_back(stored(StoredHistogram(**{**NUMBERS, "sum": 0.1 + 0.2}, count_int=0)))
    assert struct.pack("<d", lines[0]["sum"]) == struct.pack("<d", 0.1 + 0.2) and lines == rows == arrow
