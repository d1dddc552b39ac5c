"""Files that imports read: OpenMetrics, CSV, Arrow; and how far an import is."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.command_client import Answer, Away, CommandError
from coordinator.commands import transferring
from coordinator.series.label_sets import Limits
from coordinator.transfer import arrow_reading, openmetrics, uploading, vector_files
from coordinator.transfer.arrow import ArrowStream, ParquetFile, library
from coordinator.transfer.json_reading import LabelSets
from coordinator.transfer.refusals import Refusals
from coordinator.transfer.sample_files import sources_of
from coordinator.transfer.series_body import SeriesArrays
from coordinator.transfer.text_source import TextSource, line_slices
from coordinator.transfer.uploading import ImportBatch, Outcome, State, Uploader
from shared.errors import BadData, TooLarge
from shared.settings import Settings
from tests.unit.test_transfer_json import bits, held, slice_of

LIMITS = Limits.of(Settings())


def test_a_file_that_is_not_there_is_said_to_be_that(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        sources_of(tmp_path / "nothing")


def test_what_is_no_block_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no blocks"):
        sources_of(tmp_path)
    (tmp_path / "chunks").mkdir()
    for content in (b"x", bytes(100), struct.pack(">IB", 0xBAAAD700, 2) + bytes(60)):
        (tmp_path / "index").write_bytes(content)
        with pytest.raises(ValueError, match=r"no index|table of contents"):
            sources_of(tmp_path)
    with pytest.raises(ValueError, match=r"does not tell its format; choose one of openmetrics, .* with --format"):
        sources_of(tmp_path / "index")


def test_openmetrics_is_read_with_all_that_labels_may_have() -> None:
    text = (
        b'# TYPE a counter\na_total{x="}\\"\\n\\\\ y",z=""} 1 1.5 # {trace="x"} 1\n\n'
        b'{"my.metric","other label"="v"} NaN -0.001\nplain +Inf 1700000000.123\nplain 2 1700000000\n# EOF\n'
    )
    reader = openmetrics.Reader()
    found = held(reader.read(text))
    assert reader.has_ended
    assert found == [
        ({"__name__": "a_total", "x": '}"\n\\ y'}, [(1500, bits(1.0))]),
        ({"__name__": "my.metric", "other label": "v"}, [(-1, b"nan")]),
        ({"__name__": "plain"}, [(1700000000123, bits(float("inf"))), (1700000000000, bits(2.0))]),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"up 1\n", "line 1 is 'up 1'; it must be a sample with its time"),
        (b'a 1 1\nup{x="1} 1 1\n', "line 2 is"),
        (b"up x 1\n", "could not convert"),
        (b"up 1 1e300\n", "a time is 1e\\+300"),
        (b'{x="1"} 1 1\n', "has no metric name"),
        (b'up{x="1",x="2"} 1 1\n', "appears twice"),
        (b"# EOF\nup 1 1\n", "comes behind '# EOF'"),
    ],
)
def test_openmetrics_that_is_wrong_is_named(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        openmetrics.Reader().read(text)


def test_files_are_cut_at_ends_of_lines_and_go_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.transfer.sample_files.SLICE_BYTES", 64)
    lines = [json.dumps({"metric": {"__name__": "a"}, "values": [i], "timestamps": [i]}) for i in range(20)]
    plain, zipped = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text("\n".join(lines))
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, zipped):
        (source,) = sources_of(path)
        batches = list(source.batches(0))
        assert b"".join(batch.body for batch in batches).decode() == "\n".join(lines)
        assert len(batches) == 20
        rest = list(source.batches(batches[7].position))
        assert [batch.body for batch in rest] == [batch.body for batch in batches[8:]]
    table = tmp_path / "a.csv"
    table.write_text("a,__timestamp__,__value__\n" + '"x\ny""",1,2\n' * 20)
    batches = list(sources_of(table)[0].batches(0))
    assert (
        b"".join(batch.body.removeprefix(b"a,__timestamp__,__value__\n") for batch in batches).decode()
        == '"x\ny""",1,2\n' * 20
    )
    assert all(batch.body.endswith(b",1,2\n") for batch in batches)
    (tmp_path / "a.om").write_text("up 1 1\n")
    with pytest.raises(ValueError, match="does not end with '# EOF'"):
        list(sources_of(tmp_path / "a.om")[0].batches(0))


