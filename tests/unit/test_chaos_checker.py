"""The fault harness's checker must be able to fail: each broken promise is named, and what is allowed is not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import damage
from tests.chaos.findings import Findings
from tests.chaos.log_record import Batch, LogRecord, Row
from tests.chaos.metrics_load import Metrics, labels_of, value_of
from tests.chaos.otlp_log_load import KEY as OTLP_KEY
from tests.chaos.otlp_log_load import OtlpLogs
from tests.chaos.registers import Registers

KEYS = (b"a", b"b", b"a")


class _Log:
    """A record with one acknowledged batch of three at 10, and what it finds in some rows."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.record = LogRecord(self.findings)
        self.batch = self.record.begin(KEYS)
        self.record.acknowledge(self.batch, 10)

    def rows(self, batch: Batch, start: int) -> list[Row]:
        return [(start + place, key, value) for place, (key, value) in enumerate(batch.records())]

    def kinds(self, rows: Sequence[Row], *, complete: bool = True, final: bool = True) -> set[str]:
        self.record.check(
            rows,
            lambda key: True,
            (0, 100),
            self.record.stamp,
            complete=complete,
            final=final,
            what="scan",
        )
        if complete:
            self.record.check_whole(rows, "scan")
        return {kind for _, kind in self.findings.counts}


def test_what_was_acknowledged_and_is_there_is_no_violation() -> None:
    log = _Log()
    assert log.kinds(log.rows(log.batch, 10)) == set()


def test_a_lost_acknowledged_batch_is_found() -> None:
    assert _Log().kinds([]) == {"lost"}


def test_a_short_answer_without_a_warning_is_found() -> None:
    log = _Log()
    assert log.kinds([], complete=True, final=False) == {"unlabelled"}


def test_a_short_answer_with_a_warning_is_allowed() -> None:
    assert _Log().kinds([], complete=False, final=False) == set()


def test_half_a_batch_in_doubt_is_found() -> None:
    log = _Log()
    doubtful = log.record.begin(KEYS)
    log.record.doubt(doubtful)
    assert log.kinds([*log.rows(log.batch, 10), *log.rows(doubtful, 20)[:2]]) == {"half"}


def test_a_batch_in_doubt_may_be_there_whole_or_not_at_all() -> None:
    log = _Log()
    doubtful = log.record.begin(KEYS)
    log.record.doubt(doubtful)
    assert log.kinds(log.rows(log.batch, 10)) == set()
    assert log.kinds([*log.rows(log.batch, 10), *log.rows(doubtful, 20)]) == set()


def test_a_record_never_sent_is_found() -> None:
    log = _Log()
    assert log.kinds([*log.rows(log.batch, 10), (13, b"a", b"77/0/1:")]) == {"invented"}


def test_a_changed_byte_of_a_value_is_found() -> None:
    log = _Log()
    rows = log.rows(log.batch, 10)
    rows[1] = (11, b"b", rows[1][2] + b"?")
    assert "invented" in log.kinds(rows, complete=False)


def test_a_refused_batch_that_appears_is_found() -> None:
    log = _Log()
    refused = log.record.begin(KEYS)
    log.record.refuse(refused)
    assert log.kinds([*log.rows(log.batch, 10), *log.rows(refused, 20)]) == {"invented"}


def test_a_batch_that_is_there_twice_is_found() -> None:
    log = _Log()
    assert "twice" in log.kinds([*log.rows(log.batch, 10), *log.rows(log.batch, 20)])


def test_a_repeat_acknowledged_at_another_number_is_found() -> None:
    log = _Log()
    log.record.acknowledge(log.batch, 30)
    assert ("log", "twice") in log.findings.counts


def test_one_number_for_two_batches_is_found() -> None:
    log = _Log()
    log.record.acknowledge(log.record.begin((b"c",)), 12)
    assert ("log", "twice") in log.findings.counts


def test_records_out_of_order_are_found() -> None:
    log = _Log()
    first, second, third = log.rows(log.batch, 10)
    assert log.kinds([first, third, second]) == {"unordered"}


def test_a_record_that_a_reader_was_given_and_that_is_gone_is_found() -> None:
    log = _Log()
    doubtful = log.record.begin(KEYS)
    log.record.doubt(doubtful)
    both = [*log.rows(log.batch, 10), *log.rows(doubtful, 20)]
    assert log.kinds(both, final=False) == set()
    assert log.kinds(both[:3]) == {"vanished"}


def test_another_record_under_a_number_that_a_reader_was_given_is_found() -> None:
    log = _Log()
    doubtful, other = log.record.begin(KEYS), log.record.begin(KEYS)
    log.kinds([*log.rows(log.batch, 10), *log.rows(doubtful, 20)], final=False)
    assert "changed" in log.kinds([*log.rows(log.batch, 10), *log.rows(other, 20)], complete=False)


def test_a_batch_acknowledged_after_the_question_may_be_missing() -> None:
    log = _Log()
    stamp = log.record.stamp
    later = log.record.begin(KEYS)
    log.record.acknowledge(later, 20)
    rows = log.rows(log.batch, 10)
    log.record.check(rows, lambda key: True, (0, 100), stamp, complete=True, final=False, what="scan")
    assert not log.findings


