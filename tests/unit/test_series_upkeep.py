"""The background work of a shard's samples: what waits for what, and which clock it believes."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.errors import DeadlineExceeded, Unavailable
from shared.promql.ast import Matcher
from shared.settings import Settings
from shared.wall_clock import SETTLE_MS, WallClock
from tests.unit.series_shard import FAR_MS, TIMEOUT_S, WINDOW_MS, A, B, Quiet, m
from worker.series import block_upkeep, block_writing, writing
from worker.series.block_upkeep import BlockUpkeep
from worker.series.blocks import retention, seal
from worker.series.blocks.archive import LEFT_OVER
from worker.series.index.texts import TextTable
from worker.series.part import HEAD_OVERRUN_MAX, SeriesPart
from worker.series.sealing import Sealing
from worker.series.services import SeriesServices
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path / "shard")
    yield opened
    opened.close()


# What waits for what.


def test_a_shard_is_sealed_while_another_one_is_merged_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merging, may_end = threading.Event(), threading.Event()

    def long_merge(self: BlockUpkeep, now_ms: int) -> None:
        merging.set()
        may_end.wait(30)

    monkeypatch.setattr(BlockUpkeep, "tend", long_merge)
    own = dataclasses.replace(Settings(), shards=2, workers=1, head_bytes=1 << 13)
    services = SeriesServices(own, TextTable())
    log = WriteAheadLog(tmp_path / "wal").open()
    opened = []
    for number in range(2):
        store = Store(tmp_path / str(number) / "store")
        part = SeriesPart(store, services, LocalObjects(tmp_path / str(number) / "blocks"), log.stream(number, SERIES))
        part.load()
        opened.append((part, store))
    try:
        assert merging.wait(5)
        for part, _ in opened:
            holder = Quiet.__new__(Quiet)
            holder.part = part
            holder.write([(m(job=str(i)), [(t, 1.0) for t in range(50)]) for i in range(50)])
        give_up = time.monotonic() + 10
        while not all(part.counts()["blocks"] for part, _ in opened):
            assert time.monotonic() < give_up, "a seal waits for a merge"
            time.sleep(0.02)
    finally:
        may_end.set()
        for part, store in opened:
            part.close()
            store.close()
        log.close()


def test_writes_and_deletions_are_refused_when_the_head_is_over_its_bound_though_nothing_is_being_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "HOLD_UP_S", 0.05)
    monkeypatch.setitem(Quiet.options, "head_bytes", 1 << 13)
    shard = Quiet(tmp_path)
    accepted = 0
    with pytest.raises(Unavailable, match="wait to be sealed"):
        for i in range(10_000):
            shard.write([(m(job="a"), [(i, 1.0)])])
            accepted += 1
    size, _ = shard.part.contents.head_times()
    assert HEAD_OVERRUN_MAX << 13 < size < (HEAD_OVERRUN_MAX + 1) << 13
    with pytest.raises(Unavailable, match="sealed"):
        shard.part.delete([[Matcher("job", "=", "a")]], 5, 6, TIMEOUT_S)
    with pytest.MonkeyPatch.context() as patch:  # a head that is as large as its bound is not over it
        patch.setattr(shard.part, "_head_bytes_max", size / HEAD_OVERRUN_MAX)
        shard.write([(m(job="a"), [(accepted, 1.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(accepted, 1.0)])])
    assert len(shard.samples()[A]) == accepted + 1
    shard.close()


def test_samples_whose_seal_has_failed_count_towards_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "HOLD_UP_S", 0.0)
    monkeypatch.setitem(Quiet.options, "head_bytes", 1 << 13)
    shard = Quiet(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    accepted = 0
    with monkeypatch.context() as patch:
        patch.setattr(block_writing, "write_blocks", refuse)
        for _ in range(3):
            with pytest.raises(Unavailable, match=f"wait to be sealed, and {HEAD_OVERRUN_MAX << 13} may"):
                for _ in range(10_000):
                    shard.write([(m(job="a"), [(accepted + i, 1.0) for i in range(20)])])
                    accepted += 20
            with pytest.raises(OSError, match="No space"):
                shard.seal()
            assert shard.part.contents.unsealed_bytes() < (HEAD_OVERRUN_MAX + 1) << 13
    shard.seal()
    shard.write([(m(job="a"), [(accepted, 1.0)])])
    assert len(shard.samples()[A]) == accepted + 1
    shard.close()


def test_a_head_is_also_over_its_bound_after_deletions_alone_and_after_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion writes what remains of a series again, and its old memory is freed only with the head."""
    monkeypatch.setattr(writing, "HOLD_UP_S", 0.0)
    monkeypatch.setitem(Quiet.options, "head_bytes", 1 << 13)
    shard = Quiet(tmp_path)
    shard.write([(m(job="a"), [(i, 1.0) for i in range(1000)])])
    with pytest.raises(Unavailable, match="wait to be sealed"):
        for i in range(100):
            shard.part.delete([[Matcher("job", "=", "a")]], i, i, TIMEOUT_S)
    with pytest.raises(Unavailable, match="wait to be sealed"):
        shard.write([(m(job="a"), [(1000, 1.0)])])
    shard.close()
    monkeypatch.setitem(Quiet.options, "head_bytes", 1 << 12)
    shard.open()
    with pytest.raises(Unavailable, match="wait to be sealed"):
        shard.write([(m(job="a"), [(1000, 1.0)])])
    shard.close()


