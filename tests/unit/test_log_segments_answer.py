"""GET /api/v1/log/segments says when it has not listed all of them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from coordinator.api.log import contents as api
from coordinator.context import CONTEXT
from coordinator.log.sequencer import Segment


async def listed(query: dict[str, str]) -> dict[str, Any]:
    async def known() -> None:
        pass

    sequencer = SimpleNamespace(segments=[Segment(i, 10 * i, i) for i in range(5)])
    area = SimpleNamespace(sequencer=sequencer, wait_for_state=known)
    request = SimpleNamespace(query=query, query_string=urlencode(query), app={CONTEXT: SimpleNamespace(log=area)})
    answer = json.loads(cast(bytes, (await api.segments(cast(Any, request))).body))
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6])
async def test_pages_of_segments_are_all_of_them(limit: int) -> None:
    ids: list[int] = []
    query = {"limit": str(limit)}
    while True:
        answer = await listed(query)
        ids += [segment["id"] for segment in answer["segments"]]
        if "more" not in answer:
            break
        query["start_seq"] = str(answer["nextSequence"])
    assert ids == [0, 1, 2, 3, 4]


async def test_what_the_server_cuts_by_itself_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SEGMENTS_MAX", 3)
    answer = await listed({})
    assert (len(answer["segments"]), answer["more"], answer["nextSequence"]) == (3, True, 30)


async def test_all_segments_need_no_further_page() -> None:
    answer = await listed({})
    assert set(answer) == {"status", "segments"}
