"""What a shard has of the log in memory: which groups, how much, and what is left of it when some are gathered, taken
back or dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from shared.errors import Internal
from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.messages.log import Batch
from worker.logs.memory import GROUP_BYTES, Memory
from worker.logs.messages import Message
from worker.logs.recent import FIRST_ROWS, FIRST_WORDS, ROW_BYTES
from worker.logs.totals import Totals

VALUE = b"value of 17 bytes"
OCTETS = len(b"k0") + len(VALUE)


def message(group: int, *counts: int, segment: int = 0, settled: int = 0, producer: str = "") -> Message:
    """Batches of so many records, one after another from number `group` on."""
    start, batches, blocks = group, [], []
    for count in counts:
        batches.append(Batch(start, count, (0,), producer, start))
        blocks.append(block_of((hash64(b"k%d" % (at % 10)), at, b"k%d" % (at % 10), VALUE) for at in range(count)))
        start += count
    return Message(segment, group, group, settled, tuple(batches), b"".join(blocks))


def added(memory: Memory, *messages: Message) -> list[tuple[int, int]]:
    answers = []
    for position, each in enumerate(messages, 100):
        memory.stage(each)
        answers.append(memory.add(each, position))
    return answers


def numbers(memory: Memory, segment: int = 0) -> list[int]:
    return memory.segments[segment].snapshot().numbers.tolist()


def groups(memory: Memory) -> list[tuple[int, int, int]]:
    """(segment, group, batches)."""
    return [(held.segment, held.group, len(held.batches)) for held in memory.groups()]


def test_a_group_is_counted_by_its_records_and_the_bytes_of_keys_and_values() -> None:
    memory = Memory()
    assert added(memory, message(0, 2, 3), message(5, 1)) == [(5, 5 * OCTETS), (1, OCTETS)]
    assert memory.records == 6
    assert len(memory.segments[0]) == 6
    assert memory.segments[0].totals() == Totals(6, 6 * OCTETS, start=0)


def test_the_bytes_in_memory_are_those_of_frames_rows_and_groups() -> None:
    memory = Memory()
    first, second = message(0, 2), message(2, 3)
    added(memory, first, second)
    assert memory.bytes == len(first.frame) + len(second.frame) + 5 * ROW_BYTES + 2 * GROUP_BYTES


@pytest.mark.parametrize("closed", [2, 5])
def test_groups_below_a_boundary_are_taken_out_and_those_from_it_on_stay(closed: int) -> None:
    memory = Memory()
    added(memory, message(0, 2), message(2, 3), message(5, 1))
    taken = memory.split(closed)
    assert numbers(taken) == list(range(closed))
    assert numbers(memory) == list(range(closed, 6))
    assert groups(taken) == [held for held in [(0, 0, 1), (0, 2, 1), (0, 5, 1)] if held[1] < closed]
    assert groups(memory) == [held for held in [(0, 0, 1), (0, 2, 1), (0, 5, 1)] if held[1] >= closed]
    assert (taken.records, memory.records) == (closed, 6 - closed)


def test_what_is_taken_out_costs_nothing_any_more() -> None:
    memory = Memory()
    added(memory, message(0, 2), message(2, 3))
    taken = memory.split(5)
    assert (memory.records, memory.bytes) == (0, 0)
    assert taken.records == 5
    assert taken.bytes >= 5 * (OCTETS + ROW_BYTES) + 2 * GROUP_BYTES


def test_groups_that_overtook_each_other_are_taken_out_by_number() -> None:
    memory = Memory()
    added(memory, message(2, 3), message(0, 2), message(5, 1))
    taken = memory.split(2)
    assert numbers(taken) == [0, 1]
    assert sorted(numbers(memory)) == [2, 3, 4, 5]
    assert memory.segments[0].snapshot().rows(0, 10).tolist() != []


def test_only_the_segment_that_the_log_goes_on_in_is_kept_when_it_is_empty() -> None:
    memory = Memory()
    added(memory, message(0, 2), message(2, 1, segment=1))
    taken = memory.split(3)
    assert sorted(memory.segments) == [1]
    assert sorted(taken.segments) == [0, 1]
    added(memory, message(3, 1, segment=1))
    assert numbers(memory, 1) == [3]


def test_an_earlier_segment_is_kept_while_it_has_groups() -> None:
    memory = Memory()
    added(memory, message(0, 2), message(2, 1), message(3, 1, segment=1))
    memory.split(2)
    assert {segment: numbers(memory, segment) for segment in memory.segments} == {0: [2], 1: [3]}


def test_the_write_ahead_log_keeps_the_first_group_and_the_first_taking_back() -> None:
    memory = Memory()
    assert memory.first_position is None
    added(memory, message(0, 1), message(1, 1))
    assert memory.first_position == 100
    memory.revocations.append((1, 40))
    assert memory.first_position == 40
    memory.split(1)
    assert memory.first_position == 40
    memory.split(2)
    assert memory.first_position is None


def test_batches_taken_back_are_gone_with_their_records_and_answers() -> None:
    memory = Memory()
    added(memory, message(0, 2, 3, producer="p"), message(5, 1, producer="p"))
    assert memory.revoke(0, 0, [(2, 5)]) == (3, 3 * OCTETS)
    assert numbers(memory) == [0, 1, 5]
    assert memory.records == 3
    assert groups(memory) == [(0, 0, 1), (0, 5, 1)]
    assert memory.answers == {"p": {0: (0, 0, 2), 5: (5, 5, 1)}}
    assert memory.revoke(0, 0, [(0, 2)]) == (2, 2 * OCTETS)
    assert groups(memory) == [(0, 5, 1)]
    assert memory.revoke(0, 5, [(5, 6)]) == (1, OCTETS)
    assert memory.answers == {}
    assert memory.records == 0


def test_a_taking_back_of_what_is_not_there_takes_nothing() -> None:
    memory = Memory()
    assert memory.revoke(3, 0, [(0, 9)]) == (0, 0)
    added(memory, message(0, 2))
    assert memory.revoke(0, 0, [(2, 9)]) == (0, 0)
    assert numbers(memory) == [0, 1]
    assert groups(memory) == [(0, 0, 1)]


def test_dropped_segments_take_their_records_and_the_answers_before_them() -> None:
    memory = Memory()
    added(memory, message(0, 2, producer="p"), message(2, 1, segment=1, producer="p"), message(3, 1, segment=2))
    memory.drop(1, 2)
    assert sorted(memory.segments) == [1, 2]
    assert memory.records == 2
    assert memory.answers == {"p": {2: (2, 2, 1)}}


def test_answers_go_with_the_groups_that_are_taken_out() -> None:
    memory = Memory()
    added(memory, message(0, 2, producer="p"), message(2, 1, producer="p"), message(3, 1, producer="q"))
    taken = memory.split(2)
    assert taken.answers == {"p": {0: (0, 0, 2)}}
    assert memory.answers == {"p": {2: (2, 2, 1)}, "q": {3: (3, 3, 1)}}
    assert memory.split(3).answers == {"p": {2: (2, 2, 1)}}
    assert memory.answers == {"q": {3: (3, 3, 1)}}


def test_the_highest_settled_number_is_kept() -> None:
    memory = Memory()
    added(memory, message(5, 1, settled=5), message(6, 1, settled=3))
    assert memory.settled == 5
    assert memory.split(7).settled == 5


@pytest.mark.parametrize("cut", [1, 8])
def test_a_frame_that_is_not_whole_is_refused_and_leaves_nothing(cut: int) -> None:
    memory = Memory()
    whole = message(0, 2)
    broken = Message(0, 0, 0, 0, whole.batches, bytes(whole.frame)[:-cut])
    with pytest.raises(Internal, match="is not 1 blocks of records"):
        memory.stage(broken)
    assert added(memory, whole) == [(2, 2 * OCTETS)]
    assert numbers(memory) == [0, 1]


def test_more_blocks_than_batches_are_refused() -> None:
    memory = Memory()
    two = message(0, 1, 1)
    with pytest.raises(Internal, match="is not 1 blocks"):
        memory.stage(Message(0, 0, 0, 0, two.batches[:1], two.frame))


def values(memory: Memory, rows: Sequence[int] | np.ndarray) -> list[bytes]:
    return memory.segments[0].snapshot().records(np.asarray(rows, np.int64)).value_list()


def test_a_segment_grows_and_keeps_what_it_had() -> None:
    memory = Memory()
    each = FIRST_ROWS // 4
    for group in range(0, 40 * each, each):
        added(memory, message(group, each))
    words, rows = memory.segments[0].room
    assert rows >= 40 * each > FIRST_ROWS
    assert words * 8 >= 40 * each * OCTETS > FIRST_WORDS * 8
    assert numbers(memory) == list(range(40 * each))
    assert set(values(memory, range(40 * each))) == {VALUE}


def test_rows_are_those_of_the_range_that_are_not_hidden() -> None:
    memory = Memory()
    added(memory, message(4, 4), message(0, 4))
    snapshot = memory.segments[0].snapshot()

    def between(start: int, end: int, *hidden: tuple[int, int]) -> list[int]:
        return snapshot.numbers[snapshot.rows(start, end, hidden)].tolist()

    assert between(0, 8) == list(range(8))
    assert between(2, 5) == [2, 3, 4]
    assert between(2, 2) == []
    assert between(0, 8, (1, 3), (6, 7)) == [0, 3, 4, 5, 7]
    assert snapshot.numbers[snapshot.rows_of(b"k1")].tolist() == [1, 5]
    assert snapshot.rows_of(b"k9").tolist() == []


def test_keys_whose_hashes_are_equal_are_told_apart() -> None:
    keys = [b"aa", b"ab", b"aa", b"aaa", b"ab"]
    memory = Memory()
    block = block_of((7 << 20, at, key, b"%d" % at) for at, key in enumerate(keys))
    added(memory, Message(0, 0, 0, 0, (Batch(0, len(keys), (0,)),), block))
    snapshot = memory.segments[0].snapshot()
    grouped = snapshot.grouped(snapshot.rows(0, 9))
    assert snapshot.keys(snapshot.rows(0, 9)) == [b"aa", b"ab", b"aaa"]
    assert grouped.codes.tolist() == [0, 1, 0, 2, 1]
    assert grouped.order.tolist() == [0, 2, 1, 4, 3]
    assert grouped.starts.tolist() == [0, 2, 4, 5]
