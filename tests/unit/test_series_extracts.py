"""A query reads a few series at a time. It decodes the directories of blocks once for many of its reads, although the
cache has no room for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from shared.labels import Symbols
from shared.process.array_memory import Account
from shared.promql.ast import Aggregate
from shared.promql.engine import batches
from shared.promql.engine.context import EvalContext
from shared.promql.engine.evaluator import evaluate_partial
from shared.promql.model import Grid, Samples
from shared.promql.parser import parse
from tests.unit.series_shard import EVERYTHING, Quiet
from worker.queries.source import ShardSelection, ShardSource
from worker.series import part
from worker.series.blocks import block, extracts
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.directory import Directory, decode_directory
from worker.series.blocks.layers import Layers
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import join
from worker.storage.objects import LocalObjects

SERIES, BLOCKS, READ = 60, 3, 2


class Uncached(Quiet):
    """A shard whose cache has no room, with BLOCKS blocks of SERIES series of several metrics."""

    options: ClassVar[dict[str, Any]] = {"block_cache_bytes": 0}

    def fill(self) -> None:
        for number in range(BLOCKS):
            labels = [{"__name__": f"m{i % 7}", "job": str(i)} for i in range(SERIES)]
            self.write([(own, [(10 * number + i % 3, float(i))]) for i, own in enumerate(labels)])
            self.seal()

    def select(self, *window: int) -> ShardSelection:
        return ShardSource([self.part]).select((), *(window or EVERYTHING), Symbols(self.symbols))


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Uncached]:
    shard = Uncached(tmp_path)
    shard.fill()
    yield shard
    shard.close()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples of the blocks whose directories are decoded from now on."""
    numbers: list[int] = []

    def counted(data: bytes, samples: int, chunk_bytes: int) -> Directory:
        numbers.append(samples)
        return decode_directory(data, samples, chunk_bytes)

    monkeypatch.setattr(block, "decode_directory", counted)
    return numbers


def points(samples: Samples) -> list[list[tuple[int, float]]]:
    bounds = samples.offsets.tolist()
    pairs = list(zip(samples.timestamps_ms.tolist(), samples.values.tolist(), strict=True))
    return [pairs[first:last] for first, last in pairwise(bounds)]


def in_reads(selection: ShardSelection) -> list[list[tuple[int, float]]]:
    return [own for first in range(0, SERIES, READ) for own in points(selection.read(first, first + READ))]


def test_a_query_decodes_each_directory_once_for_all_its_reads(shard: Uncached, decoded: list[int]) -> None:
    expected = points(shard.select().read(0, SERIES))
    selection = shard.select()
    decoded.clear()
    assert in_reads(selection) == expected
    assert len(decoded) == BLOCKS


