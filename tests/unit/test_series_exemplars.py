"""Exemplars in one shard: durable with their write, bounded, deleted with their series, and there after a start."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED
from shared import labels
from shared.promql.ast import Matcher
from shared.settings import Settings
from tests.unit.exemplar_requests import Exemplar, body, held, listed
from tests.unit.series_shard import EVERYTHING, FAR_MS, TIMEOUT_S, A, B, Quiet, m
from worker.series import exemplars, sweeping, verify
from worker.series.exemplar_record import ExemplarRecord
from worker.series.writing import write_to
from worker.storage.rows import check as store_check
from worker.storage.rows.damage import StoreDamaged

T0 = 1_700_000_000_000
JOB_A = Matcher("job", "=", "a")


class Shard(Quiet):
    def send(self, *series: tuple[dict[str, str], list[tuple[int, float]], list[Exemplar]]) -> None:
        split_request = remote_write.split(body(series), 1, UNLIMITED)
        assert not split_request.refused
        write_to(self.part, split_request.parts[0], TIMEOUT_S)

    def exemplars(self, job: str, *exemplars: Exemplar) -> None:
        self.send((m(job=job), [(T0, 1.0)], list(exemplars)))

    def kill(self) -> None:
        """As if the process had died: nothing of the part is written out. The store's own log has it all."""
        self.reopen()

    def counts(self) -> dict[str, int]:
        return self.part.exemplars.counts()


def at(second: int, trace: str = "t", value: float = 1.0) -> Exemplar:
    return {"trace_id": trace}, value, T0 + 1000 * second


def shown(second: int, trace: str = "t", value: float = 1.0) -> tuple:
    return (("trace_id", trace),), value, T0 + 1000 * second


def opened(path: Path, **options: Any) -> Shard:
    return type("Configured", (Shard,), {"options": options})(path)


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    own = Shard(tmp_path)
    yield own
    own.close()


def test_exemplars_are_found_by_series_in_the_order_of_time(shard: Shard) -> None:
    shard.exemplars("b", at(1, "x"))
    shard.exemplars("a", at(1, "y", 6.5), at(3, "z", float("inf")))
    assert held(shard.part) == {A: [shown(1, "y", 6.5), shown(3, "z", float("inf"))], B: [shown(1, "x")]}
    assert held(shard.part, JOB_A) == {A: [shown(1, "y", 6.5), shown(3, "z", float("inf"))]}
    assert held(shard.part, window=(T0 + 2000, T0 + 3000)) == {A: [shown(3, "z", float("inf"))]}


def test_a_series_may_have_exemplars_and_no_samples(shard: Shard) -> None:
    shard.send((m(job="a"), [], [at(1)]))
    assert held(shard.part) == {A: [shown(1)]}
    assert not shard.samples()


def test_repeated_and_older_exemplars_are_left_out(shard: Shard) -> None:
    for _ in range(2):
        shard.exemplars("a", at(5), at(5, "other"), at(5, value=2.0))
    shard.exemplars("a", at(4))
    assert held(shard.part) == {A: [shown(5), shown(5, "other"), shown(5, value=2.0)]}
    assert shard.counts() == {"stored": 3, "repeated": 3, "out_of_order": 1, "bound": 0}


@pytest.mark.parametrize("is_sealed", [False, True])
def test_exemplars_are_there_after_a_start(shard: Shard, is_sealed: bool) -> None:
    shard.exemplars("a", at(1), at(2))
    shard.exemplars("b", at(1, "é" * 60))
    before = held(shard.part)
    for _ in range(2):
        if is_sealed:
            shard.seal()
        shard.kill()
        assert held(shard.part) == before
        assert shard.counts()["stored"] == 0
    shard.exemplars("a", at(2), at(3))
    assert held(shard.part)[A] == [shown(1), shown(2), shown(3)]


def test_sealing_lets_the_journal_go_and_keeps_the_exemplars(shard: Shard) -> None:
    shard.exemplars("a", at(1))
    shard.seal()
    assert shard.journal() == 0
    shard.exemplars("a", at(2))
    assert shard.journal() == 2
    shard.kill()
    assert held(shard.part) == {A: [shown(1), shown(2)]}


