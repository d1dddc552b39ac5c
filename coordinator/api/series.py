"""Lists of series, label names and label values: /api/v1/series, /api/v1/labels, /api/v1/label/{name}/values."""

from __future__ import annotations

import re
from functools import partial
from itertools import islice

import orjson
from aiohttp import web
from multidict import MultiDict

from coordinator.api import parameters
from coordinator.api.lists import Listing, answer, merged
from coordinator.api.selectors import required_selectors, selectors, time_range
from coordinator.context import CONTEXT
from coordinator.fanout.calls import FanOut
from shared.errors import BadData
from shared.labels import LabelFrame, Symbols, concat
from shared.messages.series import ListReply, SelectBody, TextsReply
from shared.settings import Settings
from shared.wire import unpack

SERIES, LABELS, VALUES = "series.list", "series.labels", "series.values"
"""The kinds of lists that workers are asked for."""
SETS_AT_ONCE = 1024
"""Label sets that are written as JSON in one call, which blocks the interpreter's other threads."""
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_ESCAPED = re.compile(r"U__(?:[a-zA-Z0-9]|__|_[0-9a-fA-F]{1,6}_)*", re.ASCII)
_ESCAPE = re.compile(r"__|_([0-9a-fA-F]{1,6})_")


async def series(request: web.Request) -> web.Response:
    fields = await parameters.form(request)
    return await answer(request, await series_listing(fields, request.app[CONTEXT].settings))


async def labels(request: web.Request) -> web.Response:
    fields = await parameters.form(request)
    return await answer(request, await texts_listing(fields))


async def label_values(request: web.Request) -> web.Response:
    fields = await parameters.form(request)
    return await answer(request, await texts_listing(fields, request.match_info["name"]))


async def series_listing(fields: MultiDict[str], settings: Settings) -> Listing:
    """The label sets that these parameters ask for. Raises BadData, NotExecutable."""
    start_ms, end_ms = time_range(fields)
    limit = parameters.optional(fields, "limit", parameters.limit, settings.series_limit)
    wanted = SelectBody(await required_selectors(fields), start_ms, end_ms, limit)
    return Listing.of(SERIES, fields, wanted, merged(partial(_label_sets, limit=limit)))


async def texts_listing(fields: MultiDict[str], label: str = "") -> Listing:
    """The label names that these parameters ask for, or the values of this label. Raises BadData, NotExecutable.

    A label that is no plain identifier may be escaped as in Prometheus 3 (`U__…`), or be written as it is if a series
    has it; otherwise it is invalid.
    """
    name = _unescaped(label)
    start_ms, end_ms = time_range(fields)
    limit = parameters.optional(fields, "limit", parameters.limit, 0)
    wanted = SelectBody(await selectors(fields) or [()], start_ms, end_ms, limit, name)
    is_plain = not name or bool(_NAME.fullmatch(name)) or label.startswith("U__")
    merge = partial(_merged_texts, limit=limit, name="" if is_plain else name)
    return Listing.of(VALUES if label else LABELS, fields, wanted, merged(merge))


def _merged_texts(result: FanOut, limit: int, name: str) -> tuple[list[str], bool]:
    """(texts in order, whether they were cut at the limit). Raises BadData if there are none, and `name` is not
    empty."""
    replies = [unpack(reply.message.body, TextsReply) for reply in result.replies]
    texts = sorted({text for reply in replies for text in reply.texts})
    if name and not texts:
        raise BadData(f"invalid label name {name!r}; it must be letters, digits and _, or escaped as U__…")
    cut = any(reply.cut for reply in replies) or 0 < limit < len(texts)
    return texts[:limit] if limit else texts, cut


def _label_sets(result: FanOut, limit: int) -> tuple[orjson.Fragment, bool]:
    """(label sets in order as JSON, whether they were cut at the limit)."""
    symbols = Symbols()
    frame = concat([LabelFrame.from_frames(reply.message.frames, symbols) for reply in result.replies])
    cut = any(unpack(reply.message.body, ListReply).cut for reply in result.replies) or 0 < limit < frame.size
    frame = frame.take(frame.sort_order())
    if limit:
        frame = frame.take(slice(0, limit))
    names = sorted(frame.columns)
    columns = [symbols.texts(frame.columns[name]) for name in names]
    rows = zip(*columns, strict=True)
    texts = []
    while some := list(islice(rows, SETS_AT_ONCE)):
        sets = [{name: text for name, text in zip(names, row, strict=True) if text} for row in some]
        texts.append(orjson.dumps(sets)[1:-1])
    return orjson.Fragment(b"[" + b",".join(texts) + b"]"), cut


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
