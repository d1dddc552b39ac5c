"""Deleting and trimming keys on one shard: invisible at once, for good, and removed from the disk afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from shared.errors import DeadlineExceeded
from shared.messages.log import SEQUENCE_MAX, Range
from tests.unit.log_shard import OneShard
from worker.logs import cleaning, reading, rows, starts, trimming

cleaning_event = Event()
Row = tuple[int, bytes, bytes]


class Uncleaned(OneShard):
    """Tests clean it by themselves."""

    def _open(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("worker.logs.cleaner.Cleaner._run", lambda self, ended: None)
            super()._open()


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    made = Uncleaned(tmp_path / "shard")
    yield made
    made.close()


def fill(shard: OneShard) -> None:
    """Numbers 0 to 11, of keys a, b and ab: a third in an entry of its own, a third in another, a third in memory."""
    for group in range(12):
        shard.append(group, [((b"a", b"b", b"ab")[group % 3], b"v%d" % group)])
        if group in (4, 8):
            shard.part._closed = group
            shard.part.gather()


def delete(shard: OneShard, key: bytes, before: int, closed: int = 0) -> int | None:
    return trimming.trim(shard.part, Range(0, 99, 0, before), key, closed, lambda: None)


def clean(shard: OneShard) -> None:
    while cleaning.clean(shard.part):
        pass


def without(key: bytes, before: int) -> list[Row]:
    every = [(n, (b"a", b"b", b"ab")[n % 3], b"v%d" % n) for n in range(12)]
    return [row for row in every if row[1] != key or row[0] >= before]


def stored_keys(shard: OneShard) -> set[bytes]:
    return {rows.key_of(row) for row in shard.store.keys("log", rows.RUN, rows.after(rows.RUN))}


def test_a_lower_deletion_after_the_removal_brings_nothing_back_in_a_crash(shard: OneShard, tmp_path: Path) -> None:
    fill(shard)
    assert delete(shard, b"a", 12, 12) == 4
    shard.part.gather()
    clean(shard)
    assert shard.part.starts.all == {}, "the start is forgotten, but not permanently"
    assert delete(shard, b"a", 2, 12) == 0
    crashed = shard.crashed_into(tmp_path / "crashed")
    try:
        assert crashed.read() == without(b"a", 12)
        clean(crashed)
        crashed.part.flush()
        assert delete(crashed, b"b", 12, 12) == 4 and delete(crashed, b"a", 2, 12) == 0
        assert crashed.read() == [row for row in without(b"a", 12) if row[1] != b"b"]
    finally:
        crashed.close()


@pytest.mark.parametrize("before", [0, 1, 3, 4, 7, 9, 10, 12])
@pytest.mark.parametrize("key", [b"a", b"b", b"ab", b"c"])
def test_records_below_the_start_are_gone_from_every_read_at_once(shard: OneShard, key: bytes, before: int) -> None:
    fill(shard)
    gone = 12 - len(without(key, before))
    assert delete(shard, key, before) == gone
    assert shard.read() == without(key, before)
    assert delete(shard, key, before) == 0, "they have gone already"
    assert shard.read(b"a") == [row for row in without(key, before) if row[1].startswith(b"a")]
    page = reading.scan(shard.part, Range(0, 99, 0, 12), key, 10, True)
    assert page.records.sequences.tolist() == [n for n, k, _ in reversed(without(key, before)) if k == key]


@pytest.mark.parametrize("before", [4, 9, 12])
def test_they_do_not_come_back_with_a_crash_a_gathering_or_a_start(
    shard: OneShard, tmp_path: Path, before: int
) -> None:
    fill(shard)
    delete(shard, b"a", before)
    for how, act in {
        "now": lambda one: None,
        "gathered": lambda one: (setattr(one.part, "_closed", 12), one.part.gather()),
        "cleaned": lambda one: clean(one),
        "flushed": lambda one: one.part.flush(),
    }.items():
        act(shard)
        assert shard.read() == without(b"a", before), how
        crashed = Uncleaned.crashed_into(shard, tmp_path / how)
        assert crashed.read() == without(b"a", before), f"after a crash, {how}"
        crashed.close()


def test_a_later_append_to_the_key_is_seen(shard: OneShard) -> None:
    fill(shard)
    delete(shard, b"a", 12, closed=12)
    shard.append(12, [(b"a", b"new")])
    assert shard.read() == [*without(b"a", 12), (12, b"a", b"new")]
    shard.part._closed = 13
    shard.part.gather()
    clean(shard)
    assert shard.read() == [*without(b"a", 12), (12, b"a", b"new")]
    assert shard.part.counts()["records"] == 9


def test_the_store_gives_up_the_records_and_then_the_start(shard: OneShard) -> None:
    fill(shard)
    delete(shard, b"a", 12)
    assert shard.part.counts()["records"] == 12, "they are still stored"
    clean(shard)
    assert b"a" not in stored_keys(shard)
    assert shard.part.starts.all == {b"a": 12}, "records in memory are below the start"
    shard.part._closed = 12
    shard.part.gather()
    assert b"a" not in stored_keys(shard), "gathering leaves them out"
    assert shard.part.counts()["records"] == len(without(b"a", 12))
    clean(shard)
    assert shard.part.starts.all == {} and shard.store.get("log", rows.start(b"a")) is None
    shard.restart()
    assert shard.read() == without(b"a", 12)
    assert shard.part.counts()["records"] == len(without(b"a", 12))
    sizes = sum(len(key) + len(value) for _, key, value in without(b"a", 12))
    assert shard.part.segments()[0].bytes == sizes


def test_a_gathering_that_began_before_the_deletion_brings_nothing_back(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores records that were no less than their starts when it began, and the key has been looked for already."""
    fill(shard)
    shard.part._closed = 12
    write = shard.store.write

    def written(changes: Any, **how: Any) -> None:
        monkeypatch.undo()
        delete(shard, b"a", 12)
        clean_while_gathering(shard)
        write(changes, **how)

    def clean_while_gathering(shard: OneShard) -> None:
        with shard.part.lock:
            wanted = shard.part.starts.unclean(9)
        shard.part.starts.cleaned(
            wanted, shard.part.starts.gatherings
        )  # as `clean` does, whose writes wait for the gathering

    monkeypatch.setattr(shard.store, "write", written)
    shard.part.gather()
    assert b"a" in stored_keys(shard)
    clean(shard)
    assert shard.read() == without(b"a", 12)
    assert b"a" not in stored_keys(shard)
    shard.restart()
    assert shard.read() == without(b"a", 12)


