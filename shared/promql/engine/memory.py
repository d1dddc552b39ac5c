"""The bound on the memory of a query's arrays in one process."""

from __future__ import annotations

from shared.errors import OverBudget, TooHeavy
from shared.process.array_memory import Account

LIGHT_BYTES_MAX = 16 << 20
"""What a light query may hold in one process. Many light queries run at once; this also bounds what they hold
together."""
TOO_MUCH_MEMORY = (
    "query needs more memory than {limit} bytes at a time in one process, its share of TRIPTYCH_QUERY_BYTES_MAX; "
    "ask for fewer series, a shorter range or a longer step"
)


def account_of(bytes_max: int, *, is_light: bool) -> Account:
    """An account for a query that may hold `bytes_max` in this process."""
    return Account(min(bytes_max, LIGHT_BYTES_MAX) if is_light else bytes_max)


def bounded(account: Account, *, is_light: bool) -> _Bounded:
    """A context manager that counts the arrays of this thread. Raises OverBudget instead of MemoryError, or TooHeavy
    for a light query, since a heavy one may hold more."""
    return _Bounded(account, is_light)


class _Bounded:
    __slots__ = ("_account", "_is_light", "_opened")

    def __init__(self, account: Account, is_light: bool) -> None:
        self._account = account
        self._is_light = is_light
        self._opened = account.open()

    def __enter__(self) -> None:
        self._opened.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._opened.__exit__()
        if isinstance(error, MemoryError):
            if self._is_light:
                raise TooHeavy("the query needs more memory than a light one has") from error
            raise OverBudget(TOO_MUCH_MEMORY.format(limit=self._account.limit_bytes)) from error
