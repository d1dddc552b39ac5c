"""Lists of series, label names and label values: /api/v1/series, /api/v1/labels, /api/v1/label/{name}/values."""

from __future__ import annotations

import asyncio
import re

from aiohttp import web

from coordinator.api import parameters
from coordinator.api.lists import answered, ask
from coordinator.api.selectors import required_selectors, selectors, time_range
from coordinator.calls import FanOut
from coordinator.context import CONTEXT
from shared.errors import BadData
from shared.labels import LabelFrame, Symbols, concat
from shared.messages.series import ListReply, SelectBody, TextsReply
from shared.wire import unpack

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_ESCAPED = re.compile(r"U__(?:[a-zA-Z0-9]|__|_[0-9a-fA-F]{1,6}_)*", re.ASCII)
_ESCAPE = re.compile(r"__|_([0-9a-fA-F]{1,6})_")


async def series(request: web.Request) -> web.Response:
    fields = await parameters.form(request)
    start_ms, end_ms = time_range(fields)
    default = request.app[CONTEXT].settings.series_limit
    limit = parameters.optional(fields, "limit", parameters.limit, default)
    wanted = SelectBody(await required_selectors(fields), start_ms, end_ms, limit)
    result = await ask(request, fields, "series.list", wanted)
    data, cut = await asyncio.to_thread(_label_sets, result, limit)
    return answered(data, result, cut)


async def labels(request: web.Request) -> web.Response:
    return await _texts(request, "series.labels", "")


async def label_values(request: web.Request) -> web.Response:
    """A name that is no plain identifier is taken as Prometheus 3 escapes it (`U__…`), or as it stands if a series
    carries it; otherwise it is invalid."""
    name = _unescaped(request.match_info["name"])
    return await _texts(request, "series.values", name)


async def _texts(request: web.Request, method: str, name: str) -> web.Response:
    fields = await parameters.form(request)
    start_ms, end_ms = time_range(fields)
    limit = parameters.optional(fields, "limit", parameters.limit, 0)
    wanted = SelectBody(await selectors(fields) or [()], start_ms, end_ms, limit, name)
    result = await ask(request, fields, method, wanted)
    answers = [unpack(reply.message.body, TextsReply) for reply in result.replies]
    texts = sorted({text for answer in answers for text in answer.texts})
    if name and not texts and not _NAME.fullmatch(name) and not request.match_info["name"].startswith("U__"):
        raise BadData(f"invalid label name {name!r}; it must be letters, digits and _, or escaped as U__…")
    cut = any(answer.cut for answer in answers) or 0 < limit < len(texts)
    return answered(texts[:limit] if limit else texts, result, cut)


def _label_sets(result: FanOut, limit: int) -> tuple[list[dict[str, str]], bool]:
    """(label sets in order, whether the limit left some out)."""
    symbols = Symbols()
    frame = concat([LabelFrame.from_frames(reply.message.frames, symbols) for reply in result.replies])
    cut = any(unpack(reply.message.body, ListReply).cut for reply in result.replies) or 0 < limit < frame.size
    frame = frame.take(frame.sort_order())
    if limit:
        frame = frame.take(slice(0, limit))
    names = sorted(frame.columns)
    columns = [symbols.texts(frame.columns[name]) for name in names]
    rows = zip(*columns, strict=True)
    return [{name: text for name, text in zip(names, row, strict=True) if text} for row in rows], cut


def _unescaped(name: str) -> str:
    """The label name that `U__…` stands for (https://prometheus.io/docs/instrumenting/escaping_schemes/); another name
    as it is."""
    if "\ufffd" in name:
        raise BadData(f"invalid label name {name!r}; it is not UTF-8")
    if not _ESCAPED.fullmatch(name):
        return name
    try:
        text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else "_", name.removeprefix("U__"))
        text.encode()
    except (ValueError, OverflowError) as error:
        raise BadData(f"invalid label name {name!r}; it escapes what is no character") from error
    return text


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/series", series),
    web.post("/api/v1/series", series),
    web.get("/api/v1/labels", labels),
    web.post("/api/v1/labels", labels),
    web.get("/api/v1/label/{name}/values", label_values),
]
