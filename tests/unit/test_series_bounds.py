"""The bounds of a shard's series: its shares of what the process may hold, the end of its threads, runs that are copied
to their end and no further."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED, body
from shared.errors import DeadlineExceeded, Unavailable
from shared.settings import Settings
from tests.unit.series_shard import EVERYTHING, TIMEOUT_S, Quiet, m
from worker.damage import DamageReport
from worker.series import writing
from worker.series.blocks import writer as writer_module
from worker.series.blocks.block import Block, CorruptBlock
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.writer import BlockWriter
from worker.series.growing_array import CAPACITY_MIN
from worker.series.head import Head
from worker.series.index.texts import TextTable
from worker.series.part import HEAD_OVERRUN_MAX, SeriesPart
from worker.series.pieces import Piece, join
from worker.series.services import SeriesServices
from worker.series.writing import write_to
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog

EARLY_S = 0.1


@contextmanager
def opened(path: Path, **options: int) -> Iterator[SeriesPart]:
    """One shard of several; nothing is done in the background."""
    store, log = Store(path / "store"), WriteAheadLog(path / "wal").open()
    settings = Settings(workers=1, **options)  # type: ignore[arg-type]
    part = SeriesPart(
        store,
        SeriesServices(settings, TextTable()),
        LocalObjects(path / "blocks"),
        log.stream(0, SERIES),
        DamageReport(),
    )
    part._upkeep.sealing.tick = part._upkeep.blocks.tend = lambda now_ms: None  # type: ignore[method-assign, assignment]
    part.load()
    yield part
    part.close()
    store.close()
    log.close()


def write(part: SeriesPart, at: int, timeout_s: float = TIMEOUT_S) -> int:
    split_request = remote_write.split(body([(m(i=str(i)), [(at, 1.0)]) for i in range(9)]), 1, UNLIMITED)
    return write_to(part, split_request.parts[0], timeout_s)


def test_a_shards_head_is_sealed_when_it_is_larger_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "HOLD_UP_S", 0.0)
    with opened(tmp_path, shards=4, head_bytes=1 << 15) as part:
        share, woken, sealed = (1 << 15) // 4, list[int](), list[int]()
        monkeypatch.setattr(part._upkeep, "wake", lambda: woken.append(1))
        monkeypatch.setattr(part._upkeep.sealing, "_seal", sealed.append)
        tick = type(part._upkeep.sealing).tick
        written = 0
        with pytest.raises(Unavailable, match="wait to be sealed"):
            while True:
                before = len(woken)
                written += write(part, written)
                is_large = part.contents.head.size_bytes > share
                assert (len(woken) > before) == is_large
                tick(part._upkeep.sealing, 0)
                assert bool(sealed) == is_large
        assert HEAD_OVERRUN_MAX * share < part.contents.head.size_bytes < (HEAD_OVERRUN_MAX + 1) * share
        assert part.counts()["samples_in"] == part.counts()["samples"] == written


def test_blocks_of_a_shard_have_their_share_of_the_space_rounded_up(tmp_path: Path) -> None:
    with opened(tmp_path, shards=4, retention_bytes=1001) as part:
        assert part._upkeep.blocks._blocks_bytes_max == 251


def test_a_write_is_held_up_no_longer_than_it_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until: list[float] = []
    monkeypatch.setattr(writing.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(SeriesPart, "hold_up", lambda self, give_up_s: until.append(give_up_s))
    monkeypatch.setattr(writing, "HOLD_UP_S", 1.0)
    with opened(tmp_path) as part:
        write(part, 1, timeout_s=0.25)
        write(part, 2, timeout_s=9.0)
    assert until == [100.25, 101.0]


def test_ids_go_on_after_those_that_were_given_whatever_was_saved_when(tmp_path: Path) -> None:
    shard = Quiet(tmp_path)
    for first in (0, 3, 4):
        shard.write([(m(i=str(i)), [(1, 1.0)]) for i in range(first, first + 3)])
        count = len(shard.part.contents.index)
        assert shard.part.contents.permanent.rows().tolist() == list(range(count))
        assert shard.part._registry.next_id == count
        assert shard.part._series_saved == count
    shard.reopen()
    assert shard.part._registry.next_id == 7
    shard.write([(m(i="new"), [(1, 1.0)])])
    assert shard.part.contents.permanent.rows().tolist() == list(range(8))
    shard.close()


# The threads


@pytest.mark.parametrize(("owner", "step"), [("sealing", "tick"), ("blocks", "tend")])
def test_closing_waits_for_what_is_at_work(tmp_path: Path, owner: str, step: str) -> None:
    shard = Quiet(tmp_path)
    working, may_end = threading.Event(), threading.Event()

    def work(now_ms: int) -> None:
        working.set()
        assert may_end.wait(TIMEOUT_S)

    setattr(getattr(shard.part._upkeep, owner), step, work)
    shard.part._upkeep.wake()
    assert working.wait(TIMEOUT_S)
    closing = threading.Thread(target=shard.part.close)
    closing.start()
    closing.join(EARLY_S)
    assert closing.is_alive()
    may_end.set()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    assert not any(thread.is_alive() for thread in shard.part._upkeep._threads)
    shard.store.close()
    shard.log.close()


def test_a_shard_that_was_never_loaded_closes(tmp_path: Path) -> None:
    store, log = Store(tmp_path / "store"), WriteAheadLog(tmp_path / "wal").open()
    SeriesPart(
        store, SeriesServices(Settings(), TextTable()), LocalObjects(tmp_path / "blocks"), log.stream(0, SERIES)
    ).close()
    store.close()
    log.close()


def test_a_deletion_gives_up_when_its_turn_does_not_come(tmp_path: Path) -> None:
    with opened(tmp_path) as part:
        write(part, 1)
        with part.turn.exclusive(1.0), pytest.raises(DeadlineExceeded):
            part.delete([[]], *EVERYTHING, 0.05)
        part.delete([[]], *EVERYTHING, TIMEOUT_S)
        assert part.counts()["samples"] == 0


# Runs


def test_runs_are_copied_to_their_end_and_no_further() -> None:
    """The rows come last to first, so that what is copied too far would lie over what is there already."""
    times = np.arange(40)
    piece = Piece(times, times * 2.0, np.array([3, 2, 1, 0]), np.array([20, 4, 2, 7]), np.array([36, 6, 4, 7]))
    found = join([piece], 4)
    assert found.offsets.tolist() == [0, 0, 2, 4, 20]
    assert found.timestamps_ms.tolist() == [2, 3, 4, 5, *range(20, 36)]
    assert found.values.tolist() == [2.0 * time for time in found.timestamps_ms.tolist()]


@pytest.mark.parametrize(
    ("start", "end", "left"), [(0, 9, [0, 2, 4, 6]), (1, 5, [2, 4]), (2, 4, [2, 4]), (3, 3, []), (7, 9, []), (6, 0, [])]
)
def test_a_piece_is_clipped_to_its_times(start: int, end: int, left: list[int]) -> None:
    times = np.array([99, 0, 2, 4, 6, -5, 99])
    piece = Piece(times, times * 1.0, np.array([0, 1]), np.array([1, 5]), np.array([5, 5]))
    found = join([piece.clipped(start, end)], 2)
    assert found.timestamps_ms.tolist() == left
    gone = piece.without(np.array([True, False]), start, end)
    assert join([gone], 2).timestamps_ms.tolist() == [time for time in (0, 2, 4, 6) if time not in left]
    assert piece.without(np.array([False, True]), start, end).starts.tolist() in ([1, 5, 5], [1, 5, 5, 5])
    assert piece.without(np.array([False, False]), start, end) is piece


def test_of_equal_times_the_one_of_the_last_piece_stays_and_late_ones_are_sorted() -> None:
    def piece(rows: list[int], times: list[int], value: float) -> Piece:
        at = np.arange(len(times))
        return Piece(np.array(times), np.full(len(times), value), np.array(rows), at, at + 1)

    found = join([piece([0, 0, 1, 2], [1, 5, 7, 1], 1.0), piece([0, 1, 2], [5, 6, 2], 2.0), piece([1], [7], 3.0)], 3)
    assert found.offsets.tolist() == [0, 2, 4, 6]
    assert found.timestamps_ms.tolist() == [1, 5, 6, 7, 1, 2]
    assert found.values.tolist() == [1.0, 2.0, 2.0, 3.0, 1.0, 2.0]


def test_a_head_has_room_for_more_chunks_than_its_arrays_begin_with() -> None:
    series = 3 * CAPACITY_MIN
    head = Head()
    head.extend(series)
    for time in (1, 2):
        head.append(np.arange(series), np.full(series, time), np.full(series, float(time)))
    found = head.read(np.arange(series), 0, 9)
    assert (np.diff(found.offsets) == 2).all()
    assert found.values.reshape(-1, 2).tolist() == [[1.0, 2.0]] * series
    assert head.samples == 2 * series


# Blocks


def garbage(path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> Block:
    """A block of which a part is no such thing, under a checksum that is right."""
    with monkeypatch.context() as patch:
        if what == "directory":
            patch.setattr(writer_module, "encode_directory", lambda columns: b"x" * 60)
        else:
            patch.setattr(writer_module.sections, "encode", lambda *_: b"\1\1" + bytes(60))
        writer = BlockWriter(LocalObjects(path), 1)
        writer.add(np.array([0]), np.array([3]), np.array([1, 5, 9]), np.zeros(3))
        return Block(writer.finish(), LocalObjects(path), DecodedCache(1 << 20))


@pytest.mark.parametrize("ask", ["pieces", "having"])
def test_a_chunk_that_cannot_be_decoded_is_said_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    block = garbage(tmp_path, monkeypatch, "chunk")
    with pytest.raises(CorruptBlock, match="chunk 0 cannot be decoded") as raised:
        block.pieces(np.array([0]), 2, 8) if ask == "pieces" else block.having(np.array([0]), 2, 8, lambda: None)
    assert raised.value.block is block


def test_a_directory_that_cannot_be_decoded_is_said_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = garbage(tmp_path, monkeypatch, "directory")
    with pytest.raises(CorruptBlock, match="directory cannot be decoded") as raised:
        block.directory()
    assert raised.value.block is block


def test_a_file_that_cannot_be_opened_for_want_of_descriptors_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BlockWriter(LocalObjects(tmp_path), 1)
    writer.add(np.array([0]), np.array([1]), np.array([1]), np.zeros(1))
    block = Block(writer.finish(), LocalObjects(tmp_path), DecodedCache(0))

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(Unavailable, match="Too many open files"):
            block.pieces(np.array([0]), 0, 9)
    assert len(join(block.pieces(np.array([0]), 0, 9), 1).values) == 1
    Path(block.location).unlink()
    with pytest.raises(CorruptBlock, match="No such file"):
        block.pieces(np.array([0]), 0, 9)
