"""The sequencer: numbers are never given twice, segments end by size and age."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from coordinator.log.sequencer import RESERVE_AHEAD, Revoked, Sequencer
from shared.control import LocalControl
from shared.errors import ConfigError, Unavailable
from shared.settings import Settings


def opened(directory: Path, **options: int) -> Sequencer:
    sequencer = Sequencer(LocalControl(directory), Settings(**options))
    sequencer.open()
    return sequencer


def test_numbers_are_consecutive_from_zero(tmp_path: Path) -> None:
    sequencer = opened(tmp_path)
    assert [sequencer.reserve(3), sequencer.reserve(1), sequencer.reserve(10)] == [0, 3, 4]
    assert sequencer.next == 14


def test_an_orderly_stop_leaves_no_gap(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.reserve(7)
    first.close()
    assert opened(tmp_path).reserve(1) == 7


def test_a_crash_skips_what_may_have_been_given(tmp_path: Path) -> None:
    first = opened(tmp_path)
    last = first.reserve(RESERVE_AHEAD - 1) + RESERVE_AHEAD - 2
    assert opened(tmp_path).reserve(1) > last


@given(steps=st.lists(st.tuples(st.integers(1, RESERVE_AHEAD), st.sampled_from(["", "crash", "stop"])), max_size=12))
@hypothesis_settings(max_examples=25, deadline=None)
def test_no_number_is_given_twice_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    directory = tmp_path_factory.mktemp("sequencer")
    sequencer, above = opened(directory), 0
    for count, ending in steps:
        start = sequencer.reserve(count)
        assert start >= above
        above = start + count
        if ending == "stop":
            sequencer.close()
        if ending:
            sequencer = opened(directory)


def test_a_torn_write_leaves_the_state_before_it(tmp_path: Path) -> None:
    first = opened(tmp_path)
    given_last = first.reserve(5) + 4
    (tmp_path / "state.new").write_bytes((tmp_path / "state").read_bytes()[:11])
    assert opened(tmp_path).reserve(1) > given_last


def test_a_damaged_state_is_a_clear_error(tmp_path: Path) -> None:
    opened(tmp_path).close()
    content = bytearray((tmp_path / "state").read_bytes())
    content[-1] ^= 1
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(ConfigError, match=r"state is damaged \(its checksum does not match\)"):
        opened(tmp_path)


def test_a_full_disk_refuses_numbers_beyond_the_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequencer = opened(tmp_path)
    sequencer.reserve(1)

    def full(self: LocalControl, name: str, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalControl, "replace", full)
    sequencer.reserve(10)
    with pytest.raises(Unavailable, match="No space left on device"):
        sequencer.reserve(2 * RESERVE_AHEAD)
    assert sequencer.next == 11


def test_segments_end_by_size(tmp_path: Path) -> None:
    sequencer = opened(tmp_path, log_segment_bytes=1024)
    for _ in range(5):
        sequencer.reserve(2, 600)
    assert [(s.id, s.start_seq) for s in sequencer.segments] == [(0, 0), (1, 4), (2, 8)]


def test_segments_end_by_age_though_the_clock_jumps_back(tmp_path: Path) -> None:
    now = [1_000_000]
    sequencer = Sequencer(LocalControl(tmp_path), Settings(log_segment_age_ms=1000), wall_ms=lambda: now[0])
    sequencer.open()
    sequencer.reserve(1)
    now[0] += 1000
    sequencer.reserve(1)
    now[0] -= 500_000
    sequencer.start_segment()
    assert [s.start_time_ms for s in sequencer.segments] == [1_000_000, 1_001_000, 1_001_000]


def test_segments_and_revoked_batches_survive_a_crash(tmp_path: Path) -> None:
    first = opened(tmp_path, log_segment_bytes=1024)
    first.reserve(3, 2000)
    first.reserve(3, 10)
    first.revoked.append(Revoked(1, 3, [(3, 6)], [0, 2]))
    first.save()
    second = opened(tmp_path)
    assert [(s.id, s.start_seq) for s in second.segments] == [(0, 0), (1, 3)]
    assert second.revoked == [Revoked(1, 3, [(3, 6)], [0, 2])]


def test_dropping_keeps_the_last_segment(tmp_path: Path) -> None:
    sequencer = opened(tmp_path, log_segment_bytes=1024)
    for _ in range(3):
        sequencer.reserve(1, 2000)
    sequencer.drop_segments(9)
    assert [s.id for s in sequencer.segments] == [2]
    assert sequencer.log_start == 2


def test_no_number_comes_twice_though_the_clock_jumps_back_over_a_restart(tmp_path: Path) -> None:
    now = [1_000_000]
    last = -1
    for jump in (0, -900_000, 5_000, -99_000):
        now[0] += jump
        sequencer = Sequencer(LocalControl(tmp_path), Settings(log_segment_bytes=1024), wall_ms=lambda: now[0])
        sequencer.open()
        for _ in range(3):
            first = sequencer.reserve(2, 2000)
            assert first > last
            last = first + 1
        starts = [s.start_time_ms for s in sequencer.segments]
        assert starts == sorted(starts)
        if jump < 0:
            sequencer.close()


def test_the_state_is_written_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequencer = opened(tmp_path, log_segment_bytes=1024)
    writes: list[bool] = []
    write = sequencer._write

    def watched(*arguments: Any, **options: Any) -> None:
        writes.append(sequencer._lock.locked())
        write(*arguments, **options)

    monkeypatch.setattr(sequencer, "_write", watched)
    sequencer.confirm()
    sequencer.extend()
    sequencer.start_segment()
    sequencer.save()
    sequencer.close()
    assert writes == [True] * 5


@pytest.mark.parametrize(
    ("change", "words"),
    [({"format": 99}, "it has format 99, this program reads"), ({"limit": "x"}, "Expected `int`, got `str`")],
)
def test_a_state_of_another_program_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    opened(tmp_path).close()
    path = tmp_path / "state"
    content = msgspec.json.decode(path.read_bytes()[8:]) | change
    payload = msgspec.json.encode(content)
    path.write_bytes(xxhash.xxh64_digest(payload) + payload)
    with pytest.raises(ConfigError, match=words):
        opened(tmp_path)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file/log/state cannot be used: Not a directory"):
        opened(tmp_path / "file" / "log")


def test_a_disk_that_is_full_at_the_start_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Sequencer, *_: Any, **__: Any) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(Sequencer, "_write", refuse)
    with pytest.raises(ConfigError, match="the disk is full"):
        opened(tmp_path)


def test_half_of_the_reserved_range_is_low(tmp_path: Path) -> None:
    sequencer = opened(tmp_path)
    sequencer.start_segment()
    sequencer.next = sequencer._limit - RESERVE_AHEAD // 2
    assert not sequencer.running_low()
    sequencer.next += 1
    assert sequencer.running_low()


def test_what_is_prepared_is_ready_and_no_more_is_reserved_than_needed(tmp_path: Path) -> None:
    sequencer = opened(tmp_path)
    sequencer.prepare(0)
    assert len(sequencer.segments) == 1
    limit = sequencer._limit
    room = limit - sequencer.next
    sequencer.prepare(room)
    assert sequencer._limit == limit and sequencer.ready_for(room)
    assert not sequencer.ready_for(room + 1)
    sequencer.prepare(room + 1)
    assert sequencer._limit == sequencer.next + room + 1 + RESERVE_AHEAD and sequencer.ready_for(room + 1)
    assert len(sequencer.segments) == 1
