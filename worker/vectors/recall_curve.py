"""The recall of a search for each expansion, as `calibration` measured it on a collection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

RECALL = 0.95
"""The recall of searches that do not ask for another one."""
CACHED = 256
"""Expansions that are remembered: most searches ask one curve for the same recall."""
MADE_SHARE = 0.3
"""Queries made from stored vectors find their neighbours more easily than real queries. So they may miss only this
share of what real queries may miss."""


@dataclass(frozen=True, slots=True)
class RecallCurve:
    """`recalls[i]`: the recall of the 10 nearest with `expansions[i]`, less 1.5 standard errors of the
    measurement. `expansions` are ascending. `queries`: how many real queries it was measured with; 0: queries made from
    stored vectors."""

    expansions: tuple[int, ...]
    recalls: tuple[float, ...]
    queries: int = 0

    def expansion(self, recall: float) -> int:
        """The least expansion with this recall; the greatest that was measured if none has it."""
        return _expansion(self, recall)


@lru_cache(CACHED)
def _expansion(curve: RecallCurve, recall: float) -> int:
    wanted = recall if curve.queries else 1 - MADE_SHARE * (1 - recall)
    # A greater expansion never finds less; a lower measured recall is chance.
    recalls = np.maximum.accumulate(curve.recalls)
    place = int(np.searchsorted(recalls, wanted))
    if place == len(recalls):
        return curve.expansions[-1]
    # Recall grows ever more slowly with the expansion, so the chord between two measurements lies on the safe side.
    return int(np.ceil(np.interp(wanted, recalls[: place + 1], curve.expansions[: place + 1])))
