"""Fuses the two rankings of a hybrid search, by vector and by text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.vectors.merging import Hits
from coordinator.vectors.text import converted
from coordinator.vectors.values import shown
from proto import vector_pb2
from shared.errors import BadData

RANK_CONSTANT = 60.0
"""Reciprocal rank fusion: score = Σ weight / (60 + rank) (Cormack, Clarke and Büttcher, SIGIR 2009)."""
RANK_CONSTANT_MAX = 1e6
WEIGHT_MAX = 1e6

Method = Literal["rrf", "linear"]


@dataclass(frozen=True, slots=True)
class Fusion:
    """How the rankings by vector and by text are combined: by reciprocal ranks ("rrf"), or by a weighted sum of the
    similarities, each scaled to 0 to 1 within its ranking's candidates ("linear")."""

    method: Method = "rrf"
    weights: tuple[float, float] = (1.0, 1.0)
    rank_constant: float = RANK_CONSTANT

    def scores(self, similarities: NDArray[np.float32], weight: float) -> NDArray[np.float64]:
        """The contribution of one ranking to the scores of its hits. `similarities` float32[n] are those of its hits,
        best first."""
        if self.method == "rrf":
            return weight / (self.rank_constant + np.arange(1.0, len(similarities) + 1))
        if not len(similarities):
            return np.zeros(0)
        values = similarities.astype(np.float64)
        spread = values[0] - values[-1]
        # Hits that are all equally near are all the best.
        return weight * ((values - values[-1]) / spread if spread > 0 else np.ones(len(values)))


RECIPROCAL = Fusion()


def fuse(rankings: Sequence[Hits], k: int, fusion: Fusion = RECIPROCAL) -> Hits:
    """The `k` best hits of the rankings by vector and by text. The similarity of a hit becomes its fused score; hits
    with equal scores are ordered by id."""
    scores: dict[bytes, float] = {}
    places: dict[bytes, int] = {}
    first = 0
    for ranking, weight in zip(rankings, fusion.weights, strict=True):
        added = fusion.scores(ranking.near, weight).tolist()
        for place, (name, score) in enumerate(zip(ranking.ids, added, strict=True)):
            scores[name] = scores.get(name, 0.0) + score
            places[name] = first + place
        first += len(ranking.ids)
    best = sorted(scores, key=lambda name: (-scores[name], name))[:k]
    tables = [ranking.vectors for ranking in rankings if ranking.vectors is not None and len(ranking.ids)]
    every = Hits(
        np.concatenate([ranking.near for ranking in rankings]),
        [name for ranking in rankings for name in ranking.ids],
        [packed for ranking in rankings for packed in ranking.attributes],
        np.concatenate(tables) if tables else None,
    )
    fused = every.take(np.array([places[name] for name in best], dtype=np.int64))
    fused.near = np.array([scores[name] for name in best], dtype=np.float32)
    return fused


class _Weights(msgspec.Struct, forbid_unknown_fields=True):
    vector: float = 1.0
    text: float = 1.0


class _Fusion(msgspec.Struct, forbid_unknown_fields=True):
    method: Method = "rrf"
    weights: _Weights = msgspec.field(default_factory=_Weights)
    rankConstant: float = RANK_CONSTANT


def from_json(content: dict[str, Any]) -> Fusion:
    """`fusion` of a search request. Raises BadData."""
    fusion_settings = converted(content, _Fusion, "fusion")
    return _checked(
        Fusion(
            fusion_settings.method,
            (fusion_settings.weights.vector, fusion_settings.weights.text),
            fusion_settings.rankConstant,
        )
    )


def from_protobuf(message: vector_pb2.Fusion) -> Fusion:
    if message.method not in ("", "rrf", "linear"):
        raise BadData(f"fusion.method is {shown(message.method)}; it must be 'rrf' or 'linear'")
    weights = message.weights
    return _checked(
        Fusion(
            "linear" if message.method == "linear" else "rrf",
            (
                weights.vector if weights.HasField("vector") else 1.0,
                weights.text if weights.HasField("text") else 1.0,
            ),
            message.rank_constant if message.HasField("rank_constant") else RANK_CONSTANT,
        )
    )


def _checked(fusion: Fusion) -> Fusion:
    for name, weight in zip(("vector", "text"), fusion.weights, strict=True):
        if not (math.isfinite(weight) and 0 <= weight <= WEIGHT_MAX):
            raise BadData(f"fusion.weights.{name} is {weight}; it must be 0 to {WEIGHT_MAX:g}")
    if not any(fusion.weights):
        raise BadData("fusion.weights are both 0; one of them must be above 0")
    if not (math.isfinite(fusion.rank_constant) and 0 <= fusion.rank_constant <= RANK_CONSTANT_MAX):
        raise BadData(f"fusion.rankConstant is {fusion.rank_constant}; it must be 0 to {RANK_CONSTANT_MAX:g}")
    return fusion
