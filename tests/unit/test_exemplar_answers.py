"""Answers about exemplars: what workers send of their shards, and what is merged of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from coordinator.api import exemplars as api
from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED
from shared.errors import DeadlineExceeded
from shared.messages.series import ExemplarsReply, SelectBody
from shared.promql.ast import Matcher
from shared.wire import Reply, Request, pack, unpack
from tests.unit import series_shard
from tests.unit.exemplar_requests import body
from tests.unit.series_shard import EVERYTHING, TIMEOUT_S, Quiet, m
from worker.methods.table import METHODS
from worker.series.index.texts import TextTable
from worker.series.writing import write_to

EXEMPLARS_EACH = 3


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Quiet]]:
    """Two shards of a process, of the series a, c, e and b, d, with three exemplars each."""
    symbols = TextTable()
    monkeypatch.setattr(series_shard, "TextTable", lambda: symbols)
    opened = [Quiet(tmp_path / str(number)) for number in range(2)]
    for shard, jobs in zip(opened, ("eca", "db"), strict=True):
        series = [(m(job=job), [], [({"n": job}, float(i), i * 1000) for i in range(EXEMPLARS_EACH)]) for job in jobs]
        write_to(shard.part, remote_write.split(body(series), 1, UNLIMITED).parts[0], TIMEOUT_S)
    yield opened
    for shard in opened:
        shard.close()


def replied(shards: list[Quiet], limit: int = 0, within_s: float = TIMEOUT_S) -> Reply:
    asked = SelectBody([(Matcher("__name__", "=", "m"),)], *EVERYTHING, limit)
    request = Request("series.exemplars", tuple(range(len(shards))), time.monotonic() + within_s, pack(asked))
    own: Any = {number: SimpleNamespace(series=shard.part) for number, shard in enumerate(shards)}
    return METHODS["series.exemplars"].run(own, request)


def merged(replies: list[Reply]) -> tuple[list[tuple[str, list[float]]], bool]:
    """(job and times of each series, whether something was cut)."""
    fan_out = FanOut([WorkerReply("w", (n,), reply, 0.0) for n, reply in enumerate(replies)], {})
    content, is_cut = api._merged(fan_out)
    series = json.loads(orjson.dumps(content))
    return [(own["seriesLabels"]["job"], [e["timestamp"] for e in own["exemplars"]]) for own in series], is_cut


def test_series_of_all_workers_are_in_the_order_of_their_labels(shards: list[Quiet]) -> None:
    one_worker = merged([replied(shards)])
    assert one_worker == ([(job, [0, 1, 2]) for job in "abcde"], False)
    assert merged([replied(shards[:1]), replied(shards[1:])]) == one_worker
    assert merged([]) == ([], False)


@pytest.mark.parametrize("limit", [1, 4, 9, 10, 15])
def test_a_worker_sends_no_more_than_the_limit_and_says_so(shards: list[Quiet], limit: int) -> None:
    content = unpack(replied(shards, limit).body, ExemplarsReply)
    assert (content.exemplars, content.cut) == (limit, limit < 5 * EXEMPLARS_EACH)
    assert content.series == -(-limit // EXEMPLARS_EACH)


def test_an_answer_has_no_more_than_the_limit_and_says_so(shards: list[Quiet], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "ANSWER_EXEMPLARS_MAX", 7)
    replies = [replied(shards[:1]), replied(shards[1:])]
    assert merged(replies) == ([("a", [0, 1, 2]), ("b", [0, 1, 2]), ("c", [0])], True)
    monkeypatch.setattr(api, "ANSWER_EXEMPLARS_MAX", 15)
    assert not merged(replies)[1]


def test_a_request_whose_time_is_up_is_given_up(shards: list[Quiet]) -> None:
    with pytest.raises(DeadlineExceeded, match="shard 0"):
        replied(shards, within_s=-1.0)
