"""The bound on the memory of a query's arrays in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shared.array_memory import Account
from shared.errors import OverBudget, TooHeavy

LIGHT_BYTES_MAX = 16 << 20
"""What a light query may hold in one process. Many light ones run at once, so together they stay within bounds too."""
TOO_MUCH_MEMORY = (
    "query needs more memory than {limit} bytes at a time in one process, its share of TRIPTYCH_QUERY_BYTES_MAX; "
    "ask for fewer series, a shorter range or a longer step"
)


def account_of(bytes_max: int, *, is_light: bool) -> Account:
    """An account for a query that may hold `bytes_max` in this process."""
    return Account(min(bytes_max, LIGHT_BYTES_MAX) if is_light else bytes_max)


@contextmanager
def bounded(account: Account, *, is_light: bool) -> Iterator[None]:
    """Count the arrays of this thread. Raises OverBudget instead of MemoryError, or TooHeavy if a heavy query might
    have more."""
    with account.open():
        try:
            yield
        except MemoryError as error:
            if is_light:
                raise TooHeavy("the query needs more memory than a light one has") from error
            raise OverBudget(TOO_MUCH_MEMORY.format(limit=account.limit_bytes)) from error
