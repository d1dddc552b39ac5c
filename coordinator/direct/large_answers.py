"""Remembers requests that had large responses, so that they are left to aiohttp from the beginning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KEPT_MAX = 1024

K = TypeVar("K", bound=Hashable)


class LargeAnswers(Generic[K]):
    """Keys of requests whose last response was large. Only the KEPT_MAX most recent ones are kept."""

    def __init__(self) -> None:
        self._keys: OrderedDict[K, None] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    def note(self, key: K) -> None:
        self._keys[key] = None
        if len(self._keys) > KEPT_MAX:
            self._keys.popitem(last=False)
