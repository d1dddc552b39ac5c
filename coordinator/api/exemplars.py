"""/api/v1/query_exemplars: the exemplars of the series that the selectors of a query match.

Parameters and answer: https://prometheus.io/docs/prometheus/latest/querying/api/#querying-exemplars.
"""

from __future__ import annotations

import asyncio

import numpy as np
import orjson
from aiohttp import web

from coordinator.api import parameters
from coordinator.api.lists import Listing, answer, merged
from coordinator.api.selectors import SELECTORS_MAX, time_range
from coordinator.fanout.calls import FanOut
from coordinator.http.responses import success
from coordinator.queries.evaluation import is_quickly_parsed
from shared.errors import BadData
from shared.labels import LabelFrame, Symbols, concat
from shared.messages.series import ExemplarsReply, SelectBody, Selectors
from shared.promql import ast, parser
from shared.promql.rendering import exemplars as rendering
from shared.wire import unpack

ANSWER_EXEMPLARS_MAX = 100_000
"""Exemplars of one answer, some 20 MB. A warning says that more were left out."""


async def query_exemplars(request: web.Request) -> web.Response:
    fields = await parameters.form(request)
    start_ms, end_ms = time_range(fields)
    query = parameters.required(fields, "query")
    selectors = _selectors(query) if is_quickly_parsed(query) else await asyncio.to_thread(_selectors, query)
    if not selectors:
        return success([])
    wanted = SelectBody(selectors, start_ms, end_ms, ANSWER_EXEMPLARS_MAX)
    return await answer(request, Listing.of("series.exemplars", fields, wanted, merged(_merged), text=query))


def _selectors(query: str) -> Selectors:
    """The matchers of each selector of a query. Raises BadData for one that is malformed, or has too many."""
    matchers = dict.fromkeys(selector.matchers for selector in ast.selectors(parser.parse(query)))
    if len(matchers) > SELECTORS_MAX:
        raise BadData(f"parameter 'query' has {len(matchers)} different selectors; the limit is {SELECTORS_MAX}")
    return list(matchers)


def _merged(result: FanOut) -> tuple[orjson.Fragment, bool]:
    """(the exemplars of each series, in the order of the label sets, as JSON; whether the limit left some out)."""
    symbols = Symbols()
    labels = [LabelFrame(symbols, 0)]
    counts = [np.zeros(0, dtype=np.int64)]
    texts: list[bytes] = []
    cut = False
    for reply in result.replies:
        content = unpack(reply.message.body, ExemplarsReply)
        *label_frames, own_counts, times, values, offsets, label_bytes = reply.message.frames
        labels.append(LabelFrame.from_frames(label_frames, symbols))
        counts.append(np.frombuffer(own_counts, dtype=np.int64))
        columns = (np.frombuffer(times, np.int64), np.frombuffer(values, np.float64), np.frombuffer(offsets, np.int64))
        texts.extend(rendering.texts(*columns, np.frombuffer(label_bytes, np.uint8)))
        assert len(counts[-1]) == content.series and len(columns[0]) == content.exemplars
        cut = cut or content.cut
    frame, series_counts = concat(labels), np.concatenate(counts)
    ends = np.cumsum(series_counts)
    order = frame.sort_order()
    room = ANSWER_EXEMPLARS_MAX - (np.cumsum(series_counts[order]) - series_counts[order])
    kept_counts = np.clip(room, 0, series_counts[order])
    cut = cut or bool((kept_counts < series_counts[order]).any())
    order = order[kept_counts > 0]
    starts = (ends - series_counts)[order].tolist()
    return _json(frame.take(order), starts, kept_counts[kept_counts > 0].tolist(), texts), cut


def _json(frame: LabelFrame, starts: list[int], counts: list[int], texts: list[bytes]) -> orjson.Fragment:
    """Series i of the frame has the exemplars with the `counts[i]` texts from `starts[i]` on."""
    names = sorted(frame.columns)
    columns = [frame.symbols.texts(frame.columns[name]) for name in names]
    rows = zip(*columns, strict=True)
    series = []
    for row, start, count in zip(rows, starts, counts, strict=True):
        labels = orjson.dumps({name: text for name, text in zip(names, row, strict=True) if text})
        series_texts = b"".join(texts[start : start + count])[1:]
        series.append(b'{"seriesLabels":%b,"exemplars":[%b]}' % (labels, series_texts))
    return orjson.Fragment(b"[" + b",".join(series) + b"]")


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/query_exemplars", query_exemplars),
    web.post("/api/v1/query_exemplars", query_exemplars),
]