class _Values:
    """A register that was acknowledged with 1."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.registers = Registers("vectors", self.findings)
        self.registers.begin({"x": 1})
        self.registers.acknowledge({"x": 1})

    def kinds(self, shown: dict[str, int], *, complete: bool = True, final: bool = True) -> set[str]:
        stamp = self.registers.stamp
        self.registers.check(shown, ["x"], stamp, complete=complete, final=final, what="get")
        return {kind for _, kind in self.findings.counts}


def test_a_value_that_was_acknowledged_is_no_violation() -> None:
    assert _Values().kinds({"x": 1}) == set()


def test_a_lost_value_is_found() -> None:
    assert _Values().kinds({}) == {"lost"}


def test_a_missing_value_without_a_warning_is_found() -> None:
    assert _Values().kinds({}, final=False) == {"unlabelled"}


def test_a_missing_value_with_a_warning_is_allowed() -> None:
    assert _Values().kinds({}, complete=False) == set()


def test_an_invented_value_is_found_even_in_an_answer_with_a_warning() -> None:
    assert _Values().kinds({"x": 2}, complete=False) == {"invented"}


def test_a_replaced_value_that_comes_back_is_found() -> None:
    values = _Values()
    values.registers.begin({"x": 2})
    assert values.kinds({"x": 1}) == set()
    values.registers.acknowledge({"x": 2})
    assert values.kinds({"x": 1}) == {"stale"}


def test_what_a_lost_file_had_replaced_may_be_shown_with_a_warning_only() -> None:
    for complete, expected in ((False, set()), (True, {"stale"})):
        values = _Values()
        values.registers.begin({"x": 2})
        values.registers.acknowledge({"x": 2})
        values.registers.is_file_lost = True
        assert values.kinds({"x": 1}, complete=complete) == expected


def test_a_deleted_value_that_comes_back_is_found() -> None:
    values = _Values()
    values.registers.begin({"x": None})
    values.registers.acknowledge({"x": None})
    assert values.kinds({"x": 1}) == {"stale"}


def test_a_value_whose_client_has_left_may_appear_later() -> None:
    values = _Values()
    values.registers.begin({"x": 2})
    values.registers.abandon({"x": 2})
    values.registers.begin({"x": 3})
    values.registers.acknowledge({"x": 3})
    assert values.kinds({"x": 2}) == set()
    assert values.kinds({"x": 1}) == {"stale"}


@pytest.mark.parametrize("wrong", [value_of(2, 7, 0), value_of(1, 8, 0), value_of(1, 7, 0) + 0.5 * 10**12])
def test_a_sample_of_another_series_or_time_is_found(wrong: float) -> None:
    findings = Findings()
    metrics = Metrics(findings, base_ms=0)
    result = [{"metric": labels_of(1), "values": [[0.7, str(wrong)]]}]
    assert metrics.shown(result, "query") == {}
    assert findings.counts == {("metrics", "invented"): 1}


def test_a_sample_shows_its_version() -> None:
    findings = Findings()
    metrics = Metrics(findings, base_ms=0)
    result = [{"metric": labels_of(1), "values": [[0.7, str(value_of(1, 7, 3))]]}]
    assert metrics.shown(result, "query") == {(1, 7): 3}
    assert not findings


def test_a_flip_changes_one_byte_and_a_cut_shortens(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"0123456789")
    assert damage.flip(tmp_path, damage.KINDS["manifest"], random.Random(1)) is not None
    flipped = (tmp_path / "manifest.json").read_bytes()
    assert sum(a != b for a, b in zip(flipped, b"0123456789", strict=True)) == 1
    assert damage.cut(tmp_path, damage.KINDS["manifest"], random.Random(1)) is not None
    assert len((tmp_path / "manifest.json").read_bytes()) < 10
    assert damage.flip(tmp_path, damage.KINDS["sequencer"], random.Random(1)) is None


class _Otlp:
    """An acknowledged batch of two records at 10, and what is found in a read of it all."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.logs = OtlpLogs(self.findings)
        self.writes = {(1, record): 1 for record in range(2)}
        self.logs.registers.begin(self.writes)
        self.logs.registers.acknowledge(self.writes)
        values = [record["body"]["stringValue"] for record in self._sent(self.logs.body(1, 2))]
        self.rows = [(10 + place, OTLP_KEY, json.dumps({"body": value}).encode()) for place, value in enumerate(values)]

    def _sent(self, body: bytes) -> list[Any]:
        (resource,) = json.loads(body)["resourceLogs"]
        return [record for scope in resource["scopeLogs"] for record in scope["logRecords"]]

    def kinds(self, rows: Sequence[Row]) -> set[str]:
        self.logs.check_whole(rows, self.logs.registers.stamp, final=True)
        return {kind for _, kind in self.findings.counts}


def test_otlp_records_that_are_there_once_are_no_violation() -> None:
    otlp = _Otlp()
    assert otlp.kinds(otlp.rows) == set()


def test_otlp_records_that_are_missing_doubled_or_unknown_are_found() -> None:
    otlp = _Otlp()
    assert otlp.kinds(otlp.rows[:1]) == {"lost", "half"}
    otlp = _Otlp()
    assert otlp.kinds([*otlp.rows, (20, *otlp.rows[0][1:])]) == {"twice"}
    otlp = _Otlp()
    assert otlp.kinds([*otlp.rows, (20, OTLP_KEY, b'{"body":"2/0/1"}')]) == {"invented"}


def test_otlp_records_that_damage_has_hit_may_be_missing() -> None:
    otlp = _Otlp()
    otlp.logs.check(otlp.rows)
    otlp.logs.lose([range(11, 12)])
    assert otlp.kinds(otlp.rows[:1]) == set()
    assert otlp.kinds(otlp.rows[1:]) == {"lost"}
