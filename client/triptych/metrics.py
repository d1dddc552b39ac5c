"""The metrics area: PromQL queries, lists of series and labels, and remote write."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, TypeVar, Union
from urllib.parse import quote

from triptych import arrow
from triptych.calls import FORM, Call, Listing, Parameters, ServerResponse, Steps, target
from triptych.errors import ServerError
from triptych.remote_write import SAMPLES_OF_REQUEST, Samples, parts_of, request_of
from triptych.series import QueryResult, Series, result_of
from triptych.times import Duration, Time, milliseconds, seconds_of, seconds_text, text_of

T = TypeVar("T")
Labels = Mapping[str, str]
Writable = Union[Series, tuple[Labels, Any], tuple[Labels, Any, Any]]
"""A series to write: (labels, value or values), written with the present time, or (labels, values, times), or a series
of an answer. A label set has the metric's name as `__name__`. Times: Unix seconds, datetimes or datetime64."""


@dataclass(frozen=True)
class Metadata:
    """The metadata of a metric family, as senders describe it."""

    type: str
    help: str
    unit: str


@dataclass(frozen=True)
class Written:
    samples: int
    requests: int


def query(
    query: str,
    time: Time | None = None,
    *,
    timeout: Duration | None = None,
    lookback: Duration | None = None,
    limit: int | None = None,
    stats: bool = False,
    partial: bool = True,
) -> Call[QueryResult]:
    """Evaluate a PromQL expression at one time, by default now.

    `timeout`: of the evaluation; `lookback`: instead of five minutes; `limit`: at most so many series; `partial=False`:
    Unavailable if a shard is missing, instead of an answer with a warning. Raises BadRequest, NotExecutable.
    """
    fields = [("query", query), *_given("time", time, text_of)]
    return _evaluation("/api/v1/query", fields, timeout, lookback, limit, stats, partial)


def query_range(
    query: str,
    start: Time,
    end: Time,
    step: Duration,
    *,
    timeout: Duration | None = None,
    lookback: Duration | None = None,
    limit: int | None = None,
    stats: bool = False,
    partial: bool = True,
) -> Call[QueryResult]:
    """Evaluate a PromQL expression at `start`, `start` + `step` … ≤ `end`. As `query`."""
    fields = [("query", query), ("start", text_of(start)), ("end", text_of(end)), ("step", seconds_text(step))]
    return _evaluation("/api/v1/query_range", fields, timeout, lookback, limit, stats, partial)


def _evaluation(
    path: str,
    fields: Parameters,
    timeout: Duration | None,
    lookback: Duration | None,
    limit: int | None,
    stats: bool,
    partial: bool,
) -> Call[QueryResult]:
    fields += _given("timeout", timeout, seconds_text) + _given("lookback_delta", lookback, seconds_text)
    fields += _given("limit", limit, str) + ([("stats", "all")] if stats else []) + _partial(partial)
    wait_s = 0.0 if timeout is None else seconds_of(timeout)
    body = target("", fields)[1:].encode()
    return Call("POST", path, _result, {"Content-Type": FORM}, body, wait_s=wait_s, arrow=True)


def _result(answer: ServerResponse) -> QueryResult:
    return arrow.query_result(answer) if arrow.is_arrow(answer) else result_of(answer.json())


def series(
    match: str | Sequence[str],
    start: Time | None = None,
    end: Time | None = None,
    *,
    limit: int | None = None,
    partial: bool = True,
) -> Call[Listing[dict[str, str]]]:
    """The label sets of the series that one of the selectors matches; with times, of those with samples in between."""
    return _form("/api/v1/series", _selection(match, start, end, limit, partial), _data)


def labels(
    match: str | Sequence[str] = (),
    start: Time | None = None,
    end: Time | None = None,
    *,
    limit: int | None = None,
    partial: bool = True,
) -> Call[Listing[str]]:
    """The names of labels, of all series or of those that match."""
    return _form("/api/v1/labels", _selection(match, start, end, limit, partial), _data)


