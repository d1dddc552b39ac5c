"""The journal of a shard at a start: what the blocks have taken over is given back to the log."""

from __future__ import annotations

import tracemalloc
from unittest import mock

import numpy as np
import pytest

from worker.damage import DamageReport
from worker.series import journal
from worker.series.journal import Deletion, Journal, PendingRecord, Sealed


@pytest.mark.parametrize(("cut", "left", "released"), [(0, [0, 1, 2], 0), (2, [2], 21), (3, [], 31)])
def test_records_that_are_cut_are_released_up_to_the_last_of_them(cut: int, left: list[int], released: int) -> None:
    deletion = Deletion(np.array([1]), 0, 1)
    payloads = [b"".join(map(bytes, journal.encode(deletion, sequence))) for sequence in range(3)]
    wal = mock.Mock()
    wal.records.return_value = zip((10, 20, 30), payloads, strict=True)
    own = Journal(mock.Mock(), wal, DamageReport())
    own.sealed = Sealed(3, 0, cut)
    assert [sequence for sequence, _, _ in own.records()] == left
    wal.release.assert_called_once_with(released)


def test_a_record_takes_few_bytes_of_memory_until_it_is_sealed() -> None:
    own, wal, count = Journal(mock.Mock(), mock.Mock(), DamageReport()), mock.Mock(), 20_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            own.written(PendingRecord(wal, [], 1_000_000 + number, 1 << 40), (1 << 63) + number)
        assert tracemalloc.get_traced_memory()[0] - before < 80 * count
    finally:
        tracemalloc.stop()
    sealed = own.seal(mock.Mock(), 1_000_000 + count, 1 << 41)
    assert sealed.cut == 1_000_000 + count
    own.sealed_to(sealed)
    own._wal.release.assert_called_once_with((1 << 63) + count)