@pytest.mark.parametrize("damage", ["cut off", "flipped", "not compressed"])
@pytest.mark.parametrize("suffix", [".jsonl.gz", ".om.gz", ".csv.gz"])
def test_a_compressed_file_that_is_not_whole_is_named(suffix: str, damage: str, tmp_path: Path) -> None:
    whole = gzip.compress(b"up,1,\n" + random.Random(1).randbytes(1 << 16).hex().encode())
    path = tmp_path / f"x{suffix}"
    if damage == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "flipped":
        path.write_bytes(whole[:20] + bytes(byte ^ 0xFF for byte in whole[20:-8]) + whole[-8:])
    else:
        path.write_bytes(b"up 1 1\n")
    for position in (0, 100):
        with pytest.raises(ValueError, match=f"{path} is no whole gzip file: "):
            list(sources_of(path)[0].batches(position))


def test_a_compressed_body_is_read_with_a_bound() -> None:
    text = b"".join(b"%d\n" % i for i in range(100_000))
    members = gzip.compress(text[:1000]) + gzip.compress(text[1000:])
    for body, is_gzip in ((text, False), (members, True)):
        slices = list(line_slices(TextSource(body, is_gzip=is_gzip, bytes_max=1 << 20), 10_000, 20_000))
        assert b"".join(own for _, own in slices) == text
        assert all(int(own.partition(b"\n")[0]) == line - 1 for line, own in slices)
    blank = list(line_slices(TextSource(b"\n" * 120_000, is_gzip=False, bytes_max=1 << 20), 1 << 20, 1 << 20))
    assert [(line, len(own)) for line, own in blank] == [(1, 50_000), (50_001, 50_000), (100_001, 20_000)]
    for body in (members[:-9], b"no gzip", members + b"x"):
        with pytest.raises(BadData, match="gzip"):
            list(line_slices(TextSource(body, is_gzip=True, bytes_max=1 << 20), 10_000, 20_000))
    bomb = gzip.compress(b"\n" * 100_000_000)
    with pytest.raises(TooLarge, match="more than 1048576 bytes"):
        list(line_slices(TextSource(bomb, is_gzip=True, bytes_max=1 << 20), 10_000, 20_000))
    with pytest.raises(TooLarge, match="line 2 has more than"):
        list(line_slices(TextSource(b"a\n" + b"b" * 3_000_000, is_gzip=False, bytes_max=1 << 30), 10_000, 20_000))


def stream_of(table: Any, **options: Any) -> bytes:
    pa = library()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write(table)
    return bytes(sink.getvalue().to_pybytes())


def read_arrow(body: bytes) -> tuple[list[SeriesArrays], Refusals]:
    refusals = Refusals("rows")
    return [arrays for arrays, _ in arrow_reading.read(body, LabelSets(LIMITS), refusals)], refusals


def test_an_arrow_stream_is_what_pyarrow_reads_and_is_read_back() -> None:
    pa = library()
    one = slice_of({"up": [(1, 1.0), (2, float("nan"))], "down": [(5, -0.0)]}, job="a")
    writer = ArrowStream()
    body = b"".join([writer.head, *writer.chunks(one), writer.tail])
    table = pa.ipc.open_stream(body).read_all()
    assert table.column("metric").to_pylist() == [
        [("__name__", "up"), ("job", "a")],
        [("__name__", "down"), ("job", "a")],
    ]
    assert table.column("values").combine_chunks().flatten().to_pylist()[0] == 1.0
    (arrays,), refusals = read_arrow(body)
    assert not refusals.count
    assert held(arrays) == [
        ({"__name__": "up", "job": "a"}, [(1, bits(1.0)), (2, b"nan")]),
        ({"__name__": "down", "job": "a"}, [(5, bits(-0.0))]),
    ]
    in_order = table.slice(1, 1)
    assert held(read_arrow(stream_of(in_order))[0][0]) == held(arrays)[1:]


