"""Limits of the log's sequencer: ranges of numbers, sizes of segments, and which segments are due."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.log.retention import Retention
from coordinator.log.sequencer import RESERVE_AHEAD, Revoked, Segment, Sequencer
from shared.control import LocalControl
from shared.settings import Settings

# Numbers and segments


def sequencer_in(directory: Path, **options: Any) -> Sequencer:
    made = Sequencer(LocalControl(directory), Settings(**options), wall_ms=lambda: 1_000_000)
    made.open()
    return made


def test_numbers_up_to_the_reserved_limit_touch_no_disk(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    sequencer.start_segment()
    assert sequencer.ready_for(RESERVE_AHEAD)
    assert not sequencer.ready_for(RESERVE_AHEAD + 1)
    written = (tmp_path / "state").read_bytes()
    sequencer.reserve(RESERVE_AHEAD)
    assert (tmp_path / "state").read_bytes() == written
    sequencer.reserve(1)
    assert (tmp_path / "state").read_bytes() != written


def test_a_further_range_is_reserved_when_less_than_half_of_the_last_is_left(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    assert not sequencer.running_low()
    sequencer.reserve(RESERVE_AHEAD // 2)
    assert not sequencer.running_low()
    sequencer.reserve(1)
    assert sequencer.running_low()
    sequencer.extend()
    assert not sequencer.running_low()
    assert sequencer.ready_for(RESERVE_AHEAD)
    assert not sequencer.ready_for(RESERVE_AHEAD + 1)


def test_a_range_is_never_made_shorter(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    sequencer.extend(5 * RESERVE_AHEAD)
    sequencer.extend()
    sequencer.start_segment()
    assert sequencer.ready_for(6 * RESERVE_AHEAD)
    assert not sequencer.ready_for(6 * RESERVE_AHEAD + 1)


def test_a_segment_ends_with_exactly_so_many_bytes(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path, log_segment_bytes=1024)
    assert not sequencer.segment_is_due()
    sequencer.reserve(1, 1023)
    assert not sequencer.segment_is_due()
    sequencer.reserve(1, 1)
    assert sequencer.segment_is_due()
    assert not sequencer.ready_for(1)
    sequencer.start_segment()
    assert not sequencer.segment_is_due()
    assert [(s.id, s.start_seq, s.bytes) for s in sequencer.segments] == [(0, 0, 1024), (1, 2, 0)]


def test_a_segment_without_records_is_not_followed_by_another(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    for _ in range(2):
        sequencer.start_segment()
    assert [(s.id, s.start_seq) for s in sequencer.segments] == [(0, 0)]


def test_skipping_goes_up_only(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    sequencer.skip_to(7)
    sequencer.skip_to(3)
    assert sequencer.next == 7


def test_so_many_segments_are_dropped_and_no_more(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path, log_segment_bytes=1024)
    for _ in range(4):
        sequencer.reserve(1, 2000)
    assert sequencer.log_start == 0
    sequencer.drop_segments(2)
    assert [s.id for s in sequencer.segments] == [2, 3]
    assert sequencer.log_start == 2


def test_segments_that_shards_hold_come_in_order(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    sequencer.segments = [Segment(3, 9, 0)]
    sequencer.add_segments([Segment(2, 5, 0, 7), Segment(1, 0, 0)])
    assert [s.id for s in sequencer.segments] == [1, 2, 3]


def test_what_was_written_down_is_read_again(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    assert sequencer.is_new
    sequencer.confirm()
    assert not sequencer.is_new
    sequencer.reserve(3, 30)
    sequencer.settled = 2
    sequencer.revoked.append(Revoked(0, 1, [(1, 2)], [0]))
    sequencer.close()
    again = sequencer_in(tmp_path)
    assert (again.is_new, again.next, again.settled, again.revoked) == (False, 3, 2, sequencer.revoked)
    assert again.segments == sequencer.segments


# Retention


def due(segments: list[Segment], **options: Any) -> int:
    sequencer = SimpleNamespace(segments=segments)
    ages = SimpleNamespace(before_ms=lambda age_ms: 10_000 - age_ms)
    parts = (None, sequencer, None, None, None, ages)
    return Retention(Settings(**options), *(cast(Any, each) for each in parts))._due()


@pytest.mark.parametrize(
    ("limit_bytes", "dropped"), [(1024 * 4, 0), (1024 * 4 - 1, 1), (1024 * 3, 1), (1024 * 2 - 1, 3), (1, 3), (0, 0)]
)
def test_segments_above_the_size_kept_are_due_from_the_oldest_and_never_the_last(
    limit_bytes: int, dropped: int
) -> None:
    assert due([Segment(n, n, 0, 1024) for n in range(4)], log_retention_bytes=limit_bytes) == dropped


@pytest.mark.parametrize(
    ("kept_ms", "dropped"), [(9000, 0), (8000, 0), (7999, 1), (7000, 1), (6999, 2), (1, 3), (0, 0)]
)
def test_segments_that_ended_before_the_time_kept_are_due(kept_ms: int, dropped: int) -> None:
    """They began at 1, 2, 3 and 4 s; it is 10 s now."""
    assert due([Segment(n, n, 1000 * (n + 1), 9) for n in range(4)], log_retention_ms=kept_ms) == dropped


def test_what_age_has_made_due_does_not_count_for_the_size() -> None:
    segments = [Segment(n, n, 1000 * (n + 1), 1024) for n in range(4)]
    assert due(segments, log_retention_ms=7000, log_retention_bytes=3 * 1024) == 1
    assert due(segments, log_retention_ms=7000, log_retention_bytes=3 * 1024 - 1) == 2
    assert due([], log_retention_ms=1, log_retention_bytes=1) == 0