def test_a_write_waits_for_a_head_over_its_bound_that_is_sealed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "HOLD_UP_S", 20.0)
    monkeypatch.setitem(Quiet.options, "head_bytes", 1 << 12)
    shard = Quiet(tmp_path)
    shard.write([(m(job="a"), [(i, 1.0) for i in range(0, 4000, 2)])])
    asked = threading.Event()
    shard.part._upkeep.wake = asked.set  # type: ignore[method-assign]

    def seal_when_asked() -> None:
        assert asked.wait(10)
        shard.seal()

    sealing = threading.Thread(target=seal_when_asked)
    sealing.start()
    shard.write([(m(job="a"), [(1, 1.0)])])
    sealing.join()
    assert len(shard.samples()[A]) == 2001
    shard.close()


def test_what_is_sealed_during_a_merge_lies_above_what_was_merged(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.seal_each((5, 1.0), (6, 1.0))
    replace = shard.part._upkeep.blocks._replace

    def sealed_meanwhile(old: list, rows: list) -> None:
        shard.write([(m(job="a"), [(1, 2.0), (5, 2.0)])])
        shard.seal()
        replace(old, rows)

    monkeypatch.setattr(shard.part._upkeep.blocks, "_replace", sealed_meanwhile)
    assert shard.part._upkeep.blocks._compact(FAR_MS)
    monkeypatch.undo()
    expected = {A: [(1, 2.0), (5, 2.0), (6, 1.0)]}
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected
    shard.compact()
    assert shard.samples() == expected


def test_nothing_is_merged_while_a_head_waits_to_be_sealed(shard: Quiet) -> None:
    shard.seal_each((5, 1.0), (6, 1.0))
    shard.write([(m(job="a"), [(1, 2.0), (5, 2.0)])])
    shard.part.contents.freeze(shard.part.journal.next_sequence)
    assert shard.compact() == 0
    shard.seal()
    assert shard.compact() == 1
    assert shard.samples() == {A: [(1, 2.0), (5, 2.0), (6, 1.0)]}


# The clock.


def test_a_forward_jump_of_the_clock_drops_nothing_and_what_is_past_its_time_goes_a_window_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Quiet.options, "retention_ms", 5000)
    shard = Quiet(tmp_path)
    monkeypatch.setattr(block_upkeep, "DROP_EVERY_S", 0.0)
    monkeypatch.setattr(shard.part._upkeep.blocks, "_compact", lambda now_ms: False)
    mono_s = [1000.0]
    monkeypatch.setattr(block_upkeep, "time", SimpleNamespace(monotonic=lambda: mono_s[0], time=time.time))
    shard.part._upkeep.blocks._clock = WallClock()
    times = [(window * WINDOW_MS + at, 1.0) for window in range(10) for at in (1, 2)]
    shard.seal_each(*times)
    tend, settle_s = BlockUpkeep.tend.__get__(shard.part._upkeep.blocks), SETTLE_MS / 1000
    tend(10_000)
    mono_s[0] += 1
    tend(FAR_MS)
    assert len(shard.samples()[A]) == 20
    mono_s[0] += settle_s
    tend(FAR_MS + SETTLE_MS)
    assert shard.samples() == {A: times[2:]}
    tend(FAR_MS + SETTLE_MS)
    assert shard.samples() == {A: times[4:]}
    monkeypatch.undo()
    shard.close()


