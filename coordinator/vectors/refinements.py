"""Options of a search beside the nearest vectors: results from an offset on, results within a threshold, or groups by
an attribute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from coordinator.vectors.merging import Hits
from coordinator.vectors.values import shown
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import K_MAX, VECTOR_FIELD

GROUPS_DEFAULT, PER_GROUP_DEFAULT = 10, 3
GROUPS_MAX, PER_GROUP_MAX = 100, 100


class GroupBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best `perGroup` results of each of the `groups` best values of a field."""

    field: str
    groups: int = GROUPS_DEFAULT
    perGroup: int = PER_GROUP_DEFAULT


@dataclass(frozen=True, slots=True)
class Refinement:
    """`threshold`: the worst score of a result, None for any score."""

    offset: int = 0
    threshold: float | None = None
    group: GroupBy | None = None

    def cut(self, hits: Hits, k: int, metric: str) -> Hits:
        """The results from the offset on, at most `k`, that are within the threshold. `metric`: empty for scores that
        are not distances."""
        end = self.offset + k
        if self.threshold is not None:
            # As float32, which the scores in the answer are: a result whose score is shown as the threshold stays.
            with np.errstate(over="ignore"):
                least = np.float32(-self.threshold if metric == "l2" else self.threshold)
            end = min(end, int(np.count_nonzero(hits.near >= least)))
        if self.offset == 0 and end >= len(hits.ids):
            return hits
        return hits.part(self.offset, max(self.offset, end))


NO_REFINEMENT = Refinement()


def of(
    offset: int, threshold: float | None, group: GroupBy | None, k: int, *, batch: bool, rankings: int
) -> Refinement:
    """Checked. `batch`: of a search for several vectors; `rankings`: by a vector, by a text, by both (2) or by none.
    Raises BadData."""
    if offset < 0 or (offset and offset + k > K_MAX):
        raise BadData(f"offset is {offset} and k is {k}; offset must be 0 or more, and both together at most {K_MAX}")
    if threshold is not None and not math.isfinite(threshold):
        raise BadData(f"scoreThreshold is {threshold}; it must be a finite number")
    if threshold is not None and not rankings:
        raise BadData("scoreThreshold is given without a vector or text; only a search with one of them has scores")
    if group is not None:
        _check_group(group, offset, batch=batch, rankings=rankings)
    return Refinement(offset, threshold, group)


def _check_group(group: GroupBy, offset: int, *, batch: bool, rankings: int) -> None:
    if group.field in ("", VECTOR_FIELD):
        raise BadData(f"groupBy.field is {shown(group.field)}; it must be the name of an attribute")
    if not 1 <= group.groups <= GROUPS_MAX:
        raise BadData(f"groupBy.groups is {group.groups}; it must be 1 to {GROUPS_MAX}")
    if not 1 <= group.perGroup <= PER_GROUP_MAX:
        raise BadData(f"groupBy.perGroup is {group.perGroup}; it must be 1 to {PER_GROUP_MAX}")
    if batch:
        raise BadData("groupBy and vectors are both given; a search with groups has one vector")
    if rankings == 2:
        raise BadData("groupBy, vector and text are given; a search with groups has a vector or a text, not both")
    if not rankings:
        raise BadData("groupBy is given without a vector or text; groups are in the order of their best scores")
    if offset:
        raise BadData("groupBy and offset are both given; a search with groups begins with the best one")


def from_protobuf(request: vector_pb2.SearchRequest, k: int, *, batch: bool, rankings: int) -> Refinement:
    """Raises BadData."""
    asked: Any = request.group_by if request.HasField("group_by") else None
    group = asked and GroupBy(asked.field, asked.groups or GROUPS_DEFAULT, asked.per_group or PER_GROUP_DEFAULT)
    threshold = request.score_threshold if request.HasField("score_threshold") else None
    return of(request.offset, threshold, group, k, batch=batch, rankings=rankings)
