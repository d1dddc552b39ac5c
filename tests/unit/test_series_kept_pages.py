"""Pages of chunks that are read again stay decompressed, within the bound of the cache."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event, get_ident

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.process.array_memory import Account
from worker.series.blocks import paged_chunk
from worker.series.blocks.block import Block
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import join
from worker.storage.objects import LocalObjects

SERIES, SAMPLES = 40, 600
EVER = (0, 1 << 40)


class Loan:
    """A borrower that remembers whether it was told to give back."""

    is_over = False

    def give_back(self) -> None:
        self.is_over = True


@pytest.fixture(scope="module")
def values() -> NDArray[np.float64]:
    """float64[SERIES, SAMPLES]: counters, but every fourth series is of doubles and every fifth of one value."""
    random = np.random.default_rng(7)
    values = np.cumsum(random.integers(0, 300, (SERIES, SAMPLES)), axis=1).astype(float)
    values[::4] /= 7
    values[::5] = 2.5
    return values


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, values: NDArray[np.float64]) -> Block:
    """One chunk of several pages, without a cache. The second half of the series has other times."""
    objects = LocalObjects(tmp_path_factory.mktemp("blocks"))
    writer = BlockWriter(objects, 1)
    times = np.tile(np.arange(SAMPLES) * 15, (SERIES, 1))
    times[SERIES // 2 :] += np.random.default_rng(8).integers(0, 9, SAMPLES)
    writer.add(np.arange(SERIES), np.full(SERIES, SAMPLES), times.ravel(), values.ravel())
    return Block(writer.finish(), objects, DecodedCache(0))


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the arrays that are decompressed from now on."""
    lengths: list[int] = []
    fill = paged_chunk.fill

    def counted(data: bytes, out: NDArray) -> None:
        lengths.append(len(out))
        fill(data, out)

    monkeypatch.setattr(paged_chunk, "fill", counted)
    return lengths


def with_cache(written: Block, bytes_max: int) -> tuple[Block, DecodedCache]:
    cache = DecodedCache(bytes_max)
    return Block(written.row, written._objects, cache), cache


def read(block: Block, first: int, last: int) -> NDArray[np.float64]:
    return join(block.pieces(np.arange(first, last), *EVER), last - first).values.reshape(-1, SAMPLES)


def test_a_third_read_decompresses_nothing(written: Block, values: NDArray[np.float64], fills: list[int]) -> None:
    block, _ = with_cache(written, 1 << 30)
    for expects_work in (True, True, False, False):
        fills.clear()
        assert (read(block, 0, SERIES) == values).all()
        assert bool(fills) is expects_work


def test_one_pass_over_the_series_keeps_nothing(written: Block, fills: list[int]) -> None:
    block, cache = with_cache(written, 1 << 30)
    read(block, 0, 1)
    before = cache.size_bytes
    for first in range(1, SERIES - 3, 3):
        read(block, first, first + 3)
    assert cache.size_bytes == before


def test_only_the_pages_that_are_wanted_are_kept(written: Block, values: NDArray[np.float64], fills: list[int]) -> None:
    block, _ = with_cache(written, 1 << 30)
    for _ in range(2):
        read(block, 0, 2)
    fills.clear()
    assert (read(block, 0, 2) == values[:2]).all() and not fills
    assert (read(block, 0, SERIES) == values).all() and fills
    fills.clear()
    assert (read(block, SERIES - 2, SERIES) == values[-2:]).all() and not fills


def test_what_is_kept_counts_and_goes_before_any_chunk(
    written: Block, values: NDArray[np.float64], fills: list[int]
) -> None:
    block, cache = with_cache(written, 1 << 20)
    read(block, 0, SERIES)
    without = cache.size_bytes
    read(block, 0, SERIES)
    lent = cache.size_bytes - without
    assert lent > 2 * SAMPLES * SERIES // 2
    cache.put("another", object(), (1 << 20) - without)
    assert cache.size_bytes == 1 << 20 and cache.get("another") is not None
    fills.clear()
    assert (read(block, 0, SERIES) == values).all()
    assert fills and cache.misses == 2, "directory and chunk were there, and the pages had gone"


