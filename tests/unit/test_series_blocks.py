"""Sealed samples: exact, merged with what comes later, deleted, dropped and compacted, whatever happens in between."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import Unavailable
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.promql.ast import Matcher
from tests.unit.series_shard import EVERYTHING, FAR_MS, TIMEOUT_S, WINDOW_MS, A, B, Quiet, m
from worker.series import sweeping
from worker.series.blocks.block import Block
from worker.series.blocks.writer import BlockWriter
from worker.series.head import NEVER
from worker.storage.wal import record


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path)
    yield opened
    opened.close()


def test_sealed_samples_are_read_back_and_the_journal_is_cut(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (2500, 2.0)]), (m(job="b"), [(5, 3.0)])])
    shard.seal()
    expected = {A: [(1, 1.0), (2500, 2.0)], B: [(5, 3.0)]}
    assert shard.samples() == expected
    assert shard.journal() == 0
    assert [(b.row.earliest_ms, b.row.latest_ms) for b in shard.part.contents.layers.blocks] == [(1, 5), (2500, 2500)]
    shard.reopen()
    assert shard.samples() == expected
    assert shard.samples(Matcher("job", "=", "b")) == {B: [(5, 3.0)]}
    assert shard.samples(window=(6, 2400)) == {}
    assert shard.part.counts()["head_samples"] == 0
    shard.write([(m(job="b"), [(6, 4.0)])])
    shard.reopen()
    assert shard.samples(Matcher("job", "=", "b")) == {B: [(5, 3.0), (6, 4.0)]}


def test_samples_younger_than_the_window_stay_in_memory_and_in_the_journal(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    shard.write([(m(job="a"), [(2, 2.0), (1000, 3.0)])])
    shard.write([(m(job="a"), [(1001, 4.0)])])
    shard.seal(1000)
    expected = {A: [(1, 1.0), (2, 2.0), (1000, 3.0), (1001, 4.0)]}
    assert shard.samples() == expected
    assert shard.part.counts()["head_samples"] == 2
    assert [own.row.samples for own in shard.part.contents.layers.blocks] == [2]
    assert shard.journal() == 2
    shard.reopen()
    assert shard.samples() == expected
    assert shard.part.counts()["head_samples"] == 2
    shard.write([(m(job="a"), [(2000, 5.0)])])
    shard.seal(2000)
    assert shard.samples() == {A: [*expected[A], (2000, 5.0)]}
    assert shard.journal() == 1


def test_samples_that_are_being_sealed_count_among_those_that_no_block_has(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (2, 2.0)])])
    contents = shard.part.contents
    contents.freeze(shard.part.journal.next_sequence)
    counted = shard.part.counts()
    assert (counted["samples"], counted["head_samples"], counted["blocks"]) == (2, 2, 0)
    shard.write([(m(job="a"), [(3, 3.0)])])
    assert shard.part.counts()["head_samples"] == 3
    frozen = contents.layers.frozen
    assert frozen is not None
    contents.head = frozen
    assert shard.part.counts()["head_samples"] == 2, "counted once in the moment of freezing"


def test_a_late_sample_replaces_the_sealed_one_and_is_merged_at_compaction(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (2, 1.0), (3, 1.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(2, 2.0)])])
    assert shard.samples() == {A: [(1, 1.0), (2, 2.0), (3, 1.0)]}
    shard.seal()
    shard.write([(m(job="a"), [(3, 3.0)])])
    expected = {A: [(1, 1.0), (2, 2.0), (3, 3.0)]}
    assert shard.samples() == expected
    shard.part._upkeep.blocks._window_ms = WINDOW_MS
    assert shard.compact() == 1
    assert len(shard.part.contents.layers.blocks) == len(shard.files()) == 1
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected


def test_deletion_is_honoured_at_once_and_done_at_compaction(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (2, 2.0), (3, 3.0)]), (m(job="b"), [(2, 4.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(2, 5.0), (4, 6.0)])])
    shard.part.delete([[Matcher("job", "=", "a")]], 2, 3, TIMEOUT_S)
    shard.write([(m(job="a"), [(3, 9.0)])])
    expected = {A: [(1, 1.0), (3, 9.0), (4, 6.0)], B: [(2, 4.0)]}
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected
    shard.seal()
    assert shard.samples() == expected
    assert shard.compact() == 1
    assert shard.part.contents.layers.tombstones == ()
    assert shard.samples() == expected
    assert shard.part.contents.layers.samples == 4
    shard.reopen()
    assert shard.samples() == expected


def test_a_series_without_samples_is_gone_after_a_start(shard: Quiet) -> None:
    shard.write([(m(job=str(i)), [(1, 1.0)]) for i in range(20)])
    shard.seal()
    shard.part.delete([[Matcher("job", "!=", "7")]], *EVERYTHING, TIMEOUT_S)
    assert len(shard.samples()) == 1
    shard.compact()
    shard.reopen()
    assert shard.part.counts()["series"] == 20  # the deletion in the journal still names them
    shard.write([(m(job="new"), [(9, 9.0)])])
    shard.seal()
    sweeping.ask_for(batch := shard.store.batch())
    shard.store.write(batch)
    shard.reopen()
    assert shard.part.counts()["series"] == 2
    seven, new = (("__name__", "m"), ("job", "7")), (("__name__", "m"), ("job", "new"))
    assert shard.samples() == {seven: [(1, 1.0)], new: [(9, 9.0)]}
    shard.write([(m(job="7"), [(10, 7.0)]), (m(job="3"), [(10, 3.0)])])
    shard.reopen()
    assert shard.samples()[seven] == [(1, 1.0), (10, 7.0)]
    assert shard.samples()[(("__name__", "m"), ("job", "3"))] == [(10, 3.0)]


def test_retention_drops_whole_blocks_by_age_and_by_size(tmp_path: Path) -> None:
    now_ms = 1_000_000
    Quiet.options = {"retention_ms": 5000}
    try:
        shard = Quiet(tmp_path)
        shard.write([(m(job="a"), [(now_ms - 9000, 1.0), (now_ms - 4500, 2.0), (now_ms, 3.0)])])
        shard.seal()
        shard.part._upkeep.blocks._drop(now_ms)
        assert shard.samples() == {A: [(now_ms - 4500, 2.0), (now_ms, 3.0)]}
        assert len(shard.files()) == 2
        size = shard.part.contents.layers.blocks[-1].row.size_bytes
        Quiet.options = {"retention_bytes": size}
        shard.reopen()
        shard.part._upkeep.blocks._drop(now_ms)
        assert shard.samples() == {A: [(now_ms, 3.0)]}
        shard.reopen()
        assert shard.samples() == {A: [(now_ms, 3.0)]}
        shard.close()
    finally:
        Quiet.options = {}


def test_a_corrupt_block_is_set_aside_and_named(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (5000, 2.0)])])
    shard.seal()
    first = shard.part.contents.layers.blocks[0]
    data = bytearray(Path(first.location).read_bytes())
    data[5] ^= 1
    Path(first.location).write_bytes(bytes(data))
    assert shard.samples() == {A: [(5000, 2.0)]}
    [text] = shard.part.damage(0, 10)
    assert first.row.name in text and "checksum" in text
    assert shard.part.damage(2, 9999) == []
    Path(shard.part.contents.layers.blocks[0].location).unlink()
    shard.reopen()
    assert [points for points in shard.samples().values() if points] == []
    assert [text for text in shard.part.damage(*EVERYTHING) if "opened" in text or "checksum" in text]
    shard.write([(m(job="a"), [(3, 3.0)])])
    assert shard.samples() == {A: [(3, 3.0)]}


def test_a_start_removes_files_that_were_never_named_and_sets_aside_what_may_be_a_block(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    shard.seal()
    [kept] = shard.files()
    for name in ("x.block", "y.writing"):
        (shard.path / "blocks" / name).write_bytes(b"left over")
    shard.reopen()
    assert {path.name for path in shard.files()} == {kept.name, "x.block.damaged"}
    assert shard.samples() == {A: [(1, 1.0)]}


@pytest.mark.parametrize("step", ["write_blocks", "store", "sealed_to"])
def test_sealing_that_fails_at_any_step_changes_nothing_and_can_be_repeated(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from worker.series import block_writing

    shard.write([(m(job="a"), [(1, 1.0), (5000, 2.0)])])

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("no space is left")

    if step == "write_blocks":
        monkeypatch.setattr(block_writing, "write_blocks", refuse)
    elif step == "store":
        monkeypatch.setattr(shard.store, "write", refuse)
    else:
        monkeypatch.setattr(shard.part.journal, "sealed_to", refuse)
    with pytest.raises(Unavailable):
        shard.seal()
    monkeypatch.undo()
    shard.write([(m(job="a"), [(1, 7.0)])])
    expected = {A: [(1, 7.0), (5000, 2.0)]}
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected
    shard.seal()
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected


@pytest.mark.parametrize(
    ("number", "left"), [(0, [(0, 0.0), (1, 1.0), (2, 2.0)]), (2, [(0, 0.0), (2, 2.0)])], ids=["new series", "samples"]
)
def test_a_damaged_journal_record_is_skipped(shard: Quiet, number: int, left: list[tuple[int, float]]) -> None:
    for i in range(3):
        shard.write([(m(job="a"), [(i, float(i))])])
    shard.close()
    [file] = shard.files_of_log()
    places = [
        found.start for found in record.scan(1, memoryview(file.read_bytes())) if isinstance(found, record.RecordHeader)
    ]
    with open(file, "r+b") as damaged:
        damaged.seek(places[number])
        damaged.write(b"?")
    shard.open()
    assert shard.samples() == {A: left}
    shard.write([(m(job="a"), [(7, 7.0)])])
    shard.reopen()
    assert shard.samples() == {A: [*left, (7, 7.0)]}


times = st.integers(0, 60) | st.integers(0, 5000) | st.sampled_from([TIME_MS_MIN, TIME_MS_MAX])
samples = st.tuples(st.sampled_from("abc"), times, st.integers(0, 99).map(float))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(samples, min_size=1, max_size=20)),
        st.tuples(st.just("seal"), st.sampled_from([NEVER, 30, 1000, 2000])),
        st.tuples(st.just("delete"), st.tuples(st.sampled_from("abc"), times, times)),
        st.tuples(st.just("compact"), st.sampled_from([FAR_MS, 3000])),
        st.tuples(st.just("freeze"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.tuples(times, times).map(sorted))
def test_whatever_happens_a_shard_equals_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, steps: list, window: list[int]
) -> None:
    shard = Quiet(tmp_path_factory.mktemp("shard"))
    expected: dict[str, dict[int, float]] = {"a": {}, "b": {}, "c": {}}
    for step, argument in steps:
        if step == "write":
            shard.write([(m(job=job), [(at, value)]) for job, at, value in argument])
            for job, at, value in argument:
                expected[job][at] = value
        elif step == "seal":
            shard.seal(argument)
        elif step == "delete":
            job, *bounds = argument
            start, end = sorted(bounds)
            gone = [at for at in expected[job] if start <= at <= end]
            shard.part.delete([[Matcher("job", "=", job)]], start, end, TIMEOUT_S)
            for at in gone:
                del expected[job][at]
        elif step == "compact":
            shard.compact(argument)
        elif step == "freeze":
            if shard.part.contents.layers.frozen is None:
                shard.part.contents.freeze(shard.part.journal.next_sequence)
        else:
            shard.reopen()
        for start, end in (EVERYTHING, (window[0], window[1])):
            inside = {j: sorted((t, v) for t, v in own.items() if start <= t <= end) for j, own in expected.items()}
            found = {dict(labels)["job"]: points for labels, points in shard.samples(window=(start, end)).items()}
            assert {j: p for j, p in found.items() if p} == {j: p for j, p in inside.items() if p}
            lookup, ids = shard.part.having([()], start, end, lambda: None)
            assert set(lookup.symbols.texts(lookup.column(ids, "job"))) == {j for j, p in inside.items() if p}
    shard.close()


def test_the_background_seals_a_head_over_its_bound_while_writes_and_reads_go_on(tmp_path: Path) -> None:
    Quiet.options = {"head_bytes": 4096}
    try:
        shard = Quiet(tmp_path)
        del shard.part._upkeep.sealing.tick
        written = 0
        give_up = time.monotonic() + 20
        while shard.part.counts()["blocks"] < 3 and time.monotonic() < give_up:
            try:
                shard.write([(m(job=str(i)), [(written, float(written))]) for i in range(50)])
            except Unavailable:
                time.sleep(0.01)  # sealing is behind: as a client is told, the write is sent again
                continue
            written += 1
            found = shard.samples(Matcher("job", "=", "7"))
            assert [value for _, value in found[(("__name__", "m"), ("job", "7"))]] == list(range(written))
        assert shard.part.counts()["blocks"] >= 3
        shard.reopen()
        assert all(len(points) == written for points in shard.samples().values())
        shard.close()
    finally:
        Quiet.options = {}


def images(shard: Quiet, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of the shard's directory, as a crash would leave it, taken around everything that changes it."""
    from worker.series import block_writing

    taken: list[Path] = []

    def copy() -> None:
        path = shard.path.with_name(f"{shard.path.name}-image-{len(taken)}")
        shutil.copytree(shard.path, path)
        taken.append(path)

    def around(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: object, **options: object) -> object:
            copy()
            answer = original(*arguments, **options)
            copy()
            return answer

        monkeypatch.setattr(owner, name, call)

    around(block_writing, "write_blocks")
    around(BlockWriter, "sync")
    around(BlockWriter, "publish")
    around(shard.store, "write")
    around(shard.log, "write")
    around(shard.log, "release")
    around(shard.part.journal, "sealed_to")
    around(Block, "condemn")
    return taken


