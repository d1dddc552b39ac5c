"""Row keys and runs of the log: their order is the order of keys and numbers, whatever the bytes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.log import Range
from shared.messages.log_pages import Page, Records, merge_pages
from tests.unit.log_shard import OneShard
from worker.logs import entries, key_lists, reading, rows
from worker.logs.runs import run_of, unpacked

KEYS = st.binary(max_size=6) | st.text("\0\x01a", max_size=6).map(str.encode) | st.just(b"\xff\xff")


@given(st.lists(KEYS, min_size=2, max_size=2))
def test_encoded_keys_keep_their_order(pair: list[bytes]) -> None:
    a, b = pair
    assert (rows.ended(a) < rows.ended(b)) == (a < b)
    assert rows.unended(rows.ended(a)) == a


@given(KEYS, KEYS, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_row_lies_in_the_range_of_its_prefixes_only(key: bytes, prefix: bytes, segment: int, number: int) -> None:
    row = rows.runs_of(segment, key) + rows.sequence_bytes(number)
    start, end = rows.prefix_range(segment, prefix)
    assert (start <= row < end) == key.startswith(prefix)
    assert (row < rows.past_key(segment, prefix)) == (key <= prefix)
    assert (rows.key_of(row), rows.segment_of(row), rows.sequence_of(row)) == (key, segment, number)


@pytest.mark.parametrize(
    ("numbers", "codes", "keys", "words"),
    [
        (np.arange(3), np.zeros(2), [b"a"], "it has 3 numbers and 2 codes"),
        (np.arange(2), np.array([0, 1]), [b"a"], "it has the code 1 and 1 keys"),
        (np.arange(1), np.zeros(1), [], "it has the code 0 and 0 keys"),
    ],
)
def test_an_entry_whose_lists_do_not_fit_together_is_refused(
    numbers: np.ndarray, codes: np.ndarray, keys: list[bytes], words: str
) -> None:
    stored = [0, [], numbers.astype("<u8").tobytes(), codes.astype("<u4").tobytes(), keys]
    with pytest.raises(ValueError, match=words):
        entries.unpacked(msgspec.msgpack.encode(stored))


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=30), st.integers(0, 40), st.integers(0, 40))
def test_a_run_is_cut_as_a_list_would_be(values: list[bytes], start: int, end: int) -> None:
    run = unpacked(run_of(np.arange(5, 5 + len(values), dtype=np.uint64), values).packed())
    cut = run.between(start, end)
    expected = [(n, v) for n, v in enumerate(values, 5) if start <= n < end]
    assert [(n, cut.value(i)) for i, n in enumerate(cut.sequences.tolist())] == expected
    hidden = run.without([(start, end)])
    assert hidden.sequences.tolist() == [n for n in range(5, 5 + len(values)) if not start <= n < end]
    assert [run.reversed().value(i) for i in range(len(values))] == values[::-1]
    fitting = run.fitting(7, 30)
    assert 1 <= len(fitting.sequences) <= 7
    assert sum(map(len, values[: len(fitting.sequences) - 1])) <= 30


def test_pages_are_merged_as_far_as_all_are_complete() -> None:
    def page(numbers: list[int], following: int, done: bool) -> Page:
        names = [b"%d" % n for n in numbers]
        return Page(Records.of(np.array(numbers, np.uint64), names, names), following, done)

    merged = merge_pages([page([1, 4, 9], 10, False), page([2, 6], 7, False), page([], 20, True)], 100)
    assert (merged.records.sequences.tolist(), merged.next, merged.done) == ([1, 2, 4, 6], 7, False)
    cut = merge_pages([page([1, 4], 20, True), page([2, 6], 20, True)], 3)
    assert (cut.records.value_list(), cut.next, cut.done) == ([b"1", b"2", b"4"], 6, False)


def test_many_records_of_a_key_are_read_across_runs_and_after_a_restart(tmp_path: Path) -> None:
    shard = OneShard(tmp_path)
    for group in range(0, 120_000, 10_000):
        values = [b"%d" % (group + i) * 20 for i in range(10_000)]
        shard.append(group, [(b"a" if i % 2 else b"b", value) for i, value in enumerate(values)])
        if group == 60_000:
            shard.part.gather()
    for _ in range(2):
        part = shard.part
        everything = Range(0, 0, 0, 120_000)
        seen: list[int] = []
        at, done = 0, False
        while not done:
            records, at, done = reading.scan(part, Range(0, 0, at, 120_000), b"a", 3000, False)
            seen += records.sequences.tolist()
            assert records.value_list()[:1] == [b"%d" % seen[-len(records)] * 20] if len(records) else done
        assert seen == list(range(1, 120_000, 2))
        newest = reading.scan(part, Range(0, 0, 0, 110_000), b"b", 3, True).records
        assert newest.value_list() == [b"109998" * 20, b"109996" * 20, b"109994" * 20]
        assert reading.count_key(part, Range(0, 0, 77, 99_999), b"a", lambda: None) == 49_961
        merged = reading.merge(part, Range(0, 0, 59_990, 60_010), b"", 100, lambda: None).records
        assert merged.sequences.tolist() == list(range(59_990, 60_010))
        assert key_lists.keys(part, everything, b"", None, 10, lambda: None) == [b"a", b"b"]
        assert len(list(part.store.scan("log", rows.RUN, rows.after(rows.RUN)))) > 10
        shard.restart()
        assert shard.part.counts() == {"records": 120_000}
    shard.close()
