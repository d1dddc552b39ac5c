"""Lists that all shards have a part of: in a light place, and in a heavy one when their parts are too long for it."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from multidict import CIMultiDict, MultiDict

from coordinator.api import listed, lists
from coordinator.api.lists import INLINE_REPLY_BYTES_MAX, LIGHT_REPLY_BYTES_MAX
from coordinator.context import CONTEXT
from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.limits.admission import Admission, Holder
from coordinator.limits.clients import Client
from coordinator.queries.gate import HEAVY, LIGHT, Gate
from coordinator.queries.running import RunningQueries
from shared.errors import Unavailable
from shared.settings import Settings
from shared.wire import Reply


class Names(msgspec.Struct):
    prefix: str = ""


class Workers:
    """Stands in for `coordinator.fanout.links.Links`: one worker, whose reply has a body and a frame of these sizes.
    `processor_s`: of each request."""

    shards = 2

    def __init__(self, *sizes: int, missing: dict[int, str] | None = None) -> None:
        self.reply = Reply(b"b" * sizes[0], [b"f" * size for size in sizes[1:]])
        self.missing = missing or {}
        self.processor_s: list[float] = []

    async def fan_out(self, method: str, *, processor_s: float, **_: Any) -> FanOut:
        self.processor_s.append(processor_s)
        return FanOut([WorkerReply("w", (0,), self.reply, 0.0)], self.missing)

    def require(self, shards: object) -> None:
        pass


def merge(replies: FanOut) -> tuple[object, bool]:
    message = replies.replies[0].message
    return len(message.body) + sum(map(len, message.frames)), False


async def answered(workers: Workers, monkeypatch: pytest.MonkeyPatch, *, heavy_places: int, **fields: str) -> Any:
    monkeypatch.setattr(listed, "client_of", lambda request: "client")
    running = RunningQueries(shows_texts=True, ended=lambda _: None)
    settings = Settings()
    admission = Admission(settings)
    context = SimpleNamespace(links=workers, gate=Gate(1), settings=settings, running=running, admission=admission)
    context.gate.heavy.free = heavy_places
    if not heavy_places:  # the place comes free when the light attempt has ended
        context.gate.heavy.take = taken
    protocol = SimpleNamespace(holder=Holder(Client("client")))
    request: Any = SimpleNamespace(app={CONTEXT: context}, protocol=protocol, headers=CIMultiDict())
    listing = lists.Listing.of("series.names", MultiDict(fields), Names(), lists.merged(merge))
    response = await lists.answer(request, listing)
    return json.loads(response.body)  # type: ignore[arg-type]


async def taken(client: object, within_s: float) -> None:
    assert 0 < within_s < time.monotonic()


async def test_a_list_of_the_longest_reply_of_a_light_request_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(LIGHT_REPLY_BYTES_MAX - 10, 4, 6)
    envelope = await answered(workers, monkeypatch, heavy_places=0)
    assert envelope["data"] == LIGHT_REPLY_BYTES_MAX
    assert workers.processor_s == [LIGHT.processor_s]


async def test_a_longer_list_is_asked_for_again_in_a_heavy_place_and_answered_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(LIGHT_REPLY_BYTES_MAX - 10, 4, 7)
    envelope = await answered(workers, monkeypatch, heavy_places=0)
    assert envelope == {"status": "success", "data": LIGHT_REPLY_BYTES_MAX + 1}
    assert workers.processor_s == [LIGHT.processor_s, HEAVY.processor_s]


async def test_while_a_heavy_place_is_free_a_long_list_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(10 * LIGHT_REPLY_BYTES_MAX)
    assert (await answered(workers, monkeypatch, heavy_places=1))["data"] == 10 * LIGHT_REPLY_BYTES_MAX
    assert workers.processor_s == [HEAVY.processor_s]


async def test_short_lists_are_merged_on_the_event_loop_and_others_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "merge", lambda replies: (threading.get_ident(), False))
    for size, is_here in ((INLINE_REPLY_BYTES_MAX, True), (INLINE_REPLY_BYTES_MAX + 1, False)):
        envelope = await answered(Workers(size - 5, 5), monkeypatch, heavy_places=1)
        assert (envelope["data"] == threading.get_ident()) == is_here


async def test_a_list_that_lacks_a_shard_says_so_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(1, missing={1: "it is down"})
    envelope = await answered(workers, monkeypatch, heavy_places=1)
    assert envelope["warnings"] == ["shard 1 is missing from this answer: it is down"]
    with pytest.raises(Unavailable, match="shard 1"):
        await answered(workers, monkeypatch, heavy_places=1, partial_response="false")