def test_a_crash_between_any_two_steps_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = Quiet(tmp_path / "shard")
    shard.write([(m(job="a"), [(1, 1.0), (2, 2.0), (1500, 3.0), (9999, 4.0)]), (m(job="b"), [(2, 9.0)])])
    shard.seal(5000)
    shard.write([(m(job="a"), [(2, 5.0), (7000, 6.0)])])
    shard.part.delete([[Matcher("job", "=", "a")]], 1500, 1500, TIMEOUT_S)
    expected = {A: [(1, 1.0), (2, 5.0), (7000, 6.0), (9999, 4.0)], B: [(2, 9.0)]}
    taken = images(shard, monkeypatch)
    shard.seal(8000)
    shard.compact()
    shard.seal()
    monkeypatch.undo()
    assert shard.samples() == expected
    shard.close()
    assert len(taken) > 20
    for path in taken:
        crashed = Quiet(path)
        assert crashed.samples() == expected
        assert len(crashed.files()) == len(crashed.part.contents.layers.blocks)
        crashed.seal()
        assert crashed.samples() == expected
        crashed.close()


def test_a_torn_log_costs_the_write_that_was_torn_and_no_other(tmp_path: Path) -> None:
    shard = Quiet(tmp_path / "shard")
    for i in range(3):
        shard.write([(m(job="a"), [(i, float(i))])])
    shutil.copytree(shard.path, tmp_path / "torn")
    shard.close()
    [log] = (tmp_path / "torn" / "wal").glob("*.wal")
    data = log.read_bytes().rstrip(b"\0")
    log.write_bytes(data[:-3])
    torn = Quiet(tmp_path / "torn")
    assert torn.samples() == {A: [(0, 0.0), (1, 1.0)]}
    torn.write([(m(job="a"), [(2, 7.0)])])
    torn.reopen()
    assert torn.samples() == {A: [(0, 0.0), (1, 1.0), (2, 7.0)]}
    torn.close()