def label_values(
    label: str,
    match: str | Sequence[str] = (),
    start: Time | None = None,
    end: Time | None = None,
    *,
    limit: int | None = None,
    partial: bool = True,
) -> Call[Listing[str]]:
    """The values of a label, of all series or of those that match. Those of `__name__` are the metrics."""
    path = f"/api/v1/label/{quote(label, safe='')}/values"
    return Call("GET", target(path, _selection(match, start, end, limit, partial)), _data)


def metadata(metric: str = "", *, limit: int | None = None) -> Call[dict[str, list[Metadata]]]:
    """Metric family → its metadata as senders describe it."""
    fields = ([("metric", metric)] if metric else []) + _given("limit", limit, str)

    def read(answer: ServerResponse) -> dict[str, list[Metadata]]:
        families = answer.json()["data"]
        return {
            family: [Metadata(entry.get("type", ""), entry.get("help", ""), entry.get("unit", "")) for entry in entries]
            for family, entries in families.items()
        }

    return Call("GET", target("/api/v1/metadata", fields), read)


def write(series: Iterable[Writable], *, samples_per_request: int = SAMPLES_OF_REQUEST) -> Steps[Written]:
    """Store samples with remote write, in as many requests as they need. Returns when all of them are stored.

    A sample with the same series and time replaces the earlier value, so requests are repeated where that may help.
    Raises ValueError for what cannot be sent, before the request with it; BadRequest if the server refuses a series:
    the rest of that request is stored, what comes after it is not.
    """
    samples = requests = 0
    for request_series in parts_of(_samples(series), samples_per_request):
        body, headers = request_of(request_series)
        yield Call("POST", "/api/v1/write", _require_stored, headers, body, changes=True)
        samples += sum(len(each.values) for each in request_series)
        requests += 1
    return Written(samples, requests)


def delete_series(match: str | Sequence[str], start: Time | None = None, end: Time | None = None) -> Call[None]:
    """Delete the samples of all series that match, or those between the times. The server allows this only if its
    administrator has enabled it."""
    fields = _selection(match, start, end, None, True)
    return replace(_form("/api/v1/admin/tsdb/delete_series", fields, lambda answer: None), changes=True)


def _require_stored(answer: ServerResponse) -> None:
    """Raises ServerError for an answer that is not from Triptych, such as a page for all paths: nothing is stored
    then."""
    if answer.status != 204:
        raise ServerError(f"the write was answered with the status {answer.status}; it must be 204: is this Triptych?")


def _samples(series: Iterable[Writable]) -> Iterator[Samples]:
    for each in series:
        if isinstance(each, Series):
            if each.histograms:
                raise ValueError(f"the series {dict(each.labels)} has native histograms, which cannot be written")
            yield Samples.of(each.labels, each.values, milliseconds(each.timestamps))
        else:
            labels, values, *times = each
            yield Samples.of(labels, values, milliseconds(times[0] if times else clock.time()))


def _form(path: str, fields: Parameters, read: Callable[[ServerResponse], T]) -> Call[T]:
    """A POST that only reads, because a query may be longer than a URL."""
    body = target("", fields)[1:].encode()
    return Call("POST", path, read, {"Content-Type": FORM}, body)


def _data(answer: ServerResponse) -> Listing[Any]:
    content = answer.json()
    return Listing(content["data"], content)


def _selection(
    match: str | Sequence[str], start: Time | None, end: Time | None, limit: int | None, partial: bool
) -> Parameters:
    selectors = [match] if isinstance(match, str) else match
    fields = [("match[]", selector) for selector in selectors]
    fields += _given("start", start, text_of) + _given("end", end, text_of) + _given("limit", limit, str)
    return fields + _partial(partial)


def _given(name: str, value: Any, text: Callable[[Any], str]) -> Parameters:
    return [] if value is None else [(name, text(value))]


def _partial(partial: bool) -> Parameters:
    return [] if partial else [("partial_response", "false")]
