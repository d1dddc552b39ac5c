"""GET /api/v1/metadata: type, help and unit of metric families, as remote write sent them.

Parameters and answer: https:

prometheus.io/docs/prometheus/latest/querying/api/#querying-metric-metadata. As in the other lists, a limit of 0 means
no limit.
"""

from __future__ import annotations

from functools import partial

from aiohttp import web

from coordinator.api import parameters
from coordinator.api.lists import Listing, answer, merged
from coordinator.context import CONTEXT
from coordinator.fanout.calls import FanOut
from shared.hashing import shard_of
from shared.messages.series import (
    MetadataBody,
    MetadataReply,
)
from shared.wire import unpack

Families = dict[str, list[dict[str, str]]]


async def metadata(request: web.Request) -> web.Response:
    fields = await parameters.form(request)
    limit = parameters.optional(fields, "limit", parameters.limit, 0)
    per_family = parameters.optional(fields, "limit_per_metric", parameters.limit, 0)
    family = fields.get("metric", "")
    shards = [shard_of(family.encode(), request.app[CONTEXT].links.shards)] if family else None
    merge = merged(partial(_merged, limit=limit, per_family=per_family))
    return await answer(request, Listing.of("series.metadata", fields, MetadataBody(family, limit), merge, shards))


def _merged(result: FanOut, limit: int, per_family: int) -> tuple[Families, bool]:
    """(entries of each family, by name; whether they were cut at the limits)."""
    replies = [unpack(reply.message.body, MetadataReply) for reply in result.replies]
    families: Families = {}
    for entry in sorted((entry for reply in replies for entry in reply.entries), key=lambda entry: entry.family):
        family = families.setdefault(entry.family, [])
        family.append({"type": entry.type, "help": entry.help, "unit": entry.unit})
    cut = any(reply.cut for reply in replies)
    if 0 < limit < len(families):
        families, cut = dict(list(families.items())[:limit]), True
    if per_family:
        cut = cut or any(len(entries) > per_family for entries in families.values())
        families = {name: entries[:per_family] for name, entries in families.items()}
    return families, cut


ROUTES: list[web.RouteDef] = [web.get("/api/v1/metadata", metadata)]
