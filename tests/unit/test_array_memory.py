"""Memory accounts: exact counts of arrays, refusals past the limit, and what is not counted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest

from shared.process import array_memory
from shared.process.array_memory import Account, uncounted

MEGABYTE = 1 << 20


def test_arrays_count_until_they_are_freed() -> None:
    account = Account(64 * MEGABYTE)
    with account.open():
        first = np.zeros(MEGABYTE, dtype=np.uint8)
        second = first + 1
    assert account.used_bytes == 2 * MEGABYTE
    del first
    assert account.used_bytes == MEGABYTE
    del second
    assert account.used_bytes == 0
    assert 2 * MEGABYTE <= account.peak_bytes <= 2 * MEGABYTE + 8  # and the 1 that was added


def test_intermediate_results_count() -> None:
    account = Account(64 * MEGABYTE)
    values = np.ones(MEGABYTE, dtype=np.uint8)
    with account.open():
        total = int(((values + 1) * (values + 2)).sum())
    assert total == 6 * MEGABYTE
    assert account.used_bytes == 0
    assert account.peak_bytes >= 2 * MEGABYTE


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint8])
@pytest.mark.parametrize("kind", [None, "stable", "heapsort"])
def test_sorting_gives_back_what_it_took(kind: Any, dtype: type) -> None:
    """numpy gives the buffers back that it had no need of, too."""
    account = Account(512 * MEGABYTE)
    values = np.arange(MEGABYTE)[::-1].astype(dtype)
    with account.open():
        places = np.argsort(values, kind=kind)
        assert account.used_bytes == places.nbytes
        del places
        np.sort(values, kind=kind), np.argpartition(values, 5), np.unique(values, return_inverse=True)
    assert account.used_bytes == 0


def test_an_array_past_the_limit_is_refused_and_leaves_no_trace() -> None:
    account = Account(MEGABYTE)
    with account.open():
        kept = np.empty(MEGABYTE // 2, dtype=np.uint8)
        for allocate in (np.empty, np.zeros, np.ones):
            with pytest.raises(MemoryError):
                allocate(MEGABYTE, dtype=np.uint8)
        assert account.used_bytes == kept.nbytes
        np.empty(MEGABYTE // 2, dtype=np.uint8)  # as much as is left


def test_an_array_that_grows_is_counted() -> None:
    account = Account(64 * MEGABYTE)
    with account.open():
        numbers = np.fromiter(range(MEGABYTE), dtype=np.int64)
    assert 0.9 * numbers.nbytes < account.used_bytes <= numbers.nbytes
    del numbers
    assert account.used_bytes == 0


def test_growing_past_the_limit_is_refused() -> None:
    account = Account(MEGABYTE)
    with account.open(), pytest.raises(MemoryError):
        np.fromiter(range(MEGABYTE), dtype=np.int64)
    assert account.used_bytes == 0


def test_views_and_what_is_closed_are_not_counted() -> None:
    account = Account(MEGABYTE)
    values = np.zeros(4 * MEGABYTE, dtype=np.uint8)
    with account.open():
        values[::2][10:].reshape(-1)
        with uncounted():
            kept = np.zeros(4 * MEGABYTE, dtype=np.uint8)
    np.zeros(4 * MEGABYTE, dtype=np.uint8)
    assert kept.nbytes > account.limit_bytes
    assert account.used_bytes == account.peak_bytes == 0


def test_accounts_of_threads_are_apart() -> None:
    mine, other = Account(64 * MEGABYTE), Account(64 * MEGABYTE)
    passed: list[np.ndarray] = []

    def work() -> None:
        with other.open():
            passed.append(np.zeros(MEGABYTE, dtype=np.uint8))

    with mine.open():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert (mine.used_bytes, other.used_bytes) == (0, MEGABYTE)
    passed.clear()  # freed by this thread, counted where it was allocated
    assert other.used_bytes == 0


def test_an_array_may_outlive_its_account() -> None:
    account = Account(MEGABYTE)
    with account.open():
        values = np.arange(1000)
    del account
    others = [Account(MEGABYTE) for _ in range(3)]
    assert all(other.used_bytes == 0 for other in others)
    assert values.sum() == 499_500
    del values
    assert all(other.used_bytes == 0 for other in others)


def test_bytes_that_no_array_holds() -> None:
    account = Account(MEGABYTE)
    account.hold(MEGABYTE // 2)
    with pytest.raises(MemoryError):
        account.hold(MEGABYTE)
    with account.open(), pytest.raises(MemoryError):
        np.zeros(MEGABYTE, dtype=np.uint8)
    assert account.used_bytes == MEGABYTE // 2
    del account
    assert Account(MEGABYTE).used_bytes == 0


def opened(nbytes: int) -> Any:
    """An array of an account that nobody has any more."""
    with Account(64 * MEGABYTE).open():
        return np.zeros(nbytes, dtype=np.uint8)


@pytest.fixture
def no_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_memory, "_idle", deque())
    monkeypatch.setattr(array_memory, "_occupied", deque())


@pytest.mark.usefixtures("no_slots")
def test_an_account_costs_the_same_however_many_arrays_outlive_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    is_free = array_memory._Slot.is_free

    def counted(slot: array_memory._Slot) -> bool:
        nonlocal looks
        looks += 1
        return is_free(slot)

    monkeypatch.setattr(array_memory._Slot, "is_free", counted)
    arrays = [opened(MEGABYTE // 100) for _ in range(1000)]
    assert len(array_memory._occupied) == 1000 and looks <= 3000
    arrays.clear()
    for _ in range(1000):
        opened(1)
    assert len(array_memory._occupied) + len(array_memory._idle) == 1000  # none was made


@pytest.mark.usefixtures("no_slots")
def test_a_slot_with_next_to_nothing_in_it_is_used_again() -> None:
    for left in (4096, 4097):
        array = opened(left)
        assert len(array_memory._idle) == (left == 4096)
        account = Account(MEGABYTE)
        assert account.used_bytes == 0
        del array
        with account.open():
            half = np.empty(MEGABYTE // 2, np.uint8)
        assert 0 <= half.nbytes - account.used_bytes <= 4096
        del half, account
        array_memory._idle.clear()


def test_a_process_ends_in_order_while_arrays_are_still_there() -> None:
    program = (
        "import numpy as np, sys\n"
        "from shared.process.array_memory import Account\n"
        "def opened():\n"
        "    with Account(1 << 30).open():\n"
        "        return np.ones(1000)\n"
        "sys.keep = [opened() for _ in range(300)]\n"
        "np.keep = [opened() for _ in range(300)]\n"
    )
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