def test_a_deletion_before_a_seal_does_not_take_what_came_after_it(shard: Shard) -> None:
    """The records of samples that are too young to be sealed keep the deletion in the journal."""
    shard.exemplars("a", at(1))
    shard.part.delete([[JOB_A]], *EVERYTHING, TIMEOUT_S)
    assert held(shard.part) == {}
    shard.exemplars("a", at(1, "later"))
    shard.seal(before_ms=T0 - 1)
    assert shard.journal()
    shard.kill()
    assert held(shard.part) == {A: [shown(1, "later")]}


def test_a_deletion_takes_the_exemplars_of_its_series_and_times_for_good(shard: Shard) -> None:
    shard.exemplars("a", at(1), at(2), at(3))
    shard.exemplars("b", at(2))
    shard.send((m(job="c"), [], [at(2)]))
    shard.part.delete([[JOB_A], [Matcher("job", "=", "c")]], T0 + 1500, T0 + 2500, TIMEOUT_S)
    expected = {A: [shown(1), shown(3)], B: [shown(2)]}
    assert held(shard.part) == expected
    shard.kill()
    assert held(shard.part) == expected
    shard.seal()
    shard.kill()
    assert held(shard.part) == expected


def test_a_series_has_its_latest_exemplars_only(tmp_path: Path) -> None:
    shard = opened(tmp_path, exemplars_per_series=2)
    shard.exemplars("a", *(at(second) for second in range(5)))
    shard.exemplars("b", at(1))
    expected = {A: [shown(3), shown(4)], B: [shown(1)]}
    assert held(shard.part) == expected
    assert held(shard.part, window=(T0, T0 + 2000)) == {B: [shown(1)]}
    shard.seal()
    shard.kill()
    assert held(shard.part) == expected
    shard.close()


def test_many_exemplars_of_one_time_are_compared_with_as_many_as_a_series_may_have(tmp_path: Path) -> None:
    shard = opened(tmp_path, exemplars_per_series=10)
    began = time.perf_counter()
    shard.exemplars("a", *(at(1, str(number)) for number in range(20_000)))
    assert time.perf_counter() - began < 5
    assert held(shard.part)[A] == [shown(1, str(number)) for number in range(19_990, 20_000)]
    shard.close()


def test_exemplars_expire_after_the_newest_of_the_shard(tmp_path: Path) -> None:
    shard = opened(tmp_path, exemplars_retention_ms=10_000)
    shard.exemplars("a", at(1), at(15))
    shard.exemplars("b", at(20))
    assert held(shard.part) == {A: [shown(15)], B: [shown(20)]}
    shard.close()


def test_a_time_in_the_far_future_expires_nothing_that_is_recent(tmp_path: Path) -> None:
    shard = opened(tmp_path, exemplars_retention_ms=60_000)
    now = int(time.time()) - T0 // 1000
    shard.exemplars("a", at(now))
    shard.exemplars("b", at(now + 10**9))
    assert set(held(shard.part)) == {A, B}
    shard.close()


def test_the_oldest_give_way_where_bytes_run_out(tmp_path: Path) -> None:
    shard = opened(tmp_path, exemplars_bytes=100_000, exemplars_per_series=10_000)
    for first in range(0, 3000, 100):
        shard.exemplars("a", *(at(second, "x" * 100) for second in range(first, first + 100)))
        assert shard.part.exemplars.size_bytes <= 100_100
    kept = [at_ms for _, _, at_ms in held(shard.part)[A]]
    assert kept == [T0 + 1000 * second for second in range(3000 - len(kept), 3000)]
    assert 400 < len(kept) < 700
    assert shard.counts()["bound"] == 3000 - len(kept)
    shard.close()


def test_a_request_larger_than_the_bound_does_not_take_more_memory_than_it(tmp_path: Path) -> None:
    shard = opened(tmp_path, exemplars_bytes=200_000)
    shard.send(*((m(job=str(number)), [], [at(1, "x" * 100)]) for number in range(20_000)))
    own = shard.part.exemplars
    assert len(own) * exemplars.FIXED_BYTES <= 200_000
    assert own._labels.data.nbytes < 1 << 20
    shard.close()


