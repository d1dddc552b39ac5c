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
from worker.logs import key_lists, reading
from worker.methods.log import METHODS
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


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("read", ["count a key", "count a prefix", "list keys", "scan a prefix"])
def test_reads_look_at_the_deadline_wherever_the_records_are(tmp_path: Path, read: str, gathered: bool) -> None:
    log = OneShard(tmp_path / "shard")
    log.append(0, [(b"k", b"1"), (b"k", b"2")], closed=2)
    if gathered:
        log.part.gather()
    span = Range(0, 99, 0, SEQUENCE_MAX)
    reads = {
        "count a key": lambda check: reading.count_key(log.part, span, b"k", check),
        "count a prefix": lambda check: reading.count_prefix(log.part, span, b"", check),
        "list keys": lambda check: key_lists.keys(log.part, span, b"", None, 10, check),
        "scan a prefix": lambda check: reading.merge(log.part, span, b"", 10, check),
    }

    def time_is_up() -> None:
        raise DeadlineExceeded("the time is up")

    with pytest.raises(DeadlineExceeded):
        reads[read](time_is_up)
    log.close()


def test_keys_of_many_batches_in_memory_are_given_up_before_all_are_looked_at(tmp_path: Path) -> None:
    log = OneShard(tmp_path / "shard")
    for number in range(3):
        log.append(number, [(b"k", b"1")], closed=number + 1)
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1

    assert key_lists.keys(log.part, Range(0, 99, 0, SEQUENCE_MAX), b"", None, 10, check) == [b"k"]
    assert looks > len(log.part.view().segments[0])
    log.close()
