"""Answers as Arrow streams hold what the arrays hold."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow
import pytest
from aiohttp.test_utils import make_mocked_request

from coordinator.api import arrow_answers
from coordinator.headers.negotiation import ARROW
from coordinator.http import arrow_streams
from coordinator.log.headers import packed
from coordinator.vectors.merging import NO_HITS, Hits
from shared.histograms.references import references
from shared.labels import LabelFrame, Symbols
from shared.log import headers as log_headers
from shared.messages.log_pages import Records
from shared.promql.model import Grid, Matrix, RangeVector, Samples

GRID = Grid(1_000, 3_000, 1_000)
LABELS = [{"__name__": "m", "a": "ü"}, {}, {"b": "x"}]


def frame(sets):
    return LabelFrame.of(sets, Symbols())


def table(chunks):
    return pyarrow.ipc.open_stream(b"".join(chunks)).read_all()


def rows(value, metadata=None):
    return [
        (dict(row["labels"]), [time.timestamp() for time in row["timestamps"]], row["values"])
        for row in table(arrow_streams.series_chunks(value, GRID, metadata or {})).to_pylist()
    ]


def test_a_matrix_has_the_samples_that_are_present():
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    present = np.array([[True, False, True], [False] * 3, [True] * 3])
    assert rows(Matrix(frame(LABELS), values, present, np.zeros(3, bool))) == [
        (LABELS[0], [1, 3], [1, 3]),
        (LABELS[1], [], []),
        (LABELS[2], [1, 2, 3], [7, 8, 9]),
    ]


def test_a_range_vector_has_its_own_times(monkeypatch):
    monkeypatch.setattr(arrow_streams, "SAMPLES_OF_BATCH", 2)
    samples = Samples(np.array([0, 2, 2, 3]), np.array([5, 1500, -2000]), np.array([1.0, np.inf, -0.0]))
    value = RangeVector(frame(LABELS), samples, np.zeros(3, bool))
    assert rows(value) == [(LABELS[0], [0.005, 1.5], [1, np.inf]), (LABELS[1], [], []), (LABELS[2], [-2], [0])]


def test_a_result_without_series_has_the_schema_and_its_metadata():
    value = Matrix(frame([]), np.zeros((0, 3)), np.zeros((0, 3), bool), np.zeros(0, bool))
    empty = table(arrow_streams.series_chunks(value, GRID, {"resultType": "matrix"}))
    assert len(empty) == 0
    assert empty.schema.metadata == {b"resultType": b"matrix"}


def test_many_series_are_several_batches():
    size = 2 * arrow_streams.SERIES_OF_BATCH + 1
    sets = [{"i": str(i)} for i in range(size)]
    value = Matrix(frame(sets), np.arange(size * 1.0).reshape(-1, 1), np.ones((size, 1), bool), np.zeros(size, bool))
    chunks = list(arrow_streams.series_chunks(value, Grid(0, 0), {}))
    assert len(chunks) == 4
    found = table(chunks).to_pylist()
    assert [row["values"] for row in found] == [[float(i)] for i in range(size)]
    assert [dict(row["labels"]) for row in found] == sets


def test_histograms_are_found_where_they_are_shown():
    histograms = cast(Any, object())  # only whether a value refers to one is looked at
    values = references(np.array([[0, 0, 0]]))
    for present, expected in (([True, False, False], True), ([False] * 3, False)):
        value = Matrix(frame([{}]), values, np.array([present]), np.zeros(1, bool), histograms)
        assert arrow_streams.has_histograms(value) is expected
    samples = Samples(np.array([0, 1]), np.array([5]), values[0, :1], histograms=histograms)
    assert arrow_streams.has_histograms(RangeVector(frame([{}]), samples, np.zeros(1, bool)))


def test_records_have_their_headers_and_the_stream_ends_with_where_to_go_on():
    headed = log_headers.joined(packed({"h": "1"}, "c", "record", tombstone=True), b"")
    records = Records.of(
        np.array([1, 2], np.uint64), [b"\xff", headed], [b"a", b"b"], np.array([0, 1500]), np.array([False, True])
    )
    stream = arrow_streams.RecordStream(None)
    body = stream.page(records) + stream.end(3, 1, ["damaged"], ["goes on"])
    reader = pyarrow.ipc.open_stream(body)
    first, last = reader.read_next_batch_with_custom_metadata(), reader.read_next_batch_with_custom_metadata()
    one, two = first.batch.to_pylist()
    assert (one["sequence"], one["key"], one["value"], one["time"], one["headers"]) == (1, b"a", b"\xff", None, None)
    assert (two["headers"], two["contentType"], two["tombstone"]) == ([("h", "1")], "c", True)
    assert two["time"].timestamp() == 1.5
    assert last.custom_metadata.to_dict() == {
        b"nextSequence": b"3",
        b"logStartSequence": b"1",
        b"warnings": b'["damaged"]',
        b"infos": b'["goes on"]',
    }


@pytest.mark.parametrize("with_vectors", [False, True])
def test_hits_of_several_queries_have_the_number_of_their_query(with_vectors):
    vectors = np.array([[1, 2], [3, 4]], np.float32) if with_vectors else None
    hits = Hits(np.array([-0.5, -1], np.float32), [b"a", "ü".encode()], [], vectors)
    found = table([arrow_streams.hits_stream([NO_HITS, hits], "l2", ["w"], [])])
    assert [(row["query"], row["id"], row["score"], row["attributes"]) for row in found.to_pylist()] == [
        (1, "a", 0.5, None),
        (1, "ü", 1, None),
    ]
    assert ("vector" in found.column_names) is with_vectors
    assert found.schema.metadata == {b"warnings": b'["w"]', b"infos": b"[]"}


async def test_without_pyarrow_nothing_is_an_arrow_stream(monkeypatch):
    request = make_mocked_request("GET", "/", headers={"Accept": ARROW})
    assert await arrow_answers.is_wanted(request)
    monkeypatch.setattr(arrow_streams, "is_installed", lambda: False)
    assert not await arrow_answers.is_wanted(request)
