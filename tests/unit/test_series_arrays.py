"""The arrays under the series: columns that grow, the map of byte strings, posting lists and the cache, beside
dictionaries and lists that do the same."""

from __future__ import annotations

import itertools
import random
import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.series import TextsReply
from shared.process.allocator import HUGE_BYTES_MIN
from shared.wall_clock import DRIFT_MS, SETTLE_MS, WallClock
from shared.wire import unpack
from worker.methods.series import _texts
from worker.series.blocks.block import Block
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.retention import HELD_WINDOWS_MAX, expired, surplus, to_split
from worker.series.growing_array import CAPACITY_MIN, REFILLED_BYTES, REFILLED_GROWTH, GrowingArray
from worker.series.index import postings as postings_module
from worker.series.index.bytemap import SLOTS_MIN, ByteMap
from worker.series.index.postings import PostingRun, Postings, distinct, joined, key_of

TIMEOUT_S = 10.0

# Columns


def test_a_column_doubles_and_leaves_what_was_taken() -> None:
    column = GrowingArray(np.int64, (2,))
    column.extend(np.arange(2 * CAPACITY_MIN).reshape(-1, 2))
    assert len(column.data) == CAPACITY_MIN, "what fits takes no new memory"
    taken = column.rows()
    column.extend(np.full((1, 2), -1))
    assert len(column.data) == 2 * CAPACITY_MIN
    assert len(column) == CAPACITY_MIN + 1
    assert taken.tolist() == np.arange(2 * CAPACITY_MIN).reshape(-1, 2).tolist()
    assert column.rows()[-1].tolist() == [-1, -1]
    column.data[0] = 7
    assert taken[0].tolist() == [0, 1]
    column.reserve(10 * CAPACITY_MIN)
    assert len(column.data) == 11 * CAPACITY_MIN + 1


def test_a_column_begins_and_grows_as_it_is_told() -> None:
    column = GrowingArray(np.int64, capacity=10, is_refilled=True)
    column.extend(np.arange(10))
    assert len(column.data) == 10
    column.extend(np.arange(1))
    assert len(column.data) == 40
    assert column.rows().tolist() == [*range(10), 0]


