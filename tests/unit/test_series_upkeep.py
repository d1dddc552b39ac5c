"""The background work of a shard's samples: what it may drop, delete and rewrite, and what waits for what."""

from __future__ import annotations

import dataclasses
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shared.config import Settings
from shared.errors import DeadlineExceeded, Unavailable
from shared.promql.ast import Matcher
from tests.unit.series_shard import EVERYTHING, FAR_MS, TIMEOUT_S, WINDOW_MS, Quiet, m
from tests.unit.test_series_blocks import A
from worker.damage import DamageReport
from worker.series import part as part_module
from worker.series import upkeep
from worker.series.blocks import retention
from worker.series.blocks.archive import LEFT_OVER
from worker.series.blocks.block import BlockWriter
from worker.series.blocks.retention import SETTLE_MS, WallClock
from worker.series.blocks.seal import WINDOWS_MAX
from worker.series.index.texts import TextTable
from worker.series.part import HEAD_OVERRUN_MAX, SeriesPart
from worker.series.services import SeriesServices
from worker.series.upkeep import Upkeep
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path / "shard")
    yield opened
    opened.close()


def reports(shard: Quiet) -> list[str]:
    return shard.part._damage.texts("series")


def seal_all(shard: Quiet, *points: tuple[int, float]) -> None:
    """A block for each point."""
    for point in points:
        shard.write([(m(job="a"), [point])])
        shard.seal()


# Files and rows.


def test_a_block_whose_row_is_lost_is_set_aside_and_said_at_every_start_until_its_file_is_deleted(shard: Quiet) -> None:
    seal_all(shard, (1, 1.0), (5000, 2.0))
    lost = shard.part.contents.layers.blocks[0]
    batch = shard.store.batch()
    shard.part.archive.delete(batch, [])
    batch.delete("blocks", b"block/" + lost.row.name.encode())
    shard.store.write(batch)
    for _ in range(2):
        shard.reopen()
        aside = Path(lost.location).with_name(Path(lost.location).name + ".damaged")
        assert aside.exists() and not Path(lost.location).exists()
        [text] = reports(shard)
        assert str(aside) in text
        assert shard.samples() == {A: [(5000, 2.0)]}
    Path(lost.location).write_bytes(b"again")
    shard.reopen()
    assert Path(lost.location).with_name(Path(lost.location).name + ".damaged-2").read_bytes() == b"again"
    assert len(reports(shard)) == 2
    for path in shard.files():
        if "damaged" in path.name:
            path.unlink()
    shard.reopen()
    assert reports(shard) == []


