"""After a start, the newest blocks are opened: within their share of the cache, and not while others need the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Lock, Thread

import pytest

from tests.unit.series_shard import TIMEOUT_S, WINDOW_MS, Quiet, Shard
from worker.series.blocks import opening
from worker.series.blocks.block import CorruptBlock
from worker.series.blocks.opening import open_newest

BLOCKS = 5


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path / "shard")
    opened.seal_each(*((number * WINDOW_MS, 1.0) for number in range(BLOCKS)))
    opened.reopen()
    yield opened
    opened.close()


def opened_blocks(shard: Shard) -> list[int]:
    blocks = shard.part.contents.layers.blocks
    return sorted(block.row.latest_ms // WINDOW_MS for block in blocks if block.cached_directory() is not None)


def never() -> bool:
    return False


def test_all_blocks_are_opened_if_there_is_room(shard: Quiet) -> None:
    cache = shard.part.archive.cache
    assert cache.size_bytes == 0
    assert open_newest(shard.part.contents.layers.blocks, 1 << 20, never) == cache.size_bytes > 0
    assert opened_blocks(shard) == list(range(BLOCKS))
    misses = cache.misses
    assert sum(map(len, shard.samples().values())) == BLOCKS
    assert cache.misses == misses


def test_the_newest_blocks_come_first_and_the_rest_finds_no_room(shard: Quiet) -> None:
    blocks = shard.part.contents.layers.blocks
    opened_bytes = open_newest(blocks, 300, never)
    newest = opened_blocks(shard)
    assert newest == list(range(BLOCKS - len(newest), BLOCKS))
    assert 0 < len(newest) < BLOCKS
    assert 300 <= opened_bytes == shard.part.archive.cache.size_bytes < 1000


def test_it_ends_when_there_is_other_work(shard: Quiet) -> None:
    answers = iter([False, False, False, True])
    open_newest(shard.part.contents.layers.blocks, 1 << 20, lambda: next(answers))
    assert opened_blocks(shard) == [BLOCKS - 2, BLOCKS - 1]


def test_it_takes_only_a_moment(shard: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "OPENING_S_MAX", 0.0)
    assert open_newest(shard.part.contents.layers.blocks, 1 << 20, never) == 0


@pytest.mark.parametrize("reason", ["queries", "stopping"])
def test_a_shard_opens_nothing_while_there_is_other_work(shard: Quiet, reason: str) -> None:
    upkeep = shard.part._upkeep
    if reason == "queries":
        upkeep._background.pause()
    else:
        upkeep._stopping.set()
    assert type(upkeep).open_newest(upkeep) == 0


def test_a_damaged_block_is_an_error(shard: Quiet) -> None:
    for file in shard.files():
        file.write_bytes(bytes(len(file.read_bytes())))
    with pytest.raises(CorruptBlock):
        open_newest(shard.part.contents.layers.blocks, 1 << 20, never)


def test_a_shard_opens_its_blocks_when_it_starts_and_tends_damaged_ones_as_well(tmp_path: Path) -> None:
    quiet = Quiet(tmp_path / "shard")
    quiet.seal_each((0, 1.0), (5 * WINDOW_MS, 2.0))
    for damages in (False, True):
        if damages:
            newest = max(quiet.part.contents.layers.blocks, key=lambda block: block.row.latest_ms)
            file = Path(newest.location)
            file.write_bytes(bytes(len(file.read_bytes())))
        quiet.reopen()
        upkeep, tended = quiet.part._upkeep, Event()
        upkeep.blocks.tend = lambda now_ms, tended=tended: tended.set()  # type: ignore[method-assign,misc]
        del upkeep.open_newest
        thread = Thread(target=upkeep._open_and_tend, args=(Lock(),), daemon=True)
        thread.start()
        assert tended.wait(TIMEOUT_S)
        assert opened_blocks(quiet) == ([] if damages else [0, 5])
        upkeep._stopping.set()
        thread.join(TIMEOUT_S)
    quiet.close()