def test_a_clock_that_was_ahead_for_a_while_does_not_keep_later_windows_from_being_sealed(shard: Quiet) -> None:
    tick = Sealing.tick.__get__(shard.part._upkeep.sealing)
    shard.write([(m(job="a"), [(1, 1.0)])])
    tick(FAR_MS)
    shard.write([(m(job="a"), [(5000, 1.0)])])
    tick(5500)
    tick(8000)
    assert shard.part.counts()["head_samples"] == 0


def test_the_oldest_blocks_go_while_all_are_larger_than_there_is_space_for(shard: Quiet) -> None:
    shard.seal_each((1, 1.0), (2000, 2.0), (4000, 3.0))
    blocks = shard.part.contents.layers.blocks
    sizes = [block.row.size_bytes for block in blocks]
    assert retention.surplus(blocks, 0) == []
    assert retention.surplus(blocks, sum(sizes)) == []
    assert retention.surplus(blocks, sum(sizes) - 1) == list(blocks[:1])
    assert retention.surplus(blocks, sizes[-1] - 1) == list(blocks)


@pytest.mark.parametrize("limit", ["age", "bytes"])
def test_retention_brings_no_replaced_value_back(shard: Quiet, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    times = [window * WINDOW_MS + 100 for window in range(4)]
    shard.write([(m(job="a"), [(t, 1.0) for t in times])])
    shard.seal()
    assert shard.compact(10_000) == 1
    shard.seal_each((times[0], 2.0))
    assert shard.compact() == 0
    wide, correction = shard.part.contents.layers.blocks
    replaced = {A: [(times[0], 2.0), *((t, 1.0) for t in times[1:])]}
    assert shard.samples() == replaced
    if limit == "bytes":
        monkeypatch.setitem(Quiet.options, "retention_bytes", wide.row.size_bytes + correction.row.size_bytes - 1)
        shard.reopen()
        shard.part._upkeep.blocks._drop(None)
        assert shard.samples() == {A: [(times[0], 2.0)]}
        return
    monkeypatch.setitem(Quiet.options, "retention_ms", 1000)
    shard.reopen()
    shard.part._upkeep.blocks._drop(times[3] + 1000)
    assert shard.samples() == replaced
    shard.part._upkeep.blocks._drop(times[3] + 1001)
    assert [points for points in shard.samples().values() if points] == []


def test_scattered_times_hold_others_back_for_a_bounded_time_and_bring_no_replaced_value_back(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide block reaches from the present far into the future. Blocks above it are dropped by their age all the same,
    and those that correct samples of it not before these samples."""
    held_ms = retention.HELD_WINDOWS_MAX * WINDOW_MS
    present, far = 1000 * WINDOW_MS, 1 << 47
    own = [present + window * WINDOW_MS for window in range(8)]
    monkeypatch.setattr(seal, "WINDOWS_MAX", 2)
    shard.write([(m(job="a"), [(t, 1.0) for t in [*own, far, far + 10 * WINDOW_MS, far * 3 // 2]])])
    shard.seal()
    widest = max(block.row.latest_ms - block.row.earliest_ms for block in shard.part.contents.layers.blocks)
    assert widest > 1000 * held_ms
    for window, t in enumerate(own):
        shard.write([(m(job="a"), [(t, 2.0)]), (m(job="b"), [(t + 1, float(window))])])
        shard.seal()
    monkeypatch.setitem(Quiet.options, "retention_ms", WINDOW_MS)
    shard.reopen()
    end_ms = own[-1] + WINDOW_MS + held_ms + 2 * WINDOW_MS
    for now_ms in range(present, end_ms, WINDOW_MS):
        shard.part._upkeep.blocks._drop(now_ms)
        shard.compact(now_ms)
        left = shard.samples()
        assert {value for t, value in left.get(A, []) if t in own} <= {2.0}
    assert not left.get(B)
    assert [t for t, _ in left[A]] == [far, far + 10 * WINDOW_MS, far * 3 // 2]


def wide_and_held(shard: Quiet) -> int:
    """A wide block, and one above it that it holds back. Returns a time at which it has held it back for too long."""
    shard.write([(m(job="a"), [(0, 1.0), (1 << 40, 1.0)])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard.part._upkeep.sealing, "_window_ms", 1 << 41)
        shard.seal()
    shard.seal_each((0, 2.0))
    shard.part._upkeep.blocks._settings = dataclasses.replace(shard.part._settings, retention_ms=WINDOW_MS)
    return (retention.HELD_WINDOWS_MAX + 2) * WINDOW_MS


def test_no_block_is_split_while_background_work_is_put_off(shard: Quiet) -> None:
    now_ms, background = wide_and_held(shard), shard.part.services.background
    background.pause()
    shard.part._upkeep.blocks._drop(now_ms)
    assert len(shard.part.contents.layers.blocks) == 2
    background._until = 0.0
    shard.part._upkeep.blocks._drop(now_ms)
    assert shard.samples()[A] == [(1 << 40, 1.0)]


@pytest.mark.parametrize("step", ["the later part", "the rows"])
def test_a_split_that_fails_leaves_no_files(shard: Quiet, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    now_ms, expected, files = wide_and_held(shard), shard.samples(), shard.files()
    write_blocks, calls = block_writing.write_blocks, list[int]()

    def fails_the_second_time(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write_blocks(*arguments, **more)

    def refuse(*_: object) -> None:
        raise Unavailable("the store is behind with its compaction; try again later")

    with monkeypatch.context() as patch:
        if step == "the rows":
            patch.setattr(shard.part.archive, "delete", refuse)
        else:
            patch.setattr(block_writing, "write_blocks", fails_the_second_time)
        with pytest.raises((OSError, Unavailable)):
            shard.part._upkeep.blocks._drop(now_ms)
    assert len(shard.files()) > len(files)
    shard.part.archive.forget()
    assert shard.files() == files and shard.samples() == expected
    shard.part._upkeep.blocks._drop(now_ms)
    assert shard.samples()[A] == [(1 << 40, 1.0)]


def test_the_selection_of_a_deletion_ends_with_its_time(shard: Quiet) -> None:
    shard.seal_each((1, 1.0))
    with pytest.raises(DeadlineExceeded, match="delete"):
        shard.part.delete([[Matcher("job", "=", "a")]], 0, 9, -1.0)
    assert shard.samples() == {A: [(1, 1.0)]}


def test_a_file_that_is_being_written_stays_announced_whatever_is_tidied_meanwhile(shard: Quiet) -> None:
    archive, store = shard.part.archive, shard.store

    def announced() -> list[bytes]:
        return list(store.keys("blocks", LEFT_OVER, LEFT_OVER + b"\xff"))

    archive.announce(["coming"])
    archive.forget()
    assert announced() == [LEFT_OVER + b"coming"]
    archive.give_up(["coming"])
    archive.forget()
    assert announced() == []


def test_heads_are_sealed_also_where_the_threads_may_not_have_their_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an unprivileged user has started the service with a lower one."""

    def refuse(*_: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(Quiet, "options", {"head_bytes": 4096})
    shard = Quiet(tmp_path)
    del shard.part._upkeep.sealing.tick
    shard.write([(m(job=str(i)), [(n, float(n)) for n in range(100)]) for i in range(50)])
    give_up = time.monotonic() + 20
    while not shard.part.counts()["blocks"] and time.monotonic() < give_up:
        time.sleep(0.01)
    assert shard.part.counts()["blocks"]
    shard.close()
