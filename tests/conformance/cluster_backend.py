"""Back end (b): a cluster over HTTP, filled by remote write and emptied by deleting every series."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from typing import Any

import snappy

from loadtest.harness.memory_source import label_set
from proto.remote_write_pb2 import Label, Sample, TimeSeries, WriteRequest
from shared.labels import METRIC_NAME, Labels
from tests.conformance.answer import Answer, Pairs
from tests.conformance.data import Data
from tests.conformance.script import Times

REQUEST_TIMEOUT_S = 60.0
EVERY_SERIES = f'{{{METRIC_NAME}=~".+"}}'
SERIES_PER_WRITE = 500


class ClusterBackend:
    name = "cluster"
    start_timestamps = False
    annotates = True

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)

    def replace(self, data: Data) -> None:
        """Hold exactly `data`."""
        self._expect(204, "/api/v1/admin/tsdb/delete_series", _form({"match[]": EVERY_SERIES}), _FORM)
        series = [_time_series(labels, data[labels].floats) for labels in data]
        for first in range(0, len(series), SERIES_PER_WRITE):
            body = WriteRequest(timeseries=series[first : first + SERIES_PER_WRITE]).SerializeToString()
            self._expect(204, "/api/v1/write", snappy.compress(body), _REMOTE_WRITE)

    def instant(self, text: str, time_ms: int) -> Answer:
        return self._ask("/api/v1/query", {"query": text, "time": _seconds(time_ms)})

    def range(self, text: str, times: Times) -> Answer:
        grid = {"start": times.start_ms, "end": times.end_ms, "step": times.step_ms}
        return self._ask("/api/v1/query_range", {"query": text, **{k: _seconds(v) for k, v in grid.items()}})

    def close(self) -> None:
        self._connection.close()

    def _ask(self, path: str, parameters: dict[str, str]) -> Answer:
        status, body = self._request(path, _form(parameters), _FORM)
        document = json.loads(body)
        if status != 200:
            return Answer("error", error=document["error"])
        return _answer(document)

    def _expect(self, status: int, path: str, body: bytes, headers: dict[str, str]) -> None:
        seen, text = self._request(path, body, headers)
        assert seen == status, f"{path} answered {seen}: {text.decode()}"

    def _request(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()


_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_REMOTE_WRITE = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}


def _form(parameters: dict[str, str]) -> bytes:
    return urllib.parse.urlencode(parameters).encode()


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}"


def _time_series(labels: Labels, floats: dict[int, tuple[float, int]]) -> TimeSeries:
    return TimeSeries(
        labels=[Label(name=name, value=value) for name, value in labels],
        samples=[Sample(value=floats[time][0], timestamp=time) for time in sorted(floats)],
    )


def _answer(document: dict[str, Any]) -> Answer:
    kind, result = document["data"]["resultType"], document["data"]["result"]
    answer = Answer(kind, warnings=document.get("warnings", []), infos=document.get("infos", []))
    if kind == "string":
        answer.string = result[1]
    elif kind == "scalar":
        answer.series = [((), _pairs([result]))]
    else:
        answer.series = [(label_set(one["metric"]), _pairs(one.get("values") or [one["value"]])) for one in result]
    return answer


def _pairs(pairs: list[tuple[float, str]]) -> Pairs:
    return [(round(time * 1000), float(value)) for time, value in pairs]
