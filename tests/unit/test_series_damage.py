"""Damaged block files: a checksum covers every byte and is verified when it is read, and what is lost is said."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest

from shared.promql.ast import Matcher
from tests.unit.series_shard import EVERYTHING, FAR_MS, Quiet, m
from worker.series.blocks import writer as writer_module
from worker.series.blocks.block import Block, BlockRow, CorruptBlock
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import join
from worker.series.verify import check_blocks
from worker.storage.objects import LocalObjects

PLACES = 500


def three_chunks(directory: Path, monkeypatch: pytest.MonkeyPatch) -> BlockRow:
    """A block of three chunks, constants, whole numbers and fractions in it."""
    monkeypatch.setattr(writer_module, "CHUNK_SAMPLES", 400)
    writer = BlockWriter(LocalObjects(directory), 1)
    generator = np.random.default_rng(1)
    for series, values in enumerate((np.ones(300), np.arange(300.0), generator.random(300), generator.random(300))):
        writer.add(np.array([series]), np.array([300]), np.arange(300) * 10 + series, values)
    return writer.finish()


def test_a_flipped_byte_anywhere_in_a_block_is_refused_and_found_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = three_chunks(tmp_path, monkeypatch)
    block = Block(row, LocalObjects(tmp_path), DecodedCache(0))
    whole = Path(block.location).read_bytes()
    assert len(whole) == row.size_bytes
    ids = np.arange(8)
    expected = join(block.pieces(ids, *EVERYTHING), 8)
    assert len(expected.values) == row.samples
    [good] = check_blocks(tmp_path, [row])
    assert (good.damage, good.samples_good) == ((), row.samples)
    places = random.Random(11)
    for _ in range(PLACES):
        at, bit = places.randrange(len(whole)), 1 << places.randrange(8)
        Path(block.location).write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with pytest.raises(CorruptBlock, match="checksum"):
            block.pieces(ids, *EVERYTHING)
        [checked] = check_blocks(tmp_path, [row])
        assert checked.damage, at
        lost = sum(own.samples or 0 for own in checked.damage)
        assert checked.samples_good + lost == row.samples
        for series in range(8):
            with contextlib.suppress(CorruptBlock):
                found = join(block.pieces(np.array([series]), *EVERYTHING), 1)
                own = slice(*expected.offsets[series : series + 2])
                assert found.values.tobytes() == expected.values[own].tobytes()
    for size in (0, 1, len(whole) - 1):
        Path(block.location).write_bytes(whole[:size])
        [checked] = check_blocks(tmp_path, [row])
        assert checked.samples_good == 0 and str(size) in checked.damage[0].reason


def test_times_between_are_never_taken_from_a_damaged_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = three_chunks(tmp_path, monkeypatch)
    block = Block(row, LocalObjects(tmp_path), DecodedCache(0))
    whole = Path(block.location).read_bytes()
    Path(block.location).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(CorruptBlock, match="checksum"):
        block.having(np.arange(8), 11, 12, lambda: None)


def test_the_check_names_the_series_and_times_of_the_damaged_chunk_and_counts_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = three_chunks(tmp_path, monkeypatch)
    path = tmp_path / (row.name + ".block")
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    [checked] = check_blocks(tmp_path, [row])
    [damage] = checked.damage
    assert damage.series is not None and damage.series.tolist() == [0, 1]
    assert (damage.earliest_ms, damage.latest_ms, damage.samples) == (0, 2990, 400)
    assert checked.samples_good == 800
    assert path.read_bytes()[0] == whole[0] ^ 1


def test_the_check_lists_files_that_no_row_names_and_rows_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = three_chunks(tmp_path, monkeypatch)
    (tmp_path / (row.name + ".block")).rename(tmp_path / "orphan.block")
    for name in ("a.writing", "b.block", "c.block.damaged"):
        (tmp_path / name).touch()
    checks = {own.path.name: own for own in check_blocks(tmp_path, [row], {"b"})}
    assert "No such file" in checks[row.name + ".block"].damage[0].reason
    assert checks["orphan.block"].damage[0].reason == "no row of the store names it"
    assert checks["c.block.damaged"].damage[0].reason == "it was set aside"
    assert {name for name, own in checks.items() if not own.damage} == {"a.writing", "b.block"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.writing",
        "b.block",
        "c.block.damaged",
        "orphan.block",
    ]


@pytest.mark.parametrize("ask", ["read", "select", "having", "delete"])
def test_whoever_asks_about_a_damaged_block_is_told(tmp_path: Path, ask: str) -> None:
    shard = Quiet(tmp_path)
    shard.write([(m(job="a"), [(1, 1.0), (500, 2.0)])])
    shard.seal()
    [block] = shard.part.contents.layers.blocks
    whole = bytearray(Path(block.location).read_bytes())
    whole[3] ^= 1
    whole[block.row.directory_at + 3] ^= 1 if ask in ("select", "delete") else 0
    Path(block.location).write_bytes(whole)
    shard.reopen()
    everything = [[Matcher("job", "=", "a")]]
    assert shard.part.damage(0, 600) == []
    if ask == "read":
        shard.samples(window=(0, 600))
    elif ask == "select":
        shard.part.select(everything, 2, 400)
    elif ask == "having":
        shard.part.having(everything, 2, 400, lambda: None)
    else:
        shard.part.delete(everything, 2, 400, 5.0)
    [text] = shard.part.damage(0, 600)
    assert block.row.name in text
    assert shard.compact(FAR_MS) == 0
    assert Path(block.location).exists()
    shard.close()