def test_a_large_column_that_is_refilled_moves_no_more_until_it_is_full() -> None:
    column = GrowingArray(np.int64, is_refilled=True)
    column.room(HUGE_BYTES_MIN // 8)[:] = 7
    data = column.data
    column.room(REFILLED_BYTES // 8 - HUGE_BYTES_MIN // 8)
    assert column.data is data
    column.reserve(1)
    assert len(column.data) == REFILLED_GROWTH * REFILLED_BYTES // 8
    assert (column.data[: HUGE_BYTES_MIN // 8] == 7).all()


def test_rows_that_do_not_fit_leave_a_column_as_it_was() -> None:
    column = GrowingArray(np.int64)
    column.extend(np.arange(3))
    with pytest.raises(ValueError, match="could not broadcast"):
        column.extend(np.zeros((2, 5), np.int64))
    assert column.rows().tolist() == [0, 1, 2]


# The map of byte strings


def resolved(strings: ByteMap, texts: list[bytes]) -> list[int]:
    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    hashes = np.array([xxhash.xxh64_intdigest(text) for text in texts], np.uint64)
    data = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    return strings.resolve(data, starts.astype(np.int64), ends.astype(np.int64), hashes).tolist()


def found(strings: ByteMap, text: bytes) -> int:
    return strings.find(np.frombuffer(text, np.uint8), np.uint64(xxhash.xxh64_intdigest(text)))


def test_strings_have_the_numbers_of_their_first_appearance() -> None:
    random_ = random.Random(4)
    texts = [bytes(random_.choices(b"ab", k=random_.randrange(20))) for _ in range(3 * SLOTS_MIN)]
    numbers: dict[bytes, int] = {}
    expected = [numbers.setdefault(text, len(numbers)) for text in texts]
    strings = ByteMap()
    given = [number for at in range(0, len(texts), 97) for number in resolved(strings, texts[at : at + 97])]
    assert given == expected
    assert len(strings) == len(numbers)
    assert [found(strings, text) for text in numbers] == list(numbers.values())
    assert found(strings, b"c") == -1
    data, offsets = strings.bytes_of(np.array([5, 0, 5], np.int64))
    names = list(numbers)
    assert [data[a:b] for a, b in itertools.pairwise(offsets)] == [names[5], names[0], names[5]]
    bounds, octets = strings.arrays()
    assert [octets[bounds[n] : bounds[n + 1]].tobytes() for n in range(len(names))] == names


@pytest.mark.parametrize("size", [7, 8, 9, 16, 17])
def test_strings_that_differ_in_one_byte_are_two_whatever_their_hash(size: int) -> None:
    strings = ByteMap()
    texts = [bytes(size), *(bytes(at) + b"x" + bytes(size - at - 1) for at in range(size)), bytes(size + 1)]
    data = np.frombuffer(b"".join(texts), np.uint8)
    ends = np.cumsum([len(text) for text in texts]).astype(np.int64)
    starts = ends - [len(text) for text in texts]
    same = np.full(len(texts), 3, np.uint64)
    assert strings.resolve(data, starts, ends, same).tolist() == list(range(len(texts)))
    assert strings.resolve(data, starts, ends, same).tolist() == list(range(len(texts)))


# Posting lists


@pytest.mark.parametrize("tail", [1, 10, 1 << 16])
def test_posting_lists_are_those_of_a_dictionary(monkeypatch: pytest.MonkeyPatch, tail: int) -> None:
    monkeypatch.setattr(postings_module, "TAIL_PAIRS_MAX", tail)
    random_ = random.Random(tail)
    lists: dict[tuple[int, int], list[int]] = {}
    postings = Postings()
    for first in range(0, 200, 10):
        pairs = [(name, random_.randrange(6), series) for series in range(first, first + 10) for name in (0, 1, 3)]
        for name, code, series in pairs:
            lists.setdefault((name, code), []).append(series)
        keys = np.array([key_of(name, code) for name, code, _ in pairs], np.int64)
        postings.add(keys, np.array([series for *_, series in pairs], np.int32))
        postings.add(np.zeros(0, np.int64), np.zeros(0, np.int32))
        now = postings.lists()
        for name in range(5):
            codes = sorted(code for own, code in lists if own == name)
            assert now.values(name).tolist() == codes
            assert now.values_bound(name) >= len(codes)
            for code in range(-1, 7):
                assert joined(now.pieces(name, code)).tolist() == lists.get((name, code), [])
            wanted = np.array([0, 2, 5, 9], np.int32)
            union = sorted(series for code in wanted.tolist() for series in lists.get((name, code), []))
            assert now.union(name, wanted).tolist() == union
    assert len(postings.lists().runs) <= 8


def test_posting_lists_that_were_taken_stay_as_they_were() -> None:
    postings = Postings()
    key = np.array([key_of(1, 1)], np.int64)
    postings.add(key, np.array([3], np.int32))
    taken = postings.lists()
    postings.add(key, np.array([4], np.int32))
    assert joined(taken.pieces(1, 1)).tolist() == [3]
    assert joined(postings.lists().pieces(1, 1)).tolist() == [3, 4]
    assert len(postings.lists().runs) == 1


@pytest.mark.parametrize("names", [[0], [0, 1, 5], [7, 1 << 20, (1 << 31) - 1]])
@pytest.mark.parametrize("codes_end", [1, 300, 1 << 12, (1 << 31) - 1])
def test_pairs_are_sorted_by_all_of_their_keys(names: list[int], codes_end: int) -> None:
    random_ = random.Random(codes_end)
    pairs = [(key_of(random_.choice(names), random_.randrange(codes_end)), i // 3) for i in range(3000)]
    keys, ids = np.array([key for key, _ in pairs]), np.array([series for _, series in pairs], np.int32)
    parts = (slice(1000), slice(1000, 1001), slice(1001, None))
    runs = [PostingRun.of(keys[part].copy(), ids[part].copy()) for part in parts]
    lists: dict[int, list[int]] = {}
    for key, series in sorted(pairs):
        lists.setdefault(key, []).append(series)
    for run in (runs[0].merged(runs[1]).merged(runs[2]), runs[0].merged(runs[1].merged(runs[2]))):
        assert run.keys.tolist() == list(lists)
        assert [ids.tolist() for ids in np.split(run.ids, run.starts[1:-1])] == list(lists.values())


def test_empty_posting_lists_have_nothing() -> None:
    empty = Postings().lists()
    assert empty.values_bound(0) == 0
    assert joined(empty.pieces(0, 0)).tolist() == empty.values(0).tolist() == []
    assert empty.union(0, np.zeros(1, np.int32)).tolist() == []


def test_distinct_codes_are_ascending_and_once() -> None:
    assert distinct(np.array([3, 1, 3, 2, 1], np.int32)).tolist() == [1, 2, 3]
    assert distinct(np.array([7], np.int32)).tolist() == [7]
    assert distinct(np.zeros(0, np.int32)).tolist() == []


def test_the_keys_of_one_name_are_its_own() -> None:
    run = PostingRun.of(np.array([1 << 32, 1 << 32 | 5, 2 << 32], np.int64), np.array([0, 1, 2], np.int32))
    assert [run.span(name) for name in range(4)] == [(0, 0), (0, 2), (2, 3), (3, 3)]


# The cache


def test_the_least_recently_used_is_forgotten_first() -> None:
    cache = DecodedCache(10)
    for name in "abc":
        cache.put(name, name.upper(), 3)
    assert cache.get("a") == "A"
    cache.put("d", "D", 4)
    assert {name: cache.get(name) for name in "abcd"} == {"a": "A", "b": None, "c": "C", "d": "D"}
    assert cache.size_bytes == 10


def test_what_is_kept_anew_counts_once_and_what_is_too_large_not_at_all() -> None:
    cache = DecodedCache(10)
    cache.put("a", 1, 8)
    cache.put("a", 2, 10)
    assert (cache.get("a"), cache.size_bytes) == (2, 10)
    cache.put("a", 3, 11)
    assert (cache.get("a"), cache.size_bytes) == (2, 10)
    cache.put("b", 4, 1)
    assert (cache.get("a"), cache.get("b"), cache.size_bytes) == (None, 4, 1)


def test_a_cache_that_shrinks_forgets_the_least_recently_used_first() -> None:
    cache = DecodedCache(10)
    for name in "abc":
        cache.put(name, name.upper(), 3)
    cache.shrink(6)
    assert {name: cache.get(name) for name in "abc"} == {"a": None, "b": "B", "c": "C"}
    assert (cache.bytes_max, cache.size_bytes) == (6, 6)
    cache.put("d", "D", 7)
    assert (cache.get("d"), cache.size_bytes) == (None, 6)


@pytest.mark.parametrize("act", ["get", "put"])
def test_the_cache_is_one_threads_at_a_time(act: str) -> None:
    cache = DecodedCache(10)
    cache.put("a", 1, 8)
    done = threading.Event()

    def use() -> None:
        cache.get("a") if act == "get" else cache.put("b", 2, 1)
        done.set()

    with cache._lock:
        threading.Thread(target=use, daemon=True).start()
        assert not done.wait(0.05)
    assert done.wait(TIMEOUT_S)


# Retention


def test_the_clock_is_believed_after_it_went_right_for_long_enough() -> None:
    clock = WallClock()
    assert not clock.believed(1_000_000, 50)
    assert not clock.believed(1_000_000 + SETTLE_MS - 1, 50 + SETTLE_MS - 1)
    assert clock.believed(1_000_000 + SETTLE_MS, 50 + SETTLE_MS)
    assert clock.believed(1_000_001 + SETTLE_MS, 51 + SETTLE_MS)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_that_jumps_is_not_believed_until_it_went_right_again(sign: int) -> None:
    clock = WallClock()
    clock.believed(0, 0)
    assert clock.believed(SETTLE_MS, SETTLE_MS)
    assert clock.believed(SETTLE_MS + sign * DRIFT_MS, SETTLE_MS)
    jumped = SETTLE_MS + sign * (DRIFT_MS + 1)
    assert not clock.believed(jumped, SETTLE_MS)
    assert not clock.believed(jumped + SETTLE_MS - 1, 2 * SETTLE_MS - 1)
    assert clock.believed(jumped + SETTLE_MS, 2 * SETTLE_MS)


def test_a_clock_may_drift_a_hundredth_of_the_time_that_passed() -> None:
    for over in (0, 1):
        clock = WallClock()
        clock.believed(0, 0)
        assert clock.believed(SETTLE_MS + DRIFT_MS + SETTLE_MS // 100 + over, SETTLE_MS) == (not over)


def block(latest_ms: int, size_bytes: int = 10, earliest_ms: int | None = None, generation: int = 1) -> Block:
    earliest_ms = latest_ms if earliest_ms is None else earliest_ms
    row = SimpleNamespace(earliest_ms=earliest_ms, latest_ms=latest_ms, size_bytes=size_bytes, generation=generation)
    return cast(Block, SimpleNamespace(row=row))


def test_one_window_of_what_is_too_old_is_dropped_at_a_time() -> None:
    blocks = [block(latest) for latest in (250, 99, 150, 105, 199, 200)]
    assert [b.row.latest_ms for b in expired(blocks, 200, 100)] == [99]
    assert [b.row.latest_ms for b in expired(blocks[2:], 200, 100)] == [105, 150, 199]
    assert expired(blocks, 99, 100) == []
    assert [b.row.latest_ms for b in expired(blocks, 100, 100)] == [99]


@pytest.mark.parametrize(("bytes_max", "left"), [(0, 3), (30, 3), (29, 2), (20, 2), (19, 1), (1, 0)])
def test_the_oldest_are_dropped_until_the_rest_has_room(bytes_max: int, left: int) -> None:
    blocks = [block(3), block(1), block(2)]
    dropped: list[Any] = surplus(blocks, bytes_max)
    assert [b.row.latest_ms for b in dropped] == [1, 2, 3][: 3 - left]


def test_a_block_is_not_dropped_before_one_of_lower_generation_that_it_overlaps_directly_or_through_others() -> None:
    wide, bridge = block(450, earliest_ms=300, generation=1), block(310, earliest_ms=90, generation=2)
    correction, unrelated = block(95, earliest_ms=80, generation=3), block(85, generation=1)
    below = block(99, earliest_ms=60, generation=4)
    blocks = [correction, bridge, wide, unrelated, below]
    assert expired(blocks, 200, 100) == [unrelated]
    assert expired(blocks[:3] + blocks[4:], 450, 100) == []
    assert expired(blocks[:3] + blocks[4:], 451, 100) == [wide, bridge, correction, below]
    assert surplus(blocks, 1) == [unrelated, wide, bridge, correction, below]
    same_generation = [block(95, earliest_ms=80), block(450, earliest_ms=60)]
    assert expired(same_generation, 200, 100) == same_generation[:1]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(1, 5)), max_size=9),
    st.integers(0, 60),
    st.integers(1, 100),
)
def test_whatever_is_dropped_covers_no_block_that_is_left(
    rows: list[tuple[int, int, int]], before_ms: int, bytes_max: int
) -> None:
    blocks = [block(first + length, 10, first, generation) for first, length, generation in rows]
    for dropped in (expired(blocks, before_ms, 7), surplus(blocks, bytes_max)):
        left = [b.row for b in blocks if b not in dropped]
        for upper in (b.row for b in dropped):
            assert not any(
                lower.generation < upper.generation
                and lower.earliest_ms <= upper.latest_ms
                and lower.latest_ms >= upper.earliest_ms
                for lower in left
            )


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 5)), max_size=9),
    st.integers(0, 600),
)
def test_after_a_split_the_block_that_was_held_back_for_longest_is_dropped(
    rows: list[tuple[int, int, int]], before_ms: int
) -> None:
    blocks = [block(first + length, 10, first, generation) for first, length, generation in rows]
    if expired(blocks, before_ms, 1):
        return
    wide, from_ms = to_split(blocks, before_ms, 1)
    held = [b for b in blocks if b.row.latest_ms < before_ms - HELD_WINDOWS_MAX]
    assert bool(wide) == bool(held)
    if not held:
        return
    halves = [block(from_ms - 1, 10, b.row.earliest_ms, b.row.generation) for b in wide]
    halves += [block(b.row.latest_ms, 10, from_ms, b.row.generation) for b in wide]
    oldest = min(b.row.latest_ms for b in held)
    dropped = expired([b for b in blocks if b not in wide] + halves, before_ms, before_ms)
    assert oldest in [b.row.latest_ms for b in dropped]
    assert oldest < from_ms < before_ms


# Lists of texts


@pytest.mark.parametrize(
    ("limit", "texts", "is_cut"), [(0, "abc", False), (4, "abc", False), (3, "abc", False), (2, "ab", True)]
)
def test_a_list_is_cut_only_when_it_is_longer_than_its_limit(limit: int, texts: str, is_cut: bool) -> None:
    assert unpack(_texts({"b", "c", "a"}, limit).body, TextsReply) == TextsReply(list(texts), is_cut)
