"""Back end (b): a cluster over HTTP, filled by remote write 2.0 and emptied by deleting every series."""

from __future__ import annotations

import http.client
import json
import re
import urllib.parse
from operator import itemgetter
from typing import Any

import snappy

from loadtest.harness.memory_source import label_set
from loadtest.harness.remote_write_bodies import HEADERS_V2, request_v2
from proto.remote_write_v2_pb2 import Request
from shared.labels import METRIC_NAME
from tests.conformance.answer import Answer, Pairs, Shown
from tests.conformance.data import Data
from tests.conformance.script import Times
from tests.histogram_batches import message_of
from tests.oracle_native_histograms import NativeHistogram

REQUEST_TIMEOUT_S = 60.0
EVERY_SERIES = f'{{{METRIC_NAME}=~".+"}}'
SERIES_PER_WRITE = 500


class ClusterBackend:
    name = "cluster"
    start_timestamps = True
    histograms = True
    known_remarks: re.Pattern[str] | None = None

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)

    def replace(self, data: Data) -> None:
        """Hold exactly `data`."""
        self._expect(204, "/api/v1/admin/tsdb/delete_series", _form({"match[]": EVERY_SERIES}), _FORM)
        label_sets = list(data)
        for first in range(0, len(label_sets), SERIES_PER_WRITE):
            part = {labels: data[labels] for labels in label_sets[first : first + SERIES_PER_WRITE]}
            self._expect(204, "/api/v1/write", snappy.compress(_request(part).SerializeToString()), HEADERS_V2)

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


def _form(parameters: dict[str, str]) -> bytes:
    return urllib.parse.urlencode(parameters).encode()


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}"


def _request(data: Data) -> Request:
    request = request_v2([(labels, []) for labels in data])
    for series, samples in zip(request.timeseries, data.values(), strict=True):
        for time_ms, value, start_ms in samples.in_order():
            if isinstance(value, NativeHistogram):
                series.histograms.append(message_of(value, time_ms, start_ms))
            else:
                series.samples.add(timestamp=time_ms, value=value, start_timestamp=start_ms)
    return request


def _answer(document: dict[str, Any]) -> Answer:
    kind, result = document["data"]["resultType"], document["data"]["result"]
    answer = Answer(kind, warnings=document.get("warnings", []), infos=document.get("infos", []))
    if kind == "string":
        answer.string = result[1]
    elif kind == "scalar":
        answer.series = [((), _pairs([result]))]
    else:
        answer.series = [(label_set(one["metric"]), _points(one)) for one in result]
    return answer


def _points(series: dict[str, Any]) -> Pairs:
    """The floats and histograms of a series, ascending in time."""
    floats = series.get("values") or ([series["value"]] if "value" in series else [])
    histograms = series.get("histograms") or ([series["histogram"]] if "histogram" in series else [])
    return sorted(_pairs(floats) + [(round(time * 1000), _shown(one)) for time, one in histograms], key=itemgetter(0))


def _pairs(pairs: list[tuple[float, str]]) -> Pairs:
    return [(round(time * 1000), float(value)) for time, value in pairs]


def _shown(histogram: dict[str, Any]) -> Shown:
    buckets = tuple(
        (int(rule), float(left), float(right), float(count))
        for rule, left, right, count in histogram.get("buckets", ())
    )
    return Shown(float(histogram["count"]), float(histogram["sum"]), buckets)
