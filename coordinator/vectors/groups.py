"""Searches grouped by the value of an attribute. The groups are in the order of their best results.

First the groups are found: the best vectors, then the best ones with other values than those found so far, until there
are enough groups or no more vectors. Then a search for each group that is not full fills it. So a group that contains
most of the best vectors costs one more search, not more and more candidates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from coordinator.fanout.calls import FanOut
from coordinator.vectors.merging import Hits, MergedHits
from coordinator.vectors.refinements import GroupBy
from shared.messages.vectors import K_MAX, Condition, SearchBody, Value

CANDIDATES_MIN = 100
ROUNDS_MAX = 32
"""The limit on searches for further groups. Each finds at least one group, so more are needed only if groups are
large."""
FILLED_AT_ONCE = 8

Ask = Callable[[SearchBody], Awaitable[tuple[MergedHits, FanOut]]]


@dataclass(slots=True)
class Group:
    """The results with one value of the field, best first. `is_full`: whether the search for more of them is over."""

    value: Value
    hits: Hits
    is_full: bool = False


class GroupedSearch:
    """One search. `ask` sends it to the workers; their answers have this field only. `warnings`: those of all its
    parts; `found`: the facts about fields that no vector has."""

    def __init__(self, ask: Ask, body: SearchBody, wanted: GroupBy) -> None:
        self._ask = ask
        self._body = msgspec.structs.replace(body, fields=(wanted.field,))
        self._wanted = wanted
        self._groups: dict[tuple[bool, Value], Group] = {}  # True is equal to 1, but not the same value
        self.warnings: list[str] = []
        self.infos: list[str] = []
        self.found = MergedHits([])

    async def run(self) -> list[Group]:
        """The best groups. A vector without the field is in no group. Raises what `ask` raises."""
        await self._find()
        groups = list(self._groups.values())
        unfilled = [group for group in groups if not group.is_full]
        for start in range(0, len(unfilled), FILLED_AT_ONCE):
            await asyncio.gather(*map(self._fill, unfilled[start : start + FILLED_AT_ONCE]))
        # A search for one group may find a better result of it than those for all.
        return sorted((group for group in groups if group.hits.ids), key=lambda group: -float(group.hits.near[0]))

    async def _find(self) -> None:
        grouping = self._wanted
        candidates = min(K_MAX, max(CANDIDATES_MIN, 2 * grouping.groups * grouping.perGroup))
        present = Condition("exists", grouping.field)
        for _ in range(ROUNDS_MAX):
            values = tuple(group.value for group in self._groups.values())
            others = (Condition("not", children=(Condition("within", grouping.field, values),)),) if values else ()
            hits = await self._hits((present, *others), candidates)
            found_one = self._take(hits, is_last=len(hits.ids) < candidates)
            if len(hits.ids) < candidates or not found_one or len(self._groups) == grouping.groups:
                return
        self.infos.append(
            f"groupBy: {len(self._groups)} groups were found in {ROUNDS_MAX} searches; there may be more of them"
        )

    def _take(self, hits: Hits, *, is_last: bool) -> bool:
        """Add the groups of these results; False if there are none."""
        places: dict[tuple[bool, Value], list[int]] = {}
        for place, packed in enumerate(hits.attributes):
            value = msgspec.msgpack.decode(packed).get(self._wanted.field) if packed else None
            elements = value if isinstance(value, list) else [value]
            for key in dict.fromkeys((isinstance(e, bool), e) for e in elements if isinstance(e, str | int | float)):
                places.setdefault(key, []).append(place)
        new_values = [(key, value_places) for key, value_places in places.items() if key not in self._groups]
        for key, value_places in new_values[: self._wanted.groups - len(self._groups)]:
            best = np.array(value_places[: self._wanted.perGroup], dtype=np.int64)
            self._groups[key] = Group(key[1], hits.take(best), is_last or len(best) == self._wanted.perGroup)
        return bool(new_values)

    async def _fill(self, group: Group) -> None:
        same = Condition("has", self._wanted.field, (group.value,))
        group.hits = await self._hits((same,), self._wanted.perGroup)

    async def _hits(self, conditions: tuple[Condition, ...], count: int) -> Hits:
        request_filter = (self._body.filter,) if self._body.filter is not None else ()
        condition = Condition("and", children=(*request_filter, *conditions))
        results, outcome = await self._ask(msgspec.structs.replace(self._body, k=count, filter=condition))
        self.found.unknown |= results.unknown
        self.found.nearest.update(results.nearest)
        self.found.vectors = max(self.found.vectors, results.vectors)
        self.warnings = list(dict.fromkeys([*self.warnings, *outcome.warnings()]))
        return results.lists[0]