def test_the_batches_of_an_aggregation_decode_each_directory_once(
    shard: Uncached, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_SERIES", 4)
    symbols, grid, node = Symbols(shard.symbols), Grid(100, 100, 1), parse('sum(sum_over_time({job=~".+"}[1s]))')
    assert isinstance(node, Aggregate)
    context = EvalContext(ShardSource([shard.part]), symbols, grid, 1000, time.monotonic() + 60, 1_000_000)
    evaluated = evaluate_partial(node, grid, context)
    assert context.samples_read == BLOCKS * SERIES
    assert len(decoded) == 1 + BLOCKS  # the newest block has all series, which is enough to select them
    assert evaluated.cells


def test_extracts_have_the_runs_of_the_time_range(shard: Uncached, decoded: list[int]) -> None:
    window = 11, 21
    expected = points(shard.select(*window).read(0, SERIES))
    selection = shard.select(*window)
    assert sum(map(len, expected)) > SERIES
    decoded.clear()
    assert in_reads(selection) == expected
    assert len(decoded) == 2


@pytest.mark.parametrize("runs_max", [1, SERIES - 1, SERIES])
def test_the_room_for_extracts_is_bounded(
    shard: Uncached, decoded: list[int], monkeypatch: pytest.MonkeyPatch, runs_max: int
) -> None:
    monkeypatch.setattr(extracts, "RUNS_MAX", runs_max * BLOCKS)
    expected = points(shard.select().read(0, SERIES))
    selection = shard.select()
    decoded.clear()
    assert in_reads(selection) == expected
    # All series of a block are in one chunk here.
    assert len(decoded) == BLOCKS * (1 if runs_max == SERIES else SERIES // READ)


def test_extracts_have_the_places_of_chunks_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, series, length = LocalObjects(tmp_path), 9, 20_000
    in_file = np.random.default_rng(3).permutation(series)
    writer = BlockWriter(objects, 1)
    for number in in_file.tolist():
        values = np.arange(length, dtype=np.float64) + number * length
        writer.add(np.array([number]), np.array([length]), np.arange(length), values)
    below = Layers(blocks=(block.Block(writer.finish(), objects, DecodedCache(0)),))
    monkeypatch.setattr(extracts, "RUNS_MAX", 16)
    assert len(below.blocks[0].directory().chunk_hashes) == 3
    ids = np.arange(series)
    own = extracts.Extracts(ids, lambda wanted: wanted, 5_000, 15_000)
    for first in ids.tolist():
        wanted = ids[first : first + 1]
        found = join(below.pieces(wanted, wanted, 5_000, 15_000, own), 1)
        assert found.timestamps_ms.tolist() == list(range(5_000, 15_001))
        assert (found.values == np.arange(5_000, 15_001) + first * length).all()


def test_an_extract_of_a_block_with_few_of_the_series_is_for_many_reads(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, series, each, read = LocalObjects(tmp_path), 320, 40, 8
    rows = []
    for first in range(0, series, each):  # the series are short-lived: each block has others
        writer = BlockWriter(objects, first + 1)
        writer.add(np.arange(first, first + each), np.ones(each, np.int64), np.full(each, first), np.ones(each))
        rows.append(writer.finish())
    below = Layers(blocks=tuple(block.Block(row, objects, DecodedCache(0)) for row in rows))
    monkeypatch.setattr(extracts, "RUNS_MAX", series)
    ids = np.arange(series)
    own = extracts.Extracts(ids, lambda wanted: wanted, 0, series)
    for first in range(0, series, read):
        wanted = ids[first : first + read]
        found = join(below.pieces(wanted, wanted, 0, series, own), read)
        assert found.timestamps_ms.tolist() == [first // each * each] * read
    # The first extract of most blocks ends where their own series begin, the second where these end.
    assert len(decoded) <= 3 * len(rows)


def test_a_query_goes_back_and_reads_what_was_merged_meanwhile(shard: Uncached) -> None:
    selection = shard.select()
    expected = points(selection.read(0, SERIES))
    for first, last in ((20, 30), (10, 15), (25, SERIES), (0, 1)):
        assert points(selection.read(first, last)) == expected[first:last]
    shard.write([({"__name__": "m0", "job": "0"}, [(90, 1.0)])])
    shard.seal()
    assert shard.compact()
    assert points(selection.read(30, 40)) == expected[30:40]
    assert points(selection.read(0, 1)) == [[*expected[0], (90, 1.0)]]


def test_a_query_reads_the_extracts_of_two_shards(shard: Uncached, tmp_path: Path, decoded: list[int]) -> None:
    other = Uncached(tmp_path / "other", shard.symbols)
    other.fill()
    selection = ShardSource([shard.part, other.part]).select((), *EVERYTHING, Symbols(shard.symbols))
    expected = points(shard.select().read(0, SERIES)) * 2
    decoded.clear()
    found = [own for first in range(0, 2 * SERIES, 7) for own in points(selection.read(first, min(first + 7, 120)))]
    assert found == expected
    assert len(decoded) == 2 * BLOCKS
    other.close()


def test_extracts_are_memory_of_the_query(shard: Uncached) -> None:
    account = Account(1 << 30)
    selection = shard.select()
    with account.open():
        selection.read(0, READ)
    assert account.used_bytes >= BLOCKS * SERIES * 44


def test_a_query_leaves_no_extract_in_memory(tmp_path: Path) -> None:
    objects, series, length = LocalObjects(tmp_path), 4000, 50
    writer = BlockWriter(objects, 1)
    times_ms, values = np.tile(np.arange(length), series), np.repeat(np.arange(float(series)), length)
    writer.add(np.arange(series), np.full(series, length), times_ms, values)
    row = writer.finish()
    directory_bytes = block.Block(row, objects, DecodedCache(0)).directory().size_bytes
    cache = DecodedCache(directory_bytes - 1)  # it has room for chunks only
    below = Layers(blocks=(block.Block(row, objects, cache),))
    account, ids = Account(1 << 30), np.arange(series)
    with account.open():
        own = extracts.Extracts(ids, lambda wanted: wanted, 0, length)
        for wanted in np.split(ids, 8):
            assert below.pieces(wanted, wanted, 0, length, own)
    assert cache.size_bytes
    assert account.used_bytes >= series * 44
    del own
    assert account.used_bytes == 0


def test_extracts_are_dropped_after_the_last_series(shard: Uncached) -> None:
    account = Account(1 << 30)
    selection = shard.select()
    with account.open():
        expected = in_reads(selection)
    assert account.used_bytes < SERIES * 44
    assert in_reads(selection) == expected


def test_a_read_of_one_series_has_the_room_of_the_extracts(shard: Uncached, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = points(shard.select().read(0, SERIES))
    selection, account = shard.select(), Account(1 << 30)
    with account.open():
        selection.read(0, READ)
        used = account.used_bytes

        def joined_in_little(*arguments: Any) -> Samples:
            if account.used_bytes >= used:
                raise MemoryError
            return join(*arguments)

        monkeypatch.setattr(part, "join", joined_in_little)
        assert points(selection.read(READ, READ + 1)) == expected[READ : READ + 1]


def test_a_query_does_without_extracts_when_it_lacks_memory_for_samples(
    shard: Uncached, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = points(shard.select().read(0, SERIES))
    selection = shard.select()
    selection.read(0, READ)
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(part, "join", _full)
        selection.read(0, READ)
    assert in_reads(selection) == expected
    assert selection._extracts is None


def _full(*_: object) -> Samples:
    raise MemoryError


def test_a_query_without_memory_for_extracts_reads_without_them(
    shard: Uncached, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = points(shard.select().read(0, SERIES))
    monkeypatch.setattr(Directory, "extract", _full)
    assert in_reads(shard.select()) == expected
