"""Files of blocks and the rows that name them: what a kill leaves, what is lost, and what is said about it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.errors import Unavailable
from shared.promql.ast import Matcher
from shared.settings import Settings
from tests.unit.series_shard import EVERYTHING, TIMEOUT_S, A, Quiet, m
from worker.damage import DamageReport
from worker.series import sweeping
from worker.series.blocks.archive import LEFT_OVER
from worker.series.blocks.block import Block, CorruptBlock
from worker.series.blocks.writer import BlockWriter
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart
from worker.series.services import SeriesServices
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


def test_a_block_whose_row_is_lost_is_set_aside_and_said_at_every_start_until_its_file_is_deleted(shard: Quiet) -> None:
    shard.seal_each((1, 1.0), (5000, 2.0))
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
    shard.seal_each((1, 1.0), (2, 2.0))
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
    shard.seal_each((1, 1.0), (2, 2.0))
    shard.compact()
    assert len(list(shard.store.keys("blocks", b"leftover/"))) == 2
    shard.part.archive.forget()
    assert list(shard.store.keys("blocks", b"leftover/")) == []


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_block_without_its_file_is_said_from_the_start_and_its_row_stays(shard: Quiet, damage: str) -> None:
    shard.seal_each((1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5000, 5.0))
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
    shard.seal_each(*((t, float(t)) for t in (1, 2, 3, 4, 1001, 1002, 1003, 1004)))
    broken = shard.part.contents.layers.blocks[2]
    whole = Path(broken.location).read_bytes()
    Path(broken.location).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(CorruptBlock) as raised:
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
    shard.seal_each((1, 1.0))
    [block] = shard.part.contents.layers.blocks
    Path(block.location).rename(shard.path / "elsewhere")
    shard.reopen()
    shard.part.delete([[Matcher("job", "=", "a")]], 0, 9, TIMEOUT_S)
    shard.compact()
    (shard.path / "elsewhere").rename(Path(block.location))
    shard.reopen()
    assert [points for points in shard.samples().values() if points] == []


def test_a_deletion_reads_no_samples_and_reaches_those_of_a_damaged_chunk_that_is_repaired(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (500, 2.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(2, 3.0)])])
    [block] = shard.part.contents.layers.blocks
    whole = Path(block.location).read_bytes()
    Path(block.location).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    shard.reopen()
    with monkeypatch.context() as patch:
        patch.setattr(Block, "chunk", lambda *_: pytest.fail("a deletion has read samples of a block"))
        shard.part.delete([[Matcher("job", "=", "a")]], 0, 400, TIMEOUT_S)
    assert shard.part.damage(0, 600) == []
    assert [points for points in shard.samples().values() if points] == []
    assert [text for text in shard.part.damage(0, 600) if block.row.name in text]
    Path(block.location).write_bytes(whole)
    shard.reopen()
    assert shard.samples() == {A: [(500, 2.0)]}


@pytest.mark.parametrize("is_full_at_the_start", [False, True])
def test_a_deletion_that_a_full_disk_has_cut_brings_no_older_value_back(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, is_full_at_the_start: bool
) -> None:
    shard.seal_each((1, 1.0))
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
    sweeping.ask_for(batch)
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


@pytest.mark.parametrize("work", ["seal", "merge"])
def test_files_of_a_batch_that_the_store_refuses_are_deleted_once_it_takes_writes_again(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    if work == "merge":
        shard.seal_each((1, 1.0), (2, 1.0))
    shard.write([(m(job="a"), [(3, 1.0)])])
    expected, files, write = shard.samples(), len(shard.files()), shard.store.write
    refused: list[object] = []

    def refuses_every_second(batch: object, *, durable: bool = False, logged: bool = True) -> None:
        if (refused and refused[-1] is None) or not durable:
            refused.append(batch)
            raise Unavailable("the store is behind with its compaction; try again later")
        refused.append(None)
        write(batch, durable=durable, logged=logged)  # type: ignore[arg-type]

    monkeypatch.setattr(shard.store, "write", refuses_every_second)
    for attempt in range(1, 3):
        with pytest.raises(Unavailable):
            shard.seal() if work == "seal" else shard.compact()
        with pytest.raises(Unavailable):
            shard.part.archive.forget()
        assert len(shard.files()) == files + attempt
    monkeypatch.undo()
    shard.part.archive.forget()
    assert len(shard.files()) == files
    assert not list(shard.store.keys("blocks", LEFT_OVER, LEFT_OVER + b"\xff"))
    shard.seal()
    shard.compact()
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected


def test_files_of_a_batch_that_may_be_on_the_disk_stay_until_the_next_start(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    fsync, expected, syncs = shard.store._group._fsync, shard.samples(), []

    def fails_the_second_time() -> None:
        syncs.append(1)
        if len(syncs) == 2:
            shard.store._failed = True
            raise OSError(5, "Input/output error")
        fsync()

    monkeypatch.setattr(shard.store._group, "_fsync", fails_the_second_time)
    with pytest.raises(Unavailable):
        shard.seal()
    with pytest.raises(Unavailable, match="takes no writes"):
        shard.part.archive.forget()
    assert len(shard.files()) == 1
    monkeypatch.undo()
    shard.reopen()
    assert len(shard.part.contents.layers.blocks) == 1
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


def test_an_abandoned_writer_leaves_no_file(tmp_path: Path) -> None:
    for publish in (False, True):
        writer = BlockWriter(LocalObjects(tmp_path), 1)
        writer.add(np.array([1]), np.array([1]), np.array([1]), np.array([1.0]))
        if publish:
            writer.finish()
        writer.abandon()
        assert list(tmp_path.iterdir()) == []