def timestamps(unit: str, *times: int) -> bytes:
    pa = library()
    column = pa.array([list(times)], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp(unit)))
    metric = pa.array([[("__name__", "a")]], pa.map_(pa.string(), pa.string()))
    values = pa.array([[1.0] * len(times)], pa.list_(pa.float64()))
    return stream_of(pa.table({"metric": metric, "timestamps": column, "values": values}))


def test_timestamps_of_arrow_become_milliseconds_and_those_out_of_their_range_are_refused() -> None:
    for unit, time in (("s", 7), ("ms", 7000), ("us", 7_000_999), ("ns", 7_000_999_999)):
        (arrays,), refusals = read_arrow(timestamps(unit, time))
        assert not refusals.count
        assert held(arrays) == [({"__name__": "a"}, [(7000, bits(1.0))])]
    far_s = 2**64 // 1000 + 1_700_000_000
    for second in (far_s, -far_s, -(2**63)):
        (arrays,), refusals = read_arrow(timestamps("s", 7, second))
        assert not arrays.labels
        assert refusals.texts == [f"row 0: a timestamp is out of the range of int64 milliseconds: it is {second} s"]


def test_without_the_library_arrow_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (ArrowStream, ParquetFile, lambda: read_arrow(b"")):
        with pytest.raises(BadData, match=r"pip install 'triptych\[arrow\]'"):
            use()


def test_rows_of_arrow_that_are_wrong_are_named() -> None:
    pa = library()
    table = pa.table(
        {
            "metric": pa.array(
                [[("__name__", "a")], [("job", "b")], [("__name__", "c")], [("__name__", "d")], None],
                pa.map_(pa.string(), pa.string()),
            ),
            "timestamps": pa.array([[1, 2], [1], [1], [7], [1]], pa.list_(pa.int64())),
            "values": pa.array([[1.0, 2.0], [1.0], [1.0, 2.0], [9.0], [1.0]], pa.list_(pa.float64())),
        }
    )
    (arrays,), refusals = read_arrow(stream_of(table))
    assert held(arrays) == [
        ({"__name__": "a"}, [(1, bits(1.0)), (2, bits(2.0))]),
        ({"__name__": "d"}, [(7, bits(9.0))]),
    ]
    assert [text.partition(":")[0] for text in refusals.texts] == ["row 1", "row 2", "row 4"]


def test_a_row_with_too_much_is_refused_before_it_is_made() -> None:
    pa = library()
    strings = pa.map_(pa.string(), pa.string())
    one = {"timestamps": pa.array([[1]], pa.list_(pa.int64())), "values": pa.array([[1.0]], pa.list_(pa.float64()))}
    many = pa.array([[(f"n{i}", "x") for i in range(2000)]], strings)
    with pytest.raises(BadData, match="row 0 has 2000 labels"):
        read_arrow(stream_of(pa.table({"metric": many, **one})))
    few, texts = pa.array([[("__name__", "a")]], strings), pa.array([["{}"] * 20_000], pa.list_(pa.string()))
    with pytest.raises(BadData, match="row 0 has 20000 histograms"):
        read_arrow(stream_of(pa.table({"metric": few, **one, "histograms": texts})))


