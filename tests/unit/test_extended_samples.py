"""Histograms and start timestamps on the wire, in the journal and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import Internal
from shared.frames import samples as sample_frames
from shared.frames.samples import SampleColumns
from shared.histograms import references
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.extended_samples import Run, any_values, frame, read, starts, text_of, texts
from tests.unit.series_shard import TIMEOUT_S, Quiet
from worker.series import journal, sample_record
from worker.series.sample_record import Written
from worker.series.writing import write_to

ONE = NativeHistogram(schema=1, count=3.0, sum=0.5, positive={0: 1.0, 1: 2.0})

runs = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.lists(st.tuples(st.integers(-9, 9), any_values(), starts()), min_size=1, max_size=4)
    ),
    max_size=4,
)


def shown(columns: SampleColumns | Written) -> list[tuple[int, str, int]]:
    own_starts = columns.start_timestamps_ms
    found = np.zeros(len(columns.values), np.int64) if own_starts is None else own_starts
    return list(zip(columns.times_ms.tolist(), texts(columns.values, columns.histograms), found.tolist(), strict=True))


def expected(own: list[Run]) -> list[tuple[int, str, int]]:
    return [(time, text_of(value), start) for _, of_run in own for time, value, start in of_run]


@settings(max_examples=60, deadline=None)
@given(runs, runs)
def test_a_frame_says_what_was_put_into_it_alone_and_joined(first: list[Run], second: list[Run]) -> None:
    parts = [sample_frames.parse(frame(own)) for own in (first, second)]
    assert [shown(part) for part in parts] == [expected(first), expected(second)]
    together = sample_record.joined([Written.of_columns(part, np.arange(len(part.counts))) for part in parts])
    assert shown(together) == expected(first + second)
    assert together.counts.tolist() == [len(of_run) for _, of_run in first + second]


@settings(max_examples=60, deadline=None)
@given(runs, st.integers(-9, 9))
def test_a_record_of_the_journal_keeps_histograms_and_start_timestamps(own: list[Run], since: int) -> None:
    columns = sample_frames.parse(frame(own))
    record = Written.of_columns(columns, np.arange(len(own)) * 3)
    sequence, again = journal.decode(b"".join(map(bytes, journal.encode(record, 8))))
    assert sequence == 8
    assert isinstance(again, Written)
    assert shown(again) == expected(own)
    later = again.since(since)
    assert shown(later) == [entry for entry in expected(own) if entry[0] >= since]
    rows = [3 * run for run, (_, of_run) in enumerate(own) for time, _, _ in of_run if time >= since]
    assert later.rows().tolist() == rows


@settings(max_examples=60, deadline=None)
@given(st.lists(runs, min_size=1, max_size=4), st.integers(-9, 9))
def test_a_record_has_the_histograms_of_all_frames_as_they_came(frames_of_runs: list[list[Run]], since: int) -> None:
    parts = [sample_frames.parse(frame(own)) for own in frames_of_runs]
    written = sample_record.joined([Written.of_columns(part, np.arange(len(part.counts))) for part in parts])
    payload = b"".join(map(bytes, journal.encode(written, 8)))
    together = b"".join(bytes(octets) for part in parts if part.histograms for octets in part.histograms.bytes())
    assert together in payload
    _, again = journal.decode(payload)
    assert isinstance(again, Written)
    every = [entry for own in frames_of_runs for entry in expected(own)]
    assert shown(again) == every
    assert shown(again.since(since)) == [entry for entry in every if entry[0] >= since]


def test_a_record_at_an_odd_address_is_read() -> None:
    columns = sample_frames.parse(frame([("a", [(1, ONE, 5), (2, 0.5, 0)])]))
    payload = b"".join(map(bytes, journal.encode(Written.of_columns(columns, np.zeros(1, np.int64)), 8)))
    _, again = journal.decode(memoryview(b"-" + payload)[1:])
    assert isinstance(again, Written)
    assert shown(again) == shown(columns)


def test_samples_without_either_are_recorded_as_before() -> None:
    one = np.array([1])
    plain = Written(one, one, one, one * 0.5)
    with_starts = Written(one, one, one, one * 0.5, one)
    assert [bytes(journal.encode(record, 8)[0])[0] for record in (plain, with_starts)] == [1, 4]


def test_numbers_of_old_records_never_refer_to_histograms() -> None:
    one = np.array([1])
    record = Written(one, one, one, references.references(np.array([0])))
    _, again = journal.decode(b"".join(map(bytes, journal.encode(record, 8))))
    assert isinstance(again, Written)
    assert np.isnan(again.values).all()
    assert not references.is_reference(again.values).any()


def damaged_frames() -> list[bytes]:
    whole = frame([("a", [(1, ONE, 5), (2, 0.5, 0)])])
    words = np.frombuffer(whole, np.int64).copy()
    value_at = 4 + 1 + 2 + 1 + 2
    assert references.is_reference(words[value_at : value_at + 1].view(float)).all()
    dangling, starts_off, sizes_off = words.copy(), words.copy(), words.copy()
    dangling[value_at] += 1
    starts_off[-2] -= 1
    sizes_off[-1] = 1 << 62
    without = whole[:-16] + np.array([2, 0]).tobytes()
    return [whole[:-8], whole[:16], whole[:8], dangling.tobytes(), starts_off.tobytes(), sizes_off.tobytes(), without]


@pytest.mark.parametrize("number", range(7))
def test_a_frame_that_is_not_whole_is_refused(number: int) -> None:
    with pytest.raises(Internal):
        sample_frames.parse(damaged_frames()[number])


@pytest.mark.parametrize("column", ["values", "start_timestamps_ms"])
def test_a_record_that_makes_no_sense_is_refused(column: str) -> None:
    columns = sample_frames.parse(frame([("a", [(1, ONE, 5), (2, 0.5, 0)])]))
    record = Written.of_columns(columns, np.zeros(1, np.int64))
    payload = bytearray(b"".join(map(bytes, journal.encode(record, 8))))
    if column == "values":
        payload[24 + 16 + 16] += 1
    else:
        payload[24] -= 1
    with pytest.raises(ValueError, match="refer to histograms" if column == "values" else "bytes"):
        journal.decode(bytes(payload))


@pytest.mark.parametrize("counts", [(1, 1), (2, 0), (3, -1)])
def test_runs_that_have_other_samples_than_the_record_are_refused(counts: tuple[int, int]) -> None:
    record = Written(np.arange(2), np.array(counts), np.arange(2), np.zeros(2))
    data = b"".join(map(bytes, record.frames()))
    if min(counts) >= 0:
        assert sample_record.decode(data, 2, 2, is_extended=False).counts.tolist() == list(counts)
        counts = (counts[0] + 1, counts[1])
        data = b"".join(map(bytes, Written(record.series, np.array(counts), record.times_ms, record.values).frames()))
    with pytest.raises(ValueError, match=f"its runs have {sum(counts)} samples together; it has 2"):
        sample_record.decode(data, 2, 2, is_extended=False)


def by_job(*written: list[Run]) -> dict[str, list[tuple[int, str, int]]]:
    jobs: dict[str, dict[int, tuple[int, str, int]]] = {}
    for own in written:
        for job, of_run in own:
            jobs.setdefault(job, {}).update({time: (time, text_of(value), start) for time, value, start in of_run})
    return {job: [entries[time] for time in sorted(entries)] for job, entries in jobs.items()}


CUSTOM = NativeHistogram(schema=-53, positive={0: 2.0}, count=2.0, bounds=(0.5, 1.0))
FIRST: list[Run] = [("a", [(10, ONE, 5), (20, 0.5, 0), (30, ONE, 5)]), ("b", [(10, 1.0, 3)])]
SECOND: list[Run] = [("b", [(10, ONE, 0), (40, 2.0, 0)]), ("c", [(5, CUSTOM, 1)])]


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path)
    yield opened
    opened.close()


def test_histograms_and_start_timestamps_survive_a_restart(shard: Quiet) -> None:
    assert write_to(shard.part, [frame(FIRST), frame(SECOND)], TIMEOUT_S) == 7
    assert read(shard) == by_job(FIRST, SECOND)
    for _ in range(2):
        shard.reopen()
        assert read(shard) == by_job(FIRST, SECOND)
        assert shard.part.counts()["head_samples"] == 6


def test_a_torn_record_leaves_those_before_it(shard: Quiet) -> None:
    write_to(shard.part, [frame(FIRST)], TIMEOUT_S)
    write_to(shard.part, [frame(SECOND)], TIMEOUT_S)
    shard.close()
    newest = shard.files_of_log()[-1]
    content = newest.read_bytes()
    used = len(content.rstrip(b"\0"))
    newest.write_bytes(content[: used - 20])
    shard.open()
    assert {"a": by_job(FIRST)["a"]}.items() <= read(shard).items()
    assert "c" not in read(shard)


def test_a_deletion_removes_histograms_and_is_replayed(shard: Quiet) -> None:
    write_to(shard.part, [frame(FIRST), frame(SECOND)], TIMEOUT_S)
    shard.part.delete([[]], 0, 10, TIMEOUT_S)
    written = by_job(FIRST, SECOND)
    left = {job: [entry for entry in own if entry[0] > 10] for job, own in written.items()}
    assert sum(map(len, written.values())) - sum(map(len, left.values())) == 3
    for _ in range(2):
        assert {job: own for job, own in read(shard).items() if own} == {job: left[job] for job in "ab"}
        shard.reopen()


def test_sealed_histograms_and_start_timestamps_are_read_with_those_of_the_head(shard: Quiet) -> None:
    write_to(shard.part, [frame(FIRST)], TIMEOUT_S)
    shard.seal(before_ms=25)
    write_to(shard.part, [frame(SECOND)], TIMEOUT_S)
    for _ in range(2):
        assert read(shard) == by_job(FIRST, SECOND)
        shard.reopen()
    shard.seal()
    assert shard.part.counts()["head_samples"] == 0
    assert read(shard) == by_job(FIRST, SECOND)
