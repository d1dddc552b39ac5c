"""Import and export over HTTP, and what the commands make of them."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import json
import math
import shutil
import struct
import subprocess
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.command_client import Away, Client, CommandError
from coordinator.commands import transferring
from coordinator.transfer import log_files, uploading
from coordinator.transfer.arrow import STREAM, library
from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from proto import remote_write_pb2

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
START_MS = 1_700_000_000_000
FORMATS = ("jsonl", "csv", "arrow", "parquet")
_numbers = itertools.count()

Series = dict[tuple[tuple[str, str], ...], list[tuple[int, bytes]]]


@pytest.fixture
def name() -> str:
    return f"transferred_{next(_numbers):03d}_"


def write(cluster: Cluster, series: Mapping[str, Sequence[tuple[int, float]]], name: str) -> None:
    body = [({"__name__": name, "i": i}, pairs) for i, pairs in series.items()]
    assert cluster.request("POST", "/api/v1/write", compressed(body), HEADERS).status == 204


def export(cluster: Cluster, *selectors: str, headers: dict[str, str] | None = None, **more: str) -> Response:
    query = urllib.parse.urlencode([*(("match[]", text) for text in selectors), *more.items()])
    return cluster.request("GET", f"/api/v1/export?{query}", headers=headers or {})


def import_(cluster: Cluster, body: bytes, kind: str = "application/json", path: str = "", **headers: str) -> Response:
    return cluster.request("POST", f"/api/v1/import{path}", body, {"Content-Type": kind, **headers})


def series_of(text: bytes) -> Series:
    """Samples of JSON lines, by labels, with the bits of their values."""
    words = {None: math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "stale": STALE}
    found: Series = {}
    for line in text.splitlines():
        read = json.loads(line)
        values = [
            words.get(value, value) if value is None or isinstance(value, str) else value for value in read["values"]
        ]
        pairs = zip(read["timestamps"], (struct.pack("<d", value) for value in values), strict=True)
        found.setdefault(tuple(sorted(read["metric"].items())), []).extend(pairs)
    return found


def renamed(body: bytes, old: str, new: str) -> bytes:
    assert len(old) == len(new)
    return body.replace(old.encode(), new.encode())


def test_an_export_in_each_format_can_be_imported_again(cluster: Cluster, name: str) -> None:
    samples = {str(i): [(START_MS + 15_000 * k, math.sin(i + k)) for k in range(400)] for i in range(30)} | {
        "special": [(START_MS + k, value) for k, value in enumerate((math.nan, math.inf, -math.inf, STALE, -0.0))]
    }
    write(cluster, samples, name)
    lines = export(cluster, name)
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    exported = series_of(lines.body)
    assert {dict(labels)["i"]: len(pairs) for labels, pairs in exported.items()} == {
        i: len(own) for i, own in samples.items()
    }
    for number, format_ in enumerate(FORMATS):
        copy = name[:-1] + "xyzv"[number]
        if format_ == "csv":
            answer = import_(cluster, renamed(export(cluster, name, format="csv").body, name, copy), "text/csv", "/csv")
        elif format_ == "jsonl":
            answer = import_(cluster, gzip.compress(renamed(lines.body, name, copy)), **{"Content-Encoding": "gzip"})
        else:
            pa = library()
            body = export(cluster, name, format=format_).body
            if format_ == "parquet":
                import pyarrow.parquet as pq

                table = pq.read_table(io.BytesIO(body))
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
                body = sink.getvalue().to_pybytes()
            answer = import_(cluster, renamed(body, name, copy), STREAM)
        assert answer.status == 204, answer.body
        assert answer.headers["x-prometheus-remote-write-samples-written"] == str(30 * 400 + 5)
        again = series_of(renamed(export(cluster, copy).body, copy, name))
        assert again == exported


def test_a_part_can_be_exported_compressed_and_without_markers(cluster: Cluster, name: str) -> None:
    write(cluster, {"a": [(START_MS + 1000 * k, float(k)) for k in range(2000)], "b": [(START_MS, STALE)]}, name)
    answer = export(
        cluster, f'{name}{{i="a"}}', f'{name}{{i=~"."}}', start="1700000010", end="1700000012.5",
        headers={"Accept-Encoding": "gzip"}, staleness_markers="false",
    )  # fmt: skip
    assert answer.headers["content-encoding"] == "gzip"
    ((labels, pairs),) = series_of(gzip.decompress(answer.body)).items()
    assert dict(labels) == {"__name__": name, "i": "a"}
    assert [time - START_MS for time, _ in pairs] == [10_000, 11_000, 12_000]
    assert series_of(export(cluster, name, staleness_markers="false").body).keys() == {labels}
    assert export(cluster, "nothing_has_this_name").body == b""
    for format_ in FORMATS[1:]:
        assert export(cluster, "nothing_has_this_name", format=format_).status == 200


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "parameter 'match[]' is missing"),
        ("match[]={}", "match[]"),
        ("match[]=up&format=xml", "parameter 'format' is 'xml'; it must be one of jsonl, csv, arrow, parquet"),
        ("match[]=up&start=x", "parameter 'start'"),
        ("match[]=up&start=5&end=4", "parameter 'end'"),
        ("match[]=up&staleness_markers=x", "parameter 'staleness_markers'"),
    ],
)
def test_a_wrong_export_is_refused(cluster: Cluster, query: str, reason: str) -> None:
    answer = cluster.request("GET", f"/api/v1/export?{query}")
    assert (answer.status, answer.json()["errorType"]) == (400, "bad_data")
    assert reason in answer.json()["error"]


def test_native_histograms_are_exported_and_imported(cluster: Cluster, name: str) -> None:
    request = remote_write_pb2.WriteRequest()
    series = request.timeseries.add()
    for label, value in (("__name__", name), ("i", "h")):
        series.labels.add(name=label, value=value)
    series.samples.add(timestamp=START_MS, value=1.5)
    for k in range(3):
        series.histograms.append(
            histogram_message(
                count_int=6 + k, sum=2.5, schema=2, zero_threshold=0.01, zero_count_int=1,
                positive_spans=[(-2, 2), (3, 1)], positive_deltas=[2, -1, 1 + k], timestamp=START_MS + 1000 * (k + 1),
            )
        )  # fmt: skip
    import snappy

    assert cluster.request("POST", "/api/v1/write", snappy.compress(request.SerializeToString()), HEADERS).status == 204
    expected = export(cluster, name).body
    assert len(expected.splitlines()) == 2
    for format_, letter in zip(("jsonl", "csv", "arrow"), "xyz", strict=True):
        copy = name[:-1] + letter
        path = "/csv" if format_ == "csv" else ""
        kind = STREAM if format_ == "arrow" else "application/json"
        answer = import_(cluster, renamed(export(cluster, name, format=format_).body, name, copy), kind, path)
        assert answer.status == 204, answer.body
        assert renamed(export(cluster, copy).body, copy, name) == expected


def test_what_is_wrong_in_an_import_is_named_and_the_rest_is_stored(cluster: Cluster, name: str) -> None:
    good = b'{"metric":{"__name__":"%b"},"values":[1],"timestamps":[%d]}\n' % (name.encode(), START_MS)
    bad_label = b'{"metric":{"job":"x"},"values":[1],"timestamps":[1]}\n'
    bad_time = b'{"metric":{"__name__":"%b"},"values":[1],"timestamps":[999999999999999999]}\n' % name.encode()
    answer = import_(cluster, good + b"nonsense\n" + bad_label + bad_time + b"x\n" * 10)
    assert answer.status == 400
    assert answer.headers["x-prometheus-remote-write-samples-written"] == "1"
    text = answer.json()["error"]
    assert text.startswith("1 samples stored, these lines refused: line 2: ")
    assert "and 8 more" in text
    assert len(series_of(export(cluster, name).body)) == 1
    timed = import_(cluster, good + bad_time).json()["error"]
    assert "line 2, " in timed
    assert "a sample's timestamp is 999999999999999999 ms" in timed
    assert import_(cluster, b"a,b\n1,2\n", "text/csv", "/csv").status == 400
    assert import_(cluster, b"\xff,1,1\n", "text/csv", "/csv?format=1:label:a,2:metric:b").status == 400
    assert import_(cluster, b"1,2\n", "text/csv", "/csv?format=x").status == 400
    assert import_(cluster, b"", **{"Content-Encoding": "br"}).status == 400
    assert import_(cluster, good, **{"Content-Encoding": "gzip"}).status == 400
    assert import_(cluster, b"no stream", STREAM).status == 400
    assert import_(cluster, b"").status == 204


def client(cluster: Cluster) -> Client:
    return Client(cluster.url)


def imported(cluster: Cluster, *paths: Path, **options: Any) -> tuple[int, str]:
    output = io.BytesIO()
    code = transferring.import_samples(client(cluster), paths, output, **options)
    return code, output.getvalue().decode()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's prometheus is not installed")
def test_a_snapshot_of_prometheus_is_imported(cluster: Cluster, name: str, tmp_path: Path) -> None:
    values = np.random.default_rng(7).normal(size=2000)
    lines = [
        f'{name}{{i="{i}"}} {v!r} {1_700_000_000 + 15 * k}\n' for i in range(2) for k, v in enumerate(values.tolist())
    ]
    (tmp_path / "in.om").write_text(f"# TYPE {name} gauge\n" + "".join(lines) + "# EOF\n")
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", tmp_path / "in.om", tmp_path / "snapshot"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert imported(cluster, tmp_path / "snapshot") == (0, "4000 samples imported\n")
    assert not list(tmp_path.glob("*.triptych-import"))
    found = series_of(export(cluster, name).body)
    expected = [(START_MS + 15_000 * k, struct.pack("<d", v)) for k, v in enumerate(values.tolist())]
    assert list(found.values()) == [expected, expected]
    text = (tmp_path / "in.om").read_text().replace(name, name[:-1] + "o")
    (tmp_path / "in.om").write_text(text)
    assert imported(cluster, tmp_path / "in.om") == (0, "4000 samples imported\n")
    assert list(series_of(export(cluster, name[:-1] + "o").body).values()) == [expected, expected]


@pytest.mark.parametrize("kind", FORMATS)
def test_files_are_exported_and_imported_by_commands(cluster: Cluster, name: str, tmp_path: Path, kind: str) -> None:
    write(cluster, {str(i): [(START_MS + k, i + k / 3) for k in range(200)] for i in range(20)}, name)
    path = tmp_path / f"samples.{kind}"
    assert transferring.export_samples(client(cluster), [name], path, kind=kind) == 0
    before = export(cluster, name).body
    assert cluster.post_form("/api/v1/admin/tsdb/delete_series", **{"match[]": name}).status == 204
    assert export(cluster, name).body == b""
    assert imported(cluster, path) == (0, "4000 samples imported\n")
    assert series_of(export(cluster, name).body) == series_of(before)
    assert sorted(own.name for own in tmp_path.iterdir()) == [path.name]


def test_an_import_that_was_interrupted_goes_on(
    cluster: Cluster, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.transfer.sample_files.SLICE_BYTES", 1000)
    monkeypatch.setattr("coordinator.transfer.uploading.SAVE_EVERY_S", 0.0)
    monkeypatch.setattr("coordinator.transfer.uploading.PATIENCE_S", 0.0)
    path = tmp_path / "samples.jsonl"
    lines = [
        json.dumps({"metric": {"__name__": name}, "values": [k], "timestamps": [START_MS + k]}) for k in range(300)
    ]
    path.write_text("\n".join([*lines[:150], "nonsense", *lines[150:]]))
    sent: list[bytes] = []
    send = Client.send

    def counting(self: Client, method: str, target: str, data: bytes, headers: Mapping[str, str]) -> Any:
        if len(sent) == 8:
            raise CommandError("the line is cut")
        sent.append(data)
        return send(self, method, target, data, headers)

    monkeypatch.setattr(Client, "send", counting)
    with pytest.raises(CommandError, match="the line is cut"):
        imported(cluster, path)
    state = tmp_path / "samples.jsonl.triptych-import"
    assert state.exists()
    monkeypatch.setattr(Client, "send", send)
    code, text = imported(cluster, path)
    assert code == transferring.INCOMPLETE
    assert int(text.split()[0]) < 300
    assert [len(pairs) for pairs in series_of(export(cluster, name).body).values()] == [300]
    assert not state.exists()


def test_a_compressed_file_that_is_whole_is_not_read_again_from_its_middle(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole.om.gz", tmp_path / "broken.om"
    lines = [f'{name}{{host="h{k % 7}"}} {k} {START_MS // 1000 + k}\n' for k in range(5000)]
    whole.write_bytes(gzip.compress("".join([*lines, "# EOF\n"]).encode()))
    broken.write_text("nonsense\n# EOF\n")
    with pytest.raises(CommandError, match="'nonsense'; it must be a sample"):
        imported(cluster, whole, broken)
    broken.write_text(f"{name} 1 {START_MS // 1000}\n# EOF\n")
    assert imported(cluster, whole, broken) == (0, "1 sample imported\n")
    assert sorted(len(pairs) for pairs in series_of(export(cluster, name).body).values()) == [1, *[714] * 5, *[715] * 2]


def test_parquet_is_known_by_its_content_and_may_have_no_rows(cluster: Cluster, name: str, tmp_path: Path) -> None:
    library()
    import pyarrow.parquet as pq

    write(cluster, {str(i): [(START_MS, i)] for i in range(4)}, name)
    path = tmp_path / "samples.parquet"
    assert transferring.export_samples(client(cluster), [name], path, kind="parquet") == 0
    table = pq.read_table(path)
    with pq.ParquetWriter(tmp_path / "samples.pq", table.schema) as file:
        for begin, end in ((0, 1), (1, 1), (1, 4)):
            file.write_table(table.slice(begin, end - begin))
    assert imported(cluster, tmp_path / "samples.pq", kind="parquet") == (0, "4 samples imported\n")
    assert transferring.export_samples(client(cluster), [f"{name}_none"], path, kind="parquet") == 0
    assert imported(cluster, path) == (0, "0 samples imported\n")


def test_one_row_of_csv_that_is_not_utf_8_is_refused_alone(cluster: Cluster, name: str) -> None:
    rows = [f"{name},h{i},{START_MS + i},{i}\n".encode() for i in range(2000)]
    rows[3] = f"{name},caf\xe9,{START_MS},1\n".encode("latin-1")
    rows[7] = f"{name},h,{START_MS},caf\xe9\n".encode("latin-1")
    body = b"__name__,host,__timestamp__,__value__\n" + b"".join(rows)
    answer = import_(cluster, body, "text/csv", "/csv")
    assert answer.status == 400, answer.body
    assert "line 5: a label is not UTF-8" in answer.json()["error"]
    assert "line 9: a value is" in answer.json()["error"]
    assert len(series_of(export(cluster, name).body)) == 1998


def test_an_import_of_records_that_was_killed_goes_on_and_appends_each_once(
    cluster: Cluster, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "BATCH_RECORDS", 10)
    monkeypatch.setattr(uploading, "BACK_OFF_FIRST_S", 0.0)
    path, state = tmp_path / "log.jsonl", tmp_path / "log.jsonl.triptych-import"
    path.write_text("".join(json.dumps({"keyText": name, "text": str(i)}) + "\n" for i in range(300)))
    kept, asked = b"", 0
    call = Client.call

    def counting(self: Client, *arguments: Any) -> Any:
        nonlocal kept, asked
        asked += 1
        if asked == 5:
            raise Away("the cluster restarts")
        if asked == 22:
            kept = state.read_bytes()  # as a kill leaves it
            raise CommandError("killed")
        return call(self, *arguments)

    monkeypatch.setattr(Client, "call", counting)
    with pytest.raises(CommandError, match="killed"):
        transferring.import_log(client(cluster), path, io.BytesIO(), kind="jsonl")
    state.write_bytes(kept)
    assert transferring.import_log(client(cluster), path, io.BytesIO(), kind="jsonl") == 0
    records = cluster.get("/api/v1/log/scan", key=name).json()["records"]
    assert [base64.b64decode(record["value"]) for record in records] == [b"%d" % i for i in range(300)]


@pytest.mark.parametrize("kind", ["jsonl", "arrow", "parquet"])
def test_records_of_the_log_are_exported_and_imported(cluster: Cluster, name: str, tmp_path: Path, kind: str) -> None:
    records = [
        {"keyText": f"{name}/a", "text": "first"},
        {"keyText": f"{name}/b", "json": {"n": [1, 2]}, "headers": {"trace": "00"}, "contentType": "application/json"},
        {"keyText": f"{name}/a", "tombstone": True},
        {"key": "/w==", "value": "/wA="},
    ]
    assert cluster.post_json("/api/v1/log/append", {"records": records}).status == 200
    path = tmp_path / f"log.{kind}"
    parameters: dict[str, str | int] = {"prefix": name}
    assert transferring.export_log(client(cluster), path, kind=kind, parameters=parameters) == 0
    before = cluster.get("/api/v1/log/scan", prefix=name).json()["records"]
    output = io.BytesIO()
    for _ in range(2):  # the second time, nothing is appended
        assert transferring.import_log(client(cluster), path, output, kind=kind) == 0
    after = cluster.get("/api/v1/log/scan", prefix=name).json()["records"]
    assert [_content(record) for record in after] == 2 * [_content(record) for record in before]
    assert output.getvalue() == b"3 records appended\n" * 2


def _content(record: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in record.items() if field not in ("sequence", "timeMs")}


@pytest.mark.parametrize("kind", ["jsonl", "arrow", "parquet", "npy"])
def test_vectors_are_exported_and_imported(cluster: Cluster, name: str, tmp_path: Path, kind: str) -> None:
    for collection in (name, f"{name}_copy"):
        made = cluster.request(
            "PUT", f"/api/v1/vector/collections/{collection}", b'{"dimension": 3}', {"Content-Type": "application/json"}
        )
        assert made.status == 200, made.body
    more = {} if kind == "npy" else {"year": 7, "size": 2.0, "tags": ["x", "ü"], "is": True}
    vectors = [{"id": f"v{i}", "attributes": {"vector": [i + 1.0, 0.1, -2.5], **more}} for i in range(5)]
    body = {"collection": name, "upsertVectors": vectors}
    assert cluster.post_json("/api/v1/vector/write", body).status == 200
    path = tmp_path / f"vectors.{kind}"
    assert transferring.export_vectors(client(cluster), path, kind=kind, collection=name) == 0
    output = io.BytesIO()
    code = transferring.import_vectors(client(cluster), path, output, kind=kind, collection=f"{name}_copy")
    assert (code, output.getvalue()) == (0, b"5 vectors imported\n")
    pages = [
        cluster.post_json("/api/v1/vector/scroll", {"collection": collection, "limit": 10}).json()["vectors"]
        for collection in (name, f"{name}_copy")
    ]
    assert pages[0] == pages[1]
    if kind == "npy":
        rows = np.load(path)
        assert rows.shape == (5, 3)
        assert path.with_suffix(".ids").read_text().split() == [vector["id"] for vector in pages[0]]