def test_what_a_killed_merge_left_is_removed_at_the_start_and_not_reported(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal_all(shard, (1, 1.0), (2, 2.0))
    merged = [Path(block.location) for block in shard.part.contents.layers.blocks]
    # Killed before the files are deleted.
    monkeypatch.setattr("worker.series.blocks.block.Block.condemn", lambda self: None)
    assert shard.compact() == 1
    assert all(path.exists() for path in merged)
    shard.reopen()
    assert not any(path.exists() for path in merged)
    assert reports(shard) == []
    assert shard.samples() == {A: [(1, 1.0), (2, 2.0)]}


def test_files_of_a_seal_that_was_killed_before_its_rows_are_removed_at_the_start(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    monkeypatch.setattr(shard.part.archive, "put", lambda batch, rows: (_ for _ in ()).throw(Unavailable("killed")))
    with pytest.raises(Unavailable):
        shard.seal()
    assert [path.suffix for path in shard.files()] == [".block"]
    shard.reopen()
    assert (shard.files(), reports(shard)) == ([], [])
    assert shard.samples() == {A: [(1, 1.0)]}


def test_rows_of_left_over_files_are_forgotten_when_the_files_are_gone(shard: Quiet) -> None:
    seal_all(shard, (1, 1.0), (2, 2.0))
    shard.compact()
    assert len(list(shard.store.keys("blocks", b"leftover/"))) == 2
    shard.part.archive.forget()
    assert list(shard.store.keys("blocks", b"leftover/")) == []


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_block_without_its_file_is_said_from_the_start_and_its_row_stays(shard: Quiet, damage: str) -> None:
    seal_all(shard, (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5000, 5.0))
    broken = shard.part.contents.layers.blocks[1]
    if damage == "missing":
        Path(broken.location).rename(shard.path / "elsewhere")
    else:
        Path(broken.location).write_bytes(Path(broken.location).read_bytes()[:-1])
    shard.reopen()
    [text] = shard.part.damage(2, 2)
    assert broken.row.name in text
    assert shard.part.damage(3, 9999) == []
    shard.compact()
    assert shard.samples() == {A: [(1, 1.0), (3, 3.0), (4, 4.0), (5000, 5.0)]}
    assert b"block/" + broken.row.name.encode() in set(shard.store.keys("blocks", b"block/"))
    if damage == "missing":
        (shard.path / "elsewhere").rename(Path(broken.location))
        shard.reopen()
        assert shard.part.damage(*EVERYTHING) == []
        assert shard.samples() == {A: [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5000, 5.0)]}


def test_merging_over_a_broken_block_keeps_it_and_loses_nothing_of_its_neighbours(shard: Quiet) -> None:
    seal_all(shard, *((t, float(t)) for t in (1, 2, 3, 4, 1001, 1002, 1003, 1004)))
    broken = shard.part.contents.layers.blocks[2]
    whole = Path(broken.location).read_bytes()
    Path(broken.location).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(upkeep.CorruptBlock) as raised:
        shard.compact()
    shard.part.contents.set_aside(raised.value.block, raised.value.reason)
    shard.compact()
    assert shard.samples() == {A: [(t, float(t)) for t in (1, 2, 4, 1001, 1002, 1003, 1004)]}
    assert [text for text in shard.part.damage(3, 3) if broken.row.name in text]
    assert shard.part.damage(4, 9999) == []
    Path(broken.location).write_bytes(whole)
    shard.reopen()
    assert shard.samples() == {A: [(t, float(t)) for t in (1, 2, 3, 4, 1001, 1002, 1003, 1004)]}


def test_a_deletion_reaches_what_a_broken_block_has_when_it_comes_back(shard: Quiet) -> None:
    seal_all(shard, (1, 1.0))
    [block] = shard.part.contents.layers.blocks
    Path(block.location).rename(shard.path / "elsewhere")
    shard.reopen()
    assert shard.part.delete([[Matcher("job", "=", "a")]], 0, 9, TIMEOUT_S) == 0
    shard.compact()
    (shard.path / "elsewhere").rename(Path(block.location))
    shard.reopen()
    assert [points for points in shard.samples().values() if points] == []


@pytest.mark.parametrize("is_full_at_the_start", [False, True])
def test_a_deletion_that_a_full_disk_has_cut_brings_no_older_value_back(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, is_full_at_the_start: bool
) -> None:
    seal_all(shard, (1, 1.0))
    shard.write([(m(job="a"), [(1, 2.0), (2, 2.0)])])
    assert shard.samples() == {A: [(1, 2.0), (2, 2.0)]}

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(Store, "write", refuse)
        with pytest.raises(Unavailable):
            shard.part.delete([[Matcher("job", "=", "a")]], 0, 9, TIMEOUT_S)
        if is_full_at_the_start:
            shard.reopen()
            assert [points for points in shard.samples().values() if points] == []
    for _ in range(2):
        shard.reopen()
        assert [points for points in shard.samples().values() if points] == []
    shard.write([(m(job="a"), [(1, 3.0)])])
    shard.seal()
    shard.reopen()
    assert shard.samples() == {A: [(1, 3.0)]}


def test_series_are_not_forgotten_while_a_block_is_missing_or_set_aside(shard: Quiet) -> None:
    shard.write([(m(job=str(i)), [(1, 1.0)]) for i in range(20)])
    shard.seal()
    [block] = shard.part.contents.layers.blocks
    batch = shard.store.batch()
    shard.part._upkeep.ask_for_sweep(batch)
    shard.store.write(batch)
    Path(block.location).rename(shard.path / "elsewhere")
    shard.reopen()
    assert shard.part.counts()["series"] == 20
    (shard.path / "elsewhere").rename(Path(block.location))
    batch = shard.store.batch()
    batch.delete("blocks", b"block/" + block.row.name.encode())
    shard.store.write(batch)
    shard.reopen()
    assert shard.part.counts()["series"] == 20


def test_files_are_private_and_on_the_disk_before_a_row_names_them(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename, write = os.fsync, os.rename, shard.store.write

    def synced(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append("sync directory" if path.name == "blocks" else "sync file" if path.suffix == ".writing" else "")
        fsync(descriptor)

    def renamed(old: str, new: Path) -> None:
        steps.append("rename")
        rename(old, new)

    def written(batch: object, *, durable: bool = False, logged: bool = True) -> None:
        steps.append("rows, durable" if durable else "rows")
        write(batch, durable=durable, logged=logged)  # type: ignore[arg-type]

    shard.write([(m(job="a"), [(1, 1.0)])])
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(shard.store, "write", written)
    shard.seal()
    monkeypatch.undo()
    own = [step for step in steps if step]
    assert own == ["sync file", "rows, durable", "rename", "sync directory", "rows, durable"]
    [block] = shard.files()
    assert stat.S_IMODE(block.stat().st_mode) == 0o600
    assert stat.S_IMODE(block.parent.stat().st_mode) == 0o700


# What waits for what.


def test_a_shard_is_sealed_while_another_one_is_merged_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merging, may_end = threading.Event(), threading.Event()

    def long_merge(self: Upkeep, now_ms: int) -> None:
        merging.set()
        may_end.wait(30)

    monkeypatch.setattr(Upkeep, "_tend", long_merge)
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
    monkeypatch.setattr(part_module, "HOLD_UP_S", 0.05)
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
    shard.seal()
    shard.write([(m(job="a"), [(accepted, 1.0)])])
    assert len(shard.samples()[A]) == accepted + 1
    shard.close()


def test_a_write_waits_for_a_head_over_its_bound_that_is_sealed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "HOLD_UP_S", 20.0)
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
    seal_all(shard, (5, 1.0), (6, 1.0))
    replace = shard.part._upkeep._replace

    def sealed_meanwhile(old: list, rows: list) -> None:
        shard.write([(m(job="a"), [(1, 2.0), (5, 2.0)])])
        shard.seal()
        replace(old, rows)

    monkeypatch.setattr(shard.part._upkeep, "_replace", sealed_meanwhile)
    assert shard.part._upkeep._compact(FAR_MS)
    monkeypatch.undo()
    expected = {A: [(1, 2.0), (5, 2.0), (6, 1.0)]}
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected
    shard.compact()
    assert shard.samples() == expected


def test_nothing_is_merged_while_a_head_waits_to_be_sealed(shard: Quiet) -> None:
    seal_all(shard, (5, 1.0), (6, 1.0))
    shard.write([(m(job="a"), [(1, 2.0), (5, 2.0)])])
    shard.part.contents.freeze(shard.part.journal.next_sequence)
    assert shard.compact() == 0
    shard.seal()
    assert shard.compact() == 1
    assert shard.samples() == {A: [(1, 2.0), (5, 2.0), (6, 1.0)]}


# The clock.


def test_a_clock_that_jumps_is_not_believed_before_two_readings_a_period_apart_agree() -> None:
    clock = WallClock()
    assert not clock.believed(1_000_000, 0)
    assert not clock.believed(1_000_000 + SETTLE_MS - 1, SETTLE_MS - 1)
    assert clock.believed(1_000_000 + SETTLE_MS, SETTLE_MS)
    year_ms = 365 * 86_400_000
    for later_ms in (1_000, 60_000, SETTLE_MS // 2):
        assert not clock.believed(1_000_000 + SETTLE_MS + year_ms + later_ms, SETTLE_MS + later_ms)
    assert clock.believed(1_000_000 + 3 * SETTLE_MS + year_ms, 3 * SETTLE_MS)
    assert not clock.believed(1_000_000 + 3 * SETTLE_MS + 1_000, 3 * SETTLE_MS + 1_000)


def test_a_clock_that_runs_ten_times_too_fast_is_never_believed() -> None:
    clock = WallClock()
    assert not any(clock.believed(10 * ms, ms) for ms in range(0, 3 * SETTLE_MS, 1000))


def test_a_clock_that_is_slewed_is_believed() -> None:
    clock = WallClock()
    readings = [clock.believed(int(1.0005 * ms), ms) for ms in range(0, 3 * SETTLE_MS, 1000)]
    assert all(readings[SETTLE_MS // 1000 :])


def test_a_forward_jump_of_the_clock_drops_nothing_and_what_is_past_its_time_goes_a_window_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Quiet.options, "retention_ms", 5000)
    shard = Quiet(tmp_path)
    monkeypatch.setattr(upkeep, "DROP_EVERY_S", 0.0)
    monkeypatch.setattr(shard.part._upkeep, "_compact", lambda now_ms: False)
    mono_s = [1000.0]
    monkeypatch.setattr(upkeep, "time", SimpleNamespace(monotonic=lambda: mono_s[0], time=time.time))
    shard.part._upkeep._clock = WallClock()
    times = [(window * WINDOW_MS + at, 1.0) for window in range(10) for at in (1, 2)]
    seal_all(shard, *times)
    tend, settle_s = Upkeep._tend.__get__(shard.part._upkeep), SETTLE_MS / 1000
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
    tick = Upkeep._tick.__get__(shard.part._upkeep)
    shard.write([(m(job="a"), [(1, 1.0)])])
    tick(FAR_MS)
    shard.write([(m(job="a"), [(5000, 1.0)])])
    tick(5500)
    tick(8000)
    assert shard.part.counts()["head_samples"] == 0


# Windows.


def test_no_block_spans_more_than_its_window_and_full_windows_have_one_each(shard: Quiet) -> None:
    dense = [(window * WINDOW_MS + at, 1.0) for window in range(5000, 5005) for at in range(0, 1000, 10)]
    sparse = [(window * WINDOW_MS, 2.0) for window in range(0, 20_000, 2)]
    shard.write([(m(job="a"), dense), (m(job="b"), sparse)])
    started = time.monotonic()
    shard.seal()
    assert time.monotonic() - started < 5
    rows = [block.row for block in shard.part.contents.layers.blocks]
    assert len(rows) <= WINDOWS_MAX
    spans = {row.earliest_ms // WINDOW_MS for row in rows if row.latest_ms // WINDOW_MS == row.earliest_ms // WINDOW_MS}
    assert set(range(5000, 5005)) <= spans
    assert sum(len(points) for points in shard.samples().values()) == len(dense) + len(sparse)
    for start, end in ((5_000_000, 5_002_000), (123_000, 130_000)):
        expected = [(t, v) for t, v in sparse if start <= t <= end]
        assert dict(shard.samples(Matcher("job", "=", "b"), window=(start, end)).items()) == {
            (("__name__", "m"), ("job", "b")): expected
        }


def test_a_wide_block_is_not_written_again_whenever_a_window_within_it_is_merged(shard: Quiet) -> None:
    sparse = [(window * 7 * WINDOW_MS, 2.0) for window in range(2000)]
    shard.write([(m(job="b"), sparse)])
    shard.seal()
    blocks = shard.part.contents.layers.blocks
    wide = {block.row.name for block in blocks if block.row.latest_ms - block.row.earliest_ms > 64 * WINDOW_MS}
    assert wide
    for number in range(40):
        shard.write([(m(job="a"), [(5_000_000 + number * 500, 1.0)])])
        shard.seal()
        shard.compact()
    assert wide <= {block.row.name for block in shard.part.contents.layers.blocks}
    assert len(shard.part.contents.layers.blocks) < WINDOWS_MAX + 16


def test_what_is_merged_stays_below_a_wide_block_that_is_newer(shard: Quiet) -> None:
    seal_all(shard, (5, 1.0), (6, 1.0))
    scattered = [(5, 2.0), *((window * WINDOW_MS, 2.0) for window in range(1, 2 * WINDOWS_MAX))]
    shard.write([(m(job="a"), scattered)])
    shard.seal()
    expected = {A: sorted([*scattered, (6, 1.0)])}
    assert shard.samples() == expected
    assert shard.part._upkeep._compact(FAR_MS)
    assert [b.row.samples for b in shard.part.contents.layers.blocks if b.row.latest_ms < WINDOW_MS] == [2]
    assert shard.samples() == expected
    shard.compact()
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected


def test_a_shard_that_sealed_nothing_opens_again(shard: Quiet) -> None:
    shard.seal()
    shard.reopen()
    assert shard.samples() == {}


def test_merging_what_is_settled_does_nothing(shard: Quiet) -> None:
    generator = np.random.default_rng(3)
    for _ in range(12):
        times = np.unique(generator.integers(0, 400_000, 80))
        shard.write([(m(job="a"), [(int(t), 1.0) for t in times])])
        shard.seal()
        shard.compact()
    shard.part.delete([[Matcher("job", "=", "a")]], 1000, 2000, TIMEOUT_S)
    shard.compact()
    assert shard.part.contents.layers.tombstones == ()
    files = shard.files()
    assert shard.compact() == 0
    assert shard.files() == files
    assert len(files) < 200


def test_late_samples_over_all_windows_again_and_again_do_not_pile_up_blocks(shard: Quiet) -> None:
    expected = {}
    generator = np.random.default_rng(5)
    for turn in range(40):
        times = generator.integers(0, 3_000_000, 120).tolist()
        shard.write([(m(job="a"), [(int(t), float(turn)) for t in times])])
        expected.update({int(t): float(turn) for t in times})
        shard.seal()
        shard.compact()
    assert shard.samples() == {A: sorted(expected.items())}
    assert len(shard.part.contents.layers.blocks) < 300


def test_two_blocks_that_share_one_millisecond_give_the_later_written_value(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (500, 1.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(500, 2.0), (900, 2.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(0, 3.0), (1, 3.0)])])
    shard.seal()
    expected = {A: [(0, 3.0), (1, 3.0), (500, 2.0), (900, 2.0)]}
    assert shard.samples() == expected
    assert shard.samples(window=(500, 500)) == {A: [(500, 2.0)]}
    assert shard.samples(window=(1, 1)) == {A: [(1, 3.0)]}
    shard.reopen()
    assert shard.samples() == expected
    assert shard.compact() == 1
    assert shard.samples() == expected


def test_the_damage_report_is_that_of_the_shard(tmp_path: Path) -> None:
    report = DamageReport()
    store, log = Store(tmp_path / "store"), WriteAheadLog(tmp_path / "wal").open()
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "x.block").write_bytes(b"?")
    part = SeriesPart(
        store, SeriesServices(Settings(), TextTable()), LocalObjects(tmp_path / "blocks"), log.stream(0, SERIES), report
    )
    part.load()
    assert "x.block.damaged" in report.texts("series")[0]
    part.close()
    store.close()
    log.close()


def test_the_oldest_blocks_go_while_all_are_larger_than_there_is_space_for(shard: Quiet) -> None:
    seal_all(shard, (1, 1.0), (2000, 2.0), (4000, 3.0))
    blocks = shard.part.contents.layers.blocks
    sizes = [block.row.size_bytes for block in blocks]
    assert retention.surplus(blocks, 0) == []
    assert retention.surplus(blocks, sum(sizes)) == []
    assert retention.surplus(blocks, sum(sizes) - 1) == list(blocks[:1])
    assert retention.surplus(blocks, sizes[-1] - 1) == list(blocks)


def test_an_abandoned_writer_leaves_no_file(tmp_path: Path) -> None:
    for publish in (False, True):
        writer = BlockWriter(LocalObjects(tmp_path), 1)
        writer.add(np.array([1]), np.array([1]), np.array([1]), np.array([1.0]))
        if publish:
            writer.finish()
        writer.abandon()
        assert list(tmp_path.iterdir()) == []


def test_counting_what_is_to_be_deleted_ends_with_its_time(shard: Quiet) -> None:
    seal_all(shard, (1, 1.0))
    with pytest.raises(DeadlineExceeded, match="deleted"):
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
