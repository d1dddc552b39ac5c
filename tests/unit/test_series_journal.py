"""The journal of a shard at a start: what the blocks have taken over is given back to the log."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from worker.damage import DamageReport
from worker.series import journal
from worker.series.journal import Deletion, Journal, Sealed


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
