"""Memory accounts: exact counts of arrays, refusals past the limit, and what is not counted."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shared.array_memory import Account, uncounted

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
