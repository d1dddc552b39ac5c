"""Policies on one shard: of each key the newest records stay, and those of the longest prefix's policy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shared.messages.log import KeyPolicy, PoliciesBody
from tests.unit.log_shard import OneShard
from tests.unit.test_log_trimming import Uncleaned, clean
from worker.logs import entries, policies

Row = tuple[int, bytes, bytes]
LATEST = [KeyPolicy(b"", 1)]


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    made = Uncleaned(tmp_path / "shard")
    yield made
    made.close()


def run(
    shard: OneShard,
    wanted: Sequence[KeyPolicy],
    upto: int,
    is_new: bool,
    closed: int = 0,
    too_old: int = 0,
    expired: int = 0,
) -> bool:
    numbers = [too_old] * len(wanted), [expired] * len(wanted)
    body = PoliciesBody(list(wanted), numbers[0], upto, closed or upto, is_new, numbers[1])
    return policies.run(shard.part, body)


def apply(shard: OneShard, wanted: Sequence[KeyPolicy], upto: int, too_old: int = 0, expired: int = 0) -> int:
    """A whole pass; returns how many slices it took."""
    slices, more = 0, True
    while more:
        more = run(shard, wanted, upto, slices == 0, too_old=too_old, expired=expired)
        slices += 1
        clean(shard)
    return slices


def expected(every: Sequence[Row], wanted: Sequence[KeyPolicy]) -> list[Row]:
    kept = []
    for key in {row[1] for row in every}:
        matching = [one for one in wanted if key.startswith(one.prefix)]
        own = [row for row in every if row[1] == key]
        newest = max(matching, key=lambda one: len(one.prefix)).keep_newest if matching else len(own)
        kept += own[-newest:]
    return sorted(kept)


def test_the_newest_record_of_each_key_stays(shard: OneShard) -> None:
    for group in range(0, 20, 5):
        shard.append(group, [(b"k%d" % (n % 3), b"%d" % n) for n in range(group, group + 5)])
    assert apply(shard, LATEST, 20) == 1
    assert shard.read() == [(17, b"k2", b"17"), (18, b"k0", b"18"), (19, b"k1", b"19")]
    assert shard.part.counts()["records"] == 3


@pytest.mark.parametrize("seed", range(8))
def test_passes_between_appends_keep_what_one_at_the_end_would(
    shard: OneShard, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("worker.logs.gathering.RUN_RECORDS_MAX", 3)
    if seed % 2:
        monkeypatch.setattr(policies, "KEYS_A_SLICE", 1)
    wanted = [KeyPolicy(b"a", 1), KeyPolicy(b"ab", 3), KeyPolicy(b"abc", 5), KeyPolicy(b"b", 2)]
    every: list[Row] = []
    number = 0
    for _ in range(30):
        group = [(chance.choice((b"a", b"aa", b"ab", b"abx", b"abc", b"b", b"c")), b"%d" % chance.randrange(99))
                 for _ in range(chance.randint(1, 6))]  # fmt: skip
        shard.append(number, group, segment=number // 40)
        every += [(number + at, key, value) for at, (key, value) in enumerate(group)]
        number += len(group)
        if chance.random() < 0.3:
            apply(shard, wanted, number)
            assert shard.read() == expected(every, wanted)
        if chance.random() < 0.1:
            shard.restart()
    apply(shard, wanted, number)
    assert shard.read() == expected(every, wanted)


def test_records_that_are_not_settled_make_nothing_go(shard: OneShard) -> None:
    shard.append(0, [(b"k", b"old")])
    shard.append(1, [(b"k", b"new")])
    run(shard, LATEST, 1, True, closed=2)
    clean(shard)
    assert [number for number, _, _ in shard.read()] == [0, 1]
    apply(shard, LATEST, 2)
    assert [number for number, _, _ in shard.read()] == [1]


def test_a_pass_looks_only_at_what_came_since_the_last_one(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.append(0, [(b"k%d" % n, b"v") for n in range(5)])
    apply(shard, LATEST, 5)
    looked_at = []
    start_before = policies._start_before
    monkeypatch.setattr(
        policies, "_start_before", lambda part, key, *rest: looked_at.append(key) or start_before(part, key, *rest)
    )
    shard.restart()
    apply(shard, LATEST, 5)
    assert looked_at == [], "nothing is new, also after a start"
    shard.append(5, [(b"k1", b"new")])
    apply(shard, LATEST, 6)
    assert looked_at == [b"k1"] and len(shard.read()) == 5
    apply(shard, [KeyPolicy(b"", 2)], 6)
    assert set(looked_at) == {b"k%d" % n for n in range(5)}, "another policy begins with the first entry"


def test_a_pass_reads_no_entry_that_an_earlier_one_has_passed(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, read = entries.unpacked, []
    monkeypatch.setattr(entries, "unpacked", lambda value: read.append(unpacked(value)) or read[-1])
    wanted = [KeyPolicy(b"a", 0, 1000), KeyPolicy(b"b", 2, 0), KeyPolicy(b"c", 0, 2000)]
    for number in range(30):
        shard.append(number, [((b"a", b"b", b"c")[number % 3], b"v")], segment=number // 20)
        shard.part.closed_below(number + 1)
        shard.part.gather()
    apply(shard, wanted, 30, too_old=25, expired=25)
    left = len(shard.read())
    read.clear()
    assert not run(shard, wanted, 30, True, too_old=25, expired=25)
    assert len(read) <= 3, "of each goal of a policy, the entry that stops it"
    assert len(shard.read()) == left


@pytest.mark.parametrize(("one", "left"), [(KeyPolicy(b"", 1), [0, 2, 3]), (KeyPolicy(b"", 0, 1000), [])])
def test_records_that_are_gathered_after_a_crash_together_with_those_of_an_earlier_pass_are_looked_at(
    shard: OneShard, tmp_path: Path, one: KeyPolicy, left: list[int]
) -> None:
    shard.append(0, [(b"a", b"0"), (b"b", b"1")])
    assert not run(shard, [one], 2, True, too_old=2)
    crashed = shard.crashed_into(tmp_path / "crashed")
    try:
        assert next(entries.newest_first(crashed.store), None) is None, "the gathering of the pass is undone"
        crashed.append(2, [(b"b", b"2"), (b"c", b"3")])
        assert not run(crashed, [one], 4, True, too_old=4)
        assert [number for number, _, _ in crashed.read()] == left
    finally:
        crashed.close()


def test_a_pass_waits_while_the_removal_is_behind(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "WAITING_MAX", 1)
    monkeypatch.setattr(policies, "KEYS_A_SLICE", 2)
    shard.append(0, [(b"k%d" % (n % 4), b"v") for n in range(12)])
    assert run(shard, LATEST, 12, True)
    assert run(shard, LATEST, 12, False) and len(shard.part.starts) == 2
    clean(shard)
    while run(shard, LATEST, 12, False):
        clean(shard)
    assert len(shard.read()) == 4


def test_what_is_too_old_goes_as_it_becomes_so(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [KeyPolicy(b"a", 0, 1000), KeyPolicy(b"ab", 1, 0), KeyPolicy(b"b", 2, 1000)]
    every = [(n, (b"a", b"ab", b"b", b"c")[n % 4], b"%d" % n) for n in range(40)]
    for group in range(0, 40, 10):
        shard.append(group, [(key, value) for _, key, value in every[group : group + 10]], segment=group // 20)
        shard.part._closed = group + 10
        shard.part.gather()
    for too_old in (0, 5, 10, 27, 40):
        apply(shard, wanted, 40, too_old)
        left = expected(every, [KeyPolicy(b"ab", 1), KeyPolicy(b"b", 2)])
        assert shard.read() == [row for row in left if row[0] >= too_old or row[1] in (b"ab", b"c")]
        shard.restart()
    looked_at = []
    aged_of = policies._aged_of
    monkeypatch.setattr(policies, "_aged_of", lambda *args: looked_at.append(args[2]) or aged_of(*args))
    apply(shard, wanted, 40, 40)
    assert looked_at == [], "the positions are stored"
