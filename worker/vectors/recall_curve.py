"""How much of the truth a search finds with how many candidates, as `calibration` measured it on a collection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RECALL = 0.95
"""The recall of searches that do not say which."""
MADE_SHARE = 0.3
"""Queries made from stored vectors find their neighbours more easily than real ones, so they must miss at most this
part of what real ones may miss."""


@dataclass(frozen=True, slots=True)
class RecallCurve:
    """`recalls[i]`: the recall of the 10 nearest with `expansions[i]` candidates, less a standard error of the
    measurement. `expansions` are ascending. `queries`: how many real queries it was measured with; 0: queries made from
    stored vectors."""

    expansions: tuple[int, ...]
    recalls: tuple[float, ...]
    queries: int = 0

    def expansion(self, recall: float) -> int:
        """The fewest candidates with this recall; the most that were measured if none has it."""
        wanted = recall if self.queries else 1 - MADE_SHARE * (1 - recall)
        # A larger number of candidates never finds less: where it seems so, that is chance.
        recalls = np.maximum.accumulate(self.recalls)
        place = int(np.searchsorted(recalls, wanted))
        if place == len(recalls):
            return self.expansions[-1]
        # Recall grows ever more slowly with candidates, so the chord between two measurements lies on the safe side.
        return int(np.ceil(np.interp(wanted, recalls[: place + 1], self.expansions[: place + 1])))