def test_a_key_that_was_looked_for_before_a_gathering_ended_is_looked_for_again(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look finds nothing, since all is in memory, and is noted when the gathering has stored it."""
    shard.append(0, [(b"a", b"0"), (b"b", b"1")])
    shard.part._closed = 2
    write, find = shard.store.write, cleaning._find
    looked, may_note = Event(), Event()

    def found(*arguments: Any) -> Any:
        result = find(*arguments)
        looked.set()
        assert may_note.wait(10)
        return result

    def written(changes: Any, **how: Any) -> None:
        monkeypatch.setattr(shard.store, "write", write)
        delete(shard, b"a", 2)
        cleaners.append(pool.submit(cleaning.clean, shard.part))
        assert looked.wait(10)
        write(changes, **how)

    cleaners: list[Future[bool]] = []
    monkeypatch.setattr(cleaning, "_find", found)
    monkeypatch.setattr(shard.store, "write", written)
    with ThreadPoolExecutor(1) as pool:
        shard.part.gather()
        may_note.set()
        cleaners[0].result(10)
    clean(shard)
    assert shard.read() == [(1, b"b", b"1")] and stored_keys(shard) == {b"b"}
    shard.restart()
    assert shard.read() == [(1, b"b", b"1")]


def test_a_run_is_cut_where_the_start_is(shard: OneShard) -> None:
    shard.append(0, [(b"k", b"%d" % n) for n in range(10)])
    shard.part._closed = 10
    shard.part.gather()
    assert delete(shard, b"k", 7) == 7
    clean(shard)
    assert shard.read() == [(n, b"k", b"%d" % n) for n in (7, 8, 9)]
    (row,) = shard.store.keys("log", rows.RUN, rows.after(rows.RUN))
    assert rows.sequence_of(row) == 7 and shard.part.starts.all == {}


def test_many_runs_of_many_keys_go(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.logs.gathering.RUN_RECORDS_MAX", 2)
    monkeypatch.setattr(cleaning, "KEYS_A_WRITE", 2)
    monkeypatch.setattr(cleaning, "KEYS_AT_ONCE", 2)
    monkeypatch.setattr(cleaning, "ENTRIES_AT_ONCE", 1)
    for group in range(0, 100, 25):
        shard.append(group, [(b"k%d" % (n % 5), b"%d" % n) for n in range(group, group + 25)], segment=group // 50)
        shard.part._closed = group + 25
        shard.part.gather()
    for n in range(5):
        assert delete(shard, b"k%d" % n, 90) == 18
    left = [(n, b"k%d" % (n % 5), b"%d" % n) for n in range(90, 100)]
    assert shard.read() == left
    clean(shard)
    assert shard.read() == left and shard.part.counts()["records"] == 10 and not shard.part.starts.all
    assert len(list(shard.store.keys("log", rows.RUN, rows.after(rows.RUN)))) == 10, (
        "of two records each, of which one is left"
    )
    assert len(list(shard.store.keys("log", rows.ENTRY, rows.after(rows.ENTRY)))) == 4, "their groups are not settled"


def test_a_read_that_has_begun_meets_no_damage_and_nothing_that_was_gone(shard: OneShard) -> None:
    fill(shard)
    shard.part._closed = 12
    shard.part.gather()
    view = shard.part.view()
    pages = reading._merged(shard.part, view, Range(0, 99, 0, 12), b"", lambda: None)
    first, _, _ = next(pages)
    delete(shard, b"b", 12)
    clean(shard)
    rest = [number for page, _, _ in pages for number in page.sequences.tolist()]
    assert set(rest) <= set(range(12)) and {n for n in range(12) if n % 3 != 1} <= {*first.sequences.tolist(), *rest}
    assert not shard.part.damage.texts("log")

    delete(shard, b"a", 12)
    pages = reading._merged(shard.part, shard.part.view(), Range(0, 99, 0, 12), b"", lambda: None)
    read = next(pages)[0].sequences.tolist()
    clean(shard)
    assert not shard.part.starts.all, "the start is forgotten while the read goes on"
    read += [number for page, _, _ in pages for number in page.sequences.tolist()]
    assert read == [n for n in range(12) if n % 3 == 2]


def test_a_number_is_not_given_again_below_a_start(shard: OneShard) -> None:
    delete(shard, b"a", 77)
    assert shard.part.recover(0, 0, 0)[0] >= 77


def test_a_start_never_falls(shard: OneShard) -> None:
    fill(shard)
    delete(shard, b"a", 7)
    assert delete(shard, b"a", 4) == 0
    assert shard.read() == without(b"a", 7)


def test_too_many_starts_are_refused(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "STARTS_MAX", 1)
    delete(shard, b"a", 7)
    delete(shard, b"a", 8)
    with pytest.raises(Exception, match="1 deleted or trimmed keys of the shard wait"):
        delete(shard, b"b", 7)
    assert shard.read() == []


def test_the_thread_removes_them_by_itself(tmp_path: Path) -> None:
    shard = OneShard(tmp_path / "shard")
    fill(shard)
    shard.part._closed = 12
    shard.part.gather()
    delete(shard, b"a", SEQUENCE_MAX >> 1)
    for _ in range(1000):
        if b"a" not in stored_keys(shard):
            break
        cleaning_event.wait(0.01)
    assert b"a" not in stored_keys(shard)
    shard.close()


def test_records_are_counted_while_others_of_their_entries_are_removed(shard: OneShard) -> None:
    """The cleaner is at work on an earlier deletion, and would meet those of the later one on its way."""
    for group in range(0, 30, 3):
        shard.append(group, [(b"a", b""), (b"b", b""), (b"c", b"")], segment=group // 3)
        shard.part._closed = group + 3
        shard.part.gather()
    assert delete(shard, b"a", 30) == 10

    def counted_again() -> int | None:
        return trimming.trim(shard.part, Range(0, 99, 0, 30), b"b", 0, lambda: clean(shard))

    def clean_and_trim() -> None:
        if b"b" not in shard.part.starts.all:
            return  # nothing is counted yet
        clean(shard)
        assert b"a" not in stored_keys(shard) and b"b" in stored_keys(shard)
        assert counted_again() == 0, "they have gone already"
        clean(shard)
        assert b"b" in stored_keys(shard), "the first count goes on"

    assert trimming.trim(shard.part, Range(0, 99, 0, 30), b"b", 0, clean_and_trim) == 10
    clean(shard)
    assert stored_keys(shard) == {b"c"} and shard.part.starts.all == {}


def test_a_key_is_removed_after_a_count_that_failed(shard: OneShard) -> None:
    fill(shard)

    def late() -> None:
        if shard.part.starts.all:
            raise DeadlineExceeded("too late")

    assert trimming.trim(shard.part, Range(0, 99, 0, 12), b"a", 0, late) is None
    shard.part._closed = 12
    shard.part.gather()
    clean(shard)
    assert b"a" not in stored_keys(shard)