def test_a_stream_that_is_no_stream_of_samples_is_refused(tmp_path: Path) -> None:
    pa = library()
    writer = ArrowStream()
    body = b"".join([writer.head, *writer.chunks(slice_of({"up": [(1, 1.0)]})), writer.tail])
    table = pa.ipc.open_stream(body).read_all()
    for wrong in (
        b"", b"x" * 100, body[:-40], body[: len(body) // 2],
        stream_of(table.drop_columns(["metric"])),
        stream_of(table.set_column(2, "values", pa.array([[1]], pa.list_(pa.int32())))),
    ):  # fmt: skip
        with pytest.raises(BadData):
            read_arrow(wrong)
    for name, wrong in (
        ("timestamps", None), ("timestamps", pa.array([1])), ("values", pa.array([["1"]])), ("histograms", pa.nulls(1)),
        ("histograms", pa.array([[1]])),
    ):  # fmt: skip
        own = table.drop_columns([name]) if name in table.column_names else table
        (tmp_path / "a.arrow").write_bytes(stream_of(own if wrong is None else own.append_column(name, wrong)))
        with pytest.raises(ValueError, match=f"a.arrow: the .*column '{name}'"):
            list(sources_of(tmp_path / "a.arrow")[0].batches(0))
    with pytest.raises(BadData, match="the stream is compressed"):
        read_arrow(stream_of(table, compression="zstd"))


class _Server:
    """Answers each request with the next of some answers, and then 204."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []

    def again(self) -> _Server:
        return self

    def send(self, method: str, path: str, body: bytes, headers: Any) -> Answer:
        self.bodies.append(body)
        answer = (
            self.answers.pop(0)
            if self.answers
            else Answer(204, b"", "", {"x-prometheus-remote-write-samples-written": "1"})
        )
        if isinstance(answer, Exception):
            raise answer
        return answer


def batches(count: int) -> Iterator[ImportBatch]:
    for number in range(count):
        yield ImportBatch("/", {}, b"%d" % number, number + 1, 1)


def test_an_import_tells_what_was_refused_and_tries_again_what_may_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.transfer.uploading.CONNECTIONS", 1)
    monkeypatch.setattr("coordinator.transfer.uploading.BACK_OFF_FIRST_S", 0.0)
    refused = Answer(400, b'{"error": "3 stored, 1 not"}', "", {"x-prometheus-remote-write-samples-written": "3"})
    server = _Server(Answer(503, b"busy"), Away("gone"), refused)
    outcome, positions = Outcome(), list[int]()
    Uploader(server, outcome, lambda _: None).send(batches(3), positions.append)  # type: ignore[arg-type]
    assert server.bodies == [b"0", b"0", b"0", b"1", b"2"]
    assert positions == [1, 2, 3]
    assert (outcome.samples, outcome.refused) == (5, ["3 stored, 1 not"])
    with pytest.raises(CommandError, match="not for you"):
        Uploader(_Server(Answer(403, b'{"error": "not for you"}')), outcome, lambda _: None).send(
            batches(3), positions.append
        )  # type: ignore[arg-type]
    assert positions == [1, 2, 3], "nothing behind what failed is acknowledged"


def test_the_state_of_an_import_belongs_to_a_cluster_and_an_unchanged_source(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = State.read(path, "http://a")
    state.acknowledge("x", "1 2", 7)
    state.save()
    assert State.read(path, "http://a").position("x", "1 2") == 7
    assert State.read(path, "http://a").position("x", "1 3") == 0
    assert State.read(path, "http://b").position("x", "1 2") == 0
    path.write_text("[]")
    with pytest.raises(CommandError, match="is not the state of an import"):
        State.read(path, "http://a")
    state.done()
    assert not path.exists()


def test_vectors_with_long_attributes_are_sent_in_parts_that_a_request_may_have() -> None:
    vectors = [{"id": str(i), "attributes": {"vector": [1.0], "text": "ü" * 1_000_000}} for i in range(10)]
    sizes = [len(json.dumps(batch)) for batch in vector_files.batches(vectors)]
    assert len(sizes) == 5
    assert max(sizes) < 17 << 20


@pytest.mark.parametrize(("what", "then"), [("log", "goes on where this one ends"), ("vectors", "starts over")])
def test_an_import_that_loses_its_patience_says_what_the_same_command_does(
    what: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cluster:
        url = "http://a"

        def call(self, *_: Any) -> Any:
            raise Away("http://a cannot be reached")

    monkeypatch.setattr(uploading, "PATIENCE_S", -1.0)
    path = tmp_path / "source.jsonl"
    client: Any = Cluster()
    with pytest.raises(CommandError, match=f"http://a cannot be reached; the same command {then}"):
        if what == "log":
            path.write_text('{"keyText": "k", "text": "1"}\n')
            transferring.import_log(client, path, io.BytesIO(), kind="jsonl")
        else:
            path.write_text('{"id": "a", "attributes": {"vector": [1.0]}}\n')
            transferring.import_vectors(client, path, io.BytesIO(), kind="jsonl", collection="default")