def test_without_room_nothing_is_kept(written: Block, values: NDArray[np.float64], fills: list[int]) -> None:
    block, cache = with_cache(written, 60_000)
    for _ in range(4):
        fills.clear()
        assert (read(block, 0, SERIES) == values).all() and fills
    assert 0 < cache.size_bytes <= 60_000


def test_kept_pages_are_not_counted_for_the_query_that_kept_them(written: Block) -> None:
    block, _ = with_cache(written, 1 << 30)
    account = Account(64 << 20)
    with account.open():
        for _ in range(3):
            read(block, 0, SERIES)
    assert account.used_bytes == 0


def test_threads_that_read_while_pages_come_and_go_get_the_same(written: Block, values: NDArray[np.float64]) -> None:
    block, cache = with_cache(written, 1 << 20)

    def work(seed: int) -> bool:
        random = np.random.default_rng(seed)
        is_right = True
        for _ in range(60):
            first, last = sorted(random.choice(SERIES + 1, 2, replace=False).tolist())
            is_right = is_right and bool((read(block, first, last) == values[first:last]).all())
            if random.random() < 0.2:
                cache.put("another", object(), int(random.integers(1, 1 << 20)))
        return is_right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert cache.size_bytes <= 1 << 20


def test_a_page_is_filled_by_one_thread_at_a_time(
    written: Block, values: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    block, _ = with_cache(written, 1 << 30)
    for _ in range(2):
        read(block, 0, 1)
    fill, filling, twice = paged_chunk.fill, set[int](), list[int]()

    def slowly(data: bytes, out: NDArray) -> None:
        place = out.ctypes.data
        twice.extend([place] if place in filling else [])
        filling.add(place)
        time.sleep(0.002)
        fill(data, out)
        filling.discard(place)

    monkeypatch.setattr(paged_chunk, "fill", slowly)
    with ThreadPoolExecutor(4) as pool:
        for last in range(10, SERIES + 1, 10):
            for found in pool.map(lambda last: read(block, 0, last), [last] * 4):
                assert (found == values[:last]).all()
    assert not twice


def test_the_oldest_loans_end_for_a_new_one_and_all_of_them_for_an_item() -> None:
    cache, loans = DecodedCache(100), [Loan() for _ in range(4)]
    cache.put("item", 1, 10)
    assert cache.lend(loans[0], 40) and cache.lend(loans[1], 40) and cache.size_bytes == 90
    cache.used(loans[0])
    assert cache.lend(loans[2], 40)
    assert [loan.is_over for loan in loans] == [False, True, False, False]
    cache.put("large", 2, 90)
    assert [loan.is_over for loan in loans] == [True, True, True, False]
    assert (cache.get("item"), cache.get("large"), cache.size_bytes) == (1, 2, 100)
    assert not cache.lend(loans[3], 1) and cache.size_bytes == 100


def test_a_borrower_has_one_loan() -> None:
    cache, loan = DecodedCache(100), Loan()
    assert cache.lend(loan, 40) and cache.lend(loan, 40)
    assert cache.size_bytes == 40
    cache.put("item", 1, 100)
    assert loan.is_over and cache.size_bytes == 100
    assert not cache.lend(loan, 40), "no item is dropped for a loan"


def test_the_use_of_a_loan_that_ended_is_no_loan() -> None:
    cache, loan = DecodedCache(100), Loan()
    cache.used(loan)
    assert cache.size_bytes == 0 and cache.lend(loan, 100)


def test_a_page_is_filled_by_one_thread_while_others_wait_for_it(
    written: Block, values: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    block, _ = with_cache(written, 1 << 30)
    for _ in range(2):
        read(block, 0, 2)
    fill, has_begun, may_go_on = paged_chunk.fill, Event(), Event()
    filling: set[int] = set()

    def held(data: bytes, out: NDArray) -> None:
        filling.add(get_ident())
        has_begun.set()
        assert may_go_on.wait(10)
        fill(data, out)

    monkeypatch.setattr(paged_chunk, "fill", held)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read, block, 0, SERIES)
        assert has_begun.wait(10)
        second = pool.submit(read, block, 0, SERIES)
        assert not wait([second], timeout=0.1).done
        may_go_on.set()
        assert (first.result(10) == values).all() and (second.result(10) == values).all()
    assert len(filling) == 1
