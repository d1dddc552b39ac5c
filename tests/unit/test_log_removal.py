"""Taking back what has been gathered: which records go, what they had, and what is left of their runs and entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.log_shard import OneShard
from worker.logs import rows
from worker.logs.removal import put_drop, put_revocation

FIRST = [(b"k", b"11111"), (b"key", b"22")]
SECOND = [(b"k", b"3333333")]


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    """With a group of two batches and one of another, gathered together, and a group in memory."""
    made = OneShard(tmp_path / "shard")
    made.append(0, FIRST, SECOND, producer="p")
    made.append(3, [(b"k", b"4")], producer="q")
    made.append(4, [(b"other", b"in memory")])
    made.part.gather()
    yield made
    made.close()


def taken_back(shard: OneShard, group: int, *spans: tuple[int, int]) -> tuple[int, int]:
    changes = shard.store.batch()
    told = put_revocation(changes, shard.store, 0, group, list(spans))
    shard.store.write(changes)
    return told


def numbers(shard: OneShard) -> list[int]:
    return [number for number, _, _ in shard.read()]


@pytest.mark.parametrize(
    ("spans", "told", "left"),
    [
        ([(2, 3)], (1, len(b"k" + b"3333333")), [0, 1, 3, 4]),
        ([(0, 2)], (2, len(b"k" + b"11111" + b"key" + b"22")), [2, 3, 4]),
        ([(0, 3)], (3, len(b"k" + b"11111" + b"key" + b"22" + b"k" + b"3333333")), [3, 4]),
        ([(0, 2), (2, 3)], (3, len(b"k" + b"11111" + b"key" + b"22" + b"k" + b"3333333")), [3, 4]),
    ],
)
def test_records_and_bytes_are_those_of_the_batches_taken_back(
    shard: OneShard, spans: list[tuple[int, int]], told: tuple[int, int], left: list[int]
) -> None:
    assert numbers(shard) == [0, 1, 2, 3, 4]
    assert taken_back(shard, 0, *spans) == told
    assert numbers(shard) == left
    assert taken_back(shard, 0, *spans) == (0, 0), "taking it back again changes nothing"
    assert numbers(shard) == left


def test_a_group_that_is_not_there_has_nothing_to_take_back(shard: OneShard) -> None:
    for group in (1, 4, 9):
        assert taken_back(shard, group, (0, 99)) == (0, 0)
    assert numbers(shard) == [0, 1, 2, 3, 4]


def test_answers_to_producers_go_with_their_batches(shard: OneShard) -> None:
    def answers() -> list[bytes]:
        return list(shard.store.keys("log", rows.PRODUCERS, rows.after(rows.PRODUCERS)))

    assert answers() == [rows.producer("p", 0), rows.producer("p", 2), rows.producer("q", 3)]
    taken_back(shard, 0, (2, 3))
    assert answers() == [rows.producer("p", 0), rows.producer("q", 3)]


def test_an_entry_without_batches_goes_and_one_with_others_stays(shard: OneShard) -> None:
    def entries() -> int:
        return len(list(shard.store.keys("log", rows.ENTRY, rows.after(rows.ENTRY))))

    assert entries() == 1
    taken_back(shard, 0, (0, 3))
    assert entries() == 1
    taken_back(shard, 3, (3, 4))
    assert entries() == 0
    assert list(shard.store.keys("log", rows.RUN, rows.after(rows.RUN))) == []
    assert numbers(shard) == [4]


@pytest.mark.parametrize(("start", "left"), [(0, 3), (1, 2), (2, 2), (3, 1), (4, 0)])
def test_answers_from_before_what_is_dropped_go(shard: OneShard, start: int, left: int) -> None:
    changes = shard.store.batch()
    put_drop(changes, shard.store, 1, start)
    shard.store.write(changes)
    assert len(list(shard.store.keys("log", rows.PRODUCERS, rows.after(rows.PRODUCERS)))) == left
    assert list(shard.store.keys("log", rows.ENTRY, rows.after(rows.ENTRY))) == []
