"""Counts of a log end when nobody waits for them any more."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from shared.errors import DeadlineExceeded
from shared.messages.log import SEQUENCE_MAX, CountBody, CountReply, Range
from shared.wire import Request, pack, unpack
from tests.unit.log_shard import OneShard
from worker.logs.methods import METHODS
from worker.shard import Shard


@pytest.mark.parametrize("key", [b"k", None])
def test_a_count_whose_time_is_up_is_given_up_within_the_shard(tmp_path: Path, key: bytes | None) -> None:
    log = OneShard(tmp_path / "shard")
    log.append(0, [(b"k", b"1"), (b"k", b"2")], closed=2)
    log.part.gather()
    shards = {0: cast(Shard, SimpleNamespace(logs=log.part))}
    body = pack(CountBody(Range(0, 99, 0, SEQUENCE_MAX), key, b""))
    in_time = Request("log.count", (0,), time.monotonic() + 60, body)
    assert unpack(METHODS["log.count"].run(shards, in_time).body, CountReply).records == 2
    for late in (
        Request("log.count", (0,), time.monotonic() - 1, body),
        Request("log.count", (0,), time.monotonic() + 60, body, cancelled=True),
    ):
        with pytest.raises(DeadlineExceeded, match=r"log\.count"):
            METHODS["log.count"].run(shards, late)
    log.close()
