"""Runs of a log's records, and cursors: what they hold at their edges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.errors import Conflict, DeadlineExceeded
from shared.messages.log import CursorMove
from tests.unit.log_shard import OneShard
from worker.logs import cursors, rows
from worker.logs.runs import EMPTY, TIME_SPAN_MS_MAX, TIMED, RecordRun, counted, joined, run_of, unpacked

VALUES = [b"abc", b"", b"defg", b"h"]
NUMBERS = [5, 6, 9, 12]
TIMES = [1735689600000, 1735689600000, 1735689600007, 1735689600000 + TIME_SPAN_MS_MAX]


@pytest.fixture
def run() -> RecordRun:
    return run_of(np.array(NUMBERS, np.uint64), VALUES, np.array(TIMES))


def content(run: RecordRun) -> list[tuple[int, bytes]]:
    return [(number, run.value(at)) for at, number in enumerate(run.sequences.tolist())]


def test_a_run_lies_in_its_row_as_columns(run: RecordRun) -> None:
    row = (
        (4 + TIMED).to_bytes(4, "little")
        + TIMES[0].to_bytes(8, "little")
        + b"".join(number.to_bytes(8, "little") for number in NUMBERS)
        + b"".join(len(value).to_bytes(4, "little") for value in VALUES)
        + b"".join((time_ms - TIMES[0]).to_bytes(4, "little") for time_ms in TIMES)
        + b"abcdefgh"
    )
    assert run.packed() == row
    assert counted(row) == (4, 12, 8)
    assert content(unpacked(row)) == list(zip(NUMBERS, VALUES, strict=True))
    assert unpacked(row).times.tolist() == TIMES
    assert counted(row) == (4, NUMBERS[-1], 8)
    assert run.cut(1, 3).packed() == run_of(np.array([6, 9], np.uint64), [b"", b"defg"], run.times[1:3]).packed()


def test_a_run_of_an_earlier_format_has_no_times() -> None:
    row = (
        (4).to_bytes(4, "little")
        + b"".join(number.to_bytes(8, "little") for number in NUMBERS)
        + b"".join(len(value).to_bytes(4, "little") for value in VALUES)
        + b"abcdefgh"
    )
    assert counted(row)[:2] == (4, 12)
    assert content(unpacked(row)) == list(zip(NUMBERS, VALUES, strict=True))
    assert unpacked(row).times.tolist() == [0, 0, 0, 0]
    assert counted(row) == (4, NUMBERS[-1], 8)


def test_a_number_is_found_where_it_is(run: RecordRun) -> None:
    assert [run.find(number) for number in range(4, 14)] == [None, 0, 1, None, None, 2, None, None, 3, None]


@pytest.mark.parametrize("low", range(5))
@pytest.mark.parametrize("high", range(5))
def test_a_run_is_cut_by_position(run: RecordRun, low: int, high: int) -> None:
    expected = [item for at, item in enumerate(zip(NUMBERS, VALUES, strict=True)) if low <= at < high]
    assert content(run.cut(low, high)) == expected


@pytest.mark.parametrize(
    ("records", "size_bytes", "count"),
    [(9, 0, 1), (9, 3, 1), (9, 4, 3), (9, 7, 3), (9, 8, 4), (9, 99, 4), (2, 99, 2), (1, 7, 1), (3, 8, 3)],
)
def test_a_run_ends_with_the_record_that_reaches_the_bound(
    run: RecordRun, records: int, size_bytes: int, count: int
) -> None:
    assert content(run.fitting(records, size_bytes)) == list(zip(NUMBERS, VALUES, strict=True))[:count]


def test_runs_without_records_are_empty(run: RecordRun) -> None:
    assert content(run.without([(0, 99)])) == []
    assert content(run.without([(6, 9), (12, 13)])) == [(5, b"abc"), (9, b"defg")]
    assert run.without([(0, 5), (7, 9), (13, 99)]) is run
    assert content(run.reversed()) == list(zip(NUMBERS, VALUES, strict=True))[::-1]
    assert len(joined([])) == len(joined([EMPTY])) == 0
    assert run.without([(6, 9)]).times.tolist() == [TIMES[0], TIMES[2], TIMES[3]]
    assert run.reversed().times.tolist() == TIMES[::-1]
    both = joined([run, EMPTY, run.cut(0, 1)])
    assert both.times.tolist() == [*TIMES, TIMES[0]]
    assert (both.sequences.tolist(), both.value_list()) == ([*NUMBERS, 5], [*VALUES, b"abc"])


# Cursors


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    made = OneShard(tmp_path / "shard")
    yield made
    made.close()


def ready() -> None:
    """In time."""


def late() -> None:
    raise DeadlineExceeded("too late")


def moved(shard: OneShard, *moves: tuple[bytes, int, int | None], name: str = "c") -> None:
    cursors.move(shard.part, name, [CursorMove(*move) for move in moves], ready)


def test_positions_of_a_cursor_are_its_own(shard: OneShard) -> None:
    moved(shard, (b"b", 7, None), (b"a", 0, None))
    moved(shard, (b"b", 9, None), name="ca")
    assert cursors.read(shard.part, "c", None) == [(b"a", 0), (b"b", 7)]
    assert cursors.read(shard.part, "c", b"b") == [(b"b", 7)]
    assert cursors.read(shard.part, "c", b"none") == []
    cursors.remove(shard.part, "c", ready)
    assert cursors.read(shard.part, "c", None) == []
    assert cursors.read(shard.part, "ca", None) == [(b"b", 9)]


def test_a_move_that_is_not_as_expected_moves_nothing(shard: OneShard) -> None:
    moved(shard, (b"a", 3, -1))
    for expected, text in ((2, "is at 3, expected was at 2"), (-1, "is at 3, expected was not set")):
        with pytest.raises(Conflict, match=text):
            moved(shard, (b"b", 1, None), (b"a", 5, expected))
    assert cursors.read(shard.part, "c", None) == [(b"a", 3)]
    moved(shard, (b"a", 0, 3))
    with pytest.raises(Conflict, match="of key b'a' is at 0, expected was not set"):
        moved(shard, (b"a", 5, -1))
    moved(shard, (b"a", 5, 0))
    assert cursors.read(shard.part, "c", b"a") == [(b"a", 5)]


def test_a_move_that_comes_too_late_moves_nothing(shard: OneShard) -> None:
    moved(shard, (b"a", 3, None))
    with pytest.raises(DeadlineExceeded):
        cursors.move(shard.part, "c", [CursorMove(b"a", 4, None)], late)
    with pytest.raises(DeadlineExceeded):
        cursors.remove(shard.part, "c", late)
    assert cursors.read(shard.part, "c", None) == [(b"a", 3)]


def test_a_move_is_on_the_disk_when_it_returns(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    store = shard.store
    for name in ("write", "sync"):
        step = getattr(store, name)
        monkeypatch.setattr(store, name, lambda *told, name=name, step=step: steps.append(name) or step(*told))
    moved(shard, (b"a", 3, None))
    cursors.remove(shard.part, "c", ready)
    assert steps == ["write", "sync", "write", "sync"]


def test_an_answer_has_so_many_positions(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "POSITIONS_MAX", 3)
    moved(shard, *((b"%d" % at, at, None) for at in range(5)))
    assert cursors.read(shard.part, "c", None) == [(b"0", 0), (b"1", 1), (b"2", 2)]


def test_what_comes_after_a_prefix_is_above_all_that_begin_with_it() -> None:
    assert rows.after(b"a") == b"b"
    assert rows.after(b"a\xff\xff") == b"b"
    assert rows.after(b"a\xfe") == b"a\xff"