def test_nothing_is_kept_where_exemplars_are_switched_off(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    shard.exemplars("a", at(1))
    shard.seal()
    shard.close()
    shard = opened(tmp_path, exemplars_bytes=0)
    shard.exemplars("a", at(2))
    assert held(shard.part) == {}
    shard.seal()
    shard.close()
    shard = Shard(tmp_path)
    assert held(shard.part) == {}
    shard.close()


def test_a_sweep_keeps_series_that_have_exemplars_only(shard: Shard) -> None:
    shard.send((m(job="a"), [], [at(1)]), *((m(job=str(number)), [(1, 1.0)], []) for number in range(50)))
    shard.seal()
    shard.part.delete([[Matcher("job", "=~", "[0-9]+")]], *EVERYTHING, TIMEOUT_S)
    shard.compact(FAR_MS)
    shard.seal()
    batch = shard.store.batch()
    sweeping.ask_for(batch)
    shard.store.write(batch)
    shard.kill()
    assert len(shard.part.contents.index) < 50
    assert held(shard.part) == {A: [shown(1)]}


def test_damaged_rows_are_found_by_the_check_and_refused_by_the_start(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    shard.exemplars("a", at(1))
    shard.seal()
    batch = shard.store.batch()
    key = exemplars.PREFIX + (0).to_bytes(4, "big")
    row = shard.store.get("meta", key)
    assert row is not None
    batch.put("meta", key, row[:-1])
    shard.store.write(batch)
    shard.close()
    texts = store_check.check(shard.path / "store", lambda reader: verify.series_rows(reader).wrong)
    assert any("series/exemplars" in text for text in texts), texts
    with pytest.raises(StoreDamaged, match="series/exemplars"):
        shard.open()
    shard.store.close()
    shard.log.close()


def test_the_check_of_a_sound_shard_finds_nothing(shard: Shard) -> None:
    shard.exemplars("a", at(1))
    shard.exemplars("b", at(1))
    shard.seal()
    shard.exemplars("a", at(2))
    shard.close()
    read: list[verify.SeriesRows] = []

    def rows(reader):  # type: ignore[no-untyped-def]
        read.append(verify.series_rows(reader))
        return read[0].wrong

    assert not store_check.check(shard.path / "store", rows)
    assert len(read[0].ids) == 2
    shard.open()


def test_a_record_of_a_series_that_the_store_lacks_is_reported(shard: Shard) -> None:
    shard.exemplars("a", at(1))
    entry = shard.part.journal.entry(
        shard.part.exemplars.find(np.zeros(1, np.int64), *EVERYTHING).of(np.full(1, 9, np.int64))
    )
    shard.part.journal.written(entry, shard.part.journal._wal.write(entry.frames))
    shard.kill()
    assert held(shard.part) == {A: [shown(1)]}
    assert "1 samples of series the store does not have, ids up to 9" in shard.part._damage.texts("series")[0]


class Nothing:
    """A store without rows."""

    def scan(self, *_: Any) -> list:
        return []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "add", "delete")),
        st.lists(
            st.tuples(
                st.integers(0, 3), st.integers(0, 9), st.sampled_from((0.0, -0.0, 1.0)), st.text("ab", max_size=9)
            )
        ),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(STEPS, st.integers(1, 4))
def test_a_shard_has_the_exemplars_of_a_plain_list(steps: list, per_series: int) -> None:
    own = exemplars.Exemplars(Nothing(), Settings(shards=1, exemplars_per_series=per_series))  # type: ignore[arg-type]
    plain: dict[int, list] = {}
    for what, rows in steps:
        if what == "add":
            own.add(record_of(rows))
            for series, at_ms, value, text in rows:
                kept = plain.setdefault(series, [])
                entry = at_ms, struct.pack("d", value), text
                if at_ms >= max((known[0] for known in kept), default=at_ms) and entry not in kept[-per_series:]:
                    kept.append(entry)
        else:
            for series, at_ms, *_ in rows:
                own.delete(np.array([series, 99]), at_ms, at_ms + 1)
                plain[series] = [known for known in plain.get(series, []) if not at_ms <= known[0] <= at_ms + 1]
    expected = [(series, entry) for series, kept in sorted(plain.items()) for entry in kept[-per_series:]]
    found = listed(own.find(np.arange(100), *EVERYTHING))
    assert [
        (s, (at_ms, struct.pack("d", value), dict(own_labels).get("t", ""))) for s, own_labels, value, at_ms in found
    ] == expected


def record_of(rows: list) -> ExemplarRecord:
    encoded = [labels.encode((("t", text),) if text else ()) for _, _, _, text in rows]
    return ExemplarRecord(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.float64),
        np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        np.frombuffer(b"".join(encoded), dtype=np.uint8),
    )
