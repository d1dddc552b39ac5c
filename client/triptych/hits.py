"""Vectors and search results, as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triptych.tables import Column, Table, column_names

VECTOR = "vector"


@dataclass(frozen=True, eq=False)
class Vector:
    """`vector`: float32[dimension]; None if it was not asked for. `attributes`: those that were asked for."""

    id: str
    vector: NDArray[np.float32] | None
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Hit(Vector):
    """`score`: in the collection's metric; `highlights`: field → fragments of its text."""

    score: float = 0.0
    highlights: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """The best hits that have this value of the attribute."""

    value: Any
    hits: list[Hit]


@dataclass(frozen=True)
class SearchResult(Table):
    """`hits`: the best first; with `group_by`, `groups` instead. `warnings`: what is missing; `infos`: hints.

    As a table: `id`, `score`, a column for each attribute, and `vector` if it was asked for.
    """

    hits: list[Hit]
    groups: list[Group] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def columns(self) -> dict[str, Column]:
        hits = self.hits or [hit for group in self.groups for hit in group.hits]
        table = columns_of(hits)
        return {"id": table.pop("id"), "score": np.array([hit.score for hit in hits], np.float64), **table}


class Vectors(list[Vector], Table):
    """A list of vectors. `warnings`: what is missing from it; `infos`: hints. As a table: `id`, a column for each
    attribute, and `vector` if it was asked for. `next_page_token`: of a scroll that goes on."""

    def __init__(self, vectors: Sequence[Vector] = (), content: Mapping[str, Any] = {}) -> None:
        super().__init__(vectors)
        self.warnings: list[str] = list(content.get("warnings", ()))
        self.infos: list[str] = list(content.get("infos", ()))
        self.next_page_token: str | None = content.get("nextPageToken")

    def columns(self) -> dict[str, Column]:
        return columns_of(self)


def columns_of(vectors: Sequence[Vector]) -> dict[str, Column]:
    """The columns. An attribute named `id` or `score` gets `attribute_` before its name, repeatedly if such an
    attribute exists as well."""
    table: dict[str, Column] = {"id": [vector.id for vector in vectors]}
    names = sorted({name for vector in vectors for name in vector.attributes})
    for name, column in column_names(names, ("id", "score"), "attribute_").items():
        table[column] = [vector.attributes.get(name) for vector in vectors]
    rows = [vector.vector for vector in vectors if vector.vector is not None]
    if rows and len(rows) == len(vectors):
        table[VECTOR] = np.stack(rows)
    return table


def vector_of(content: Mapping[str, Any]) -> Vector:
    return Vector(content["id"], *_parts(content))


def hits_of(results: Sequence[Mapping[str, Any]]) -> list[Hit]:
    return [
        Hit(result["vector"]["id"], *_parts(result["vector"]), result["score"], result.get("highlights", {}))
        for result in results
    ]


def result_of(content: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> SearchResult:
    """`content`: the whole answer; `results`: those of one query."""
    groups = [Group(group["value"], hits_of(group["results"])) for group in content.get("groups", ())]
    remarks = tuple(content.get("warnings", ())), tuple(content.get("infos", ()))
    return SearchResult(hits_of(results), groups, *remarks)


def _parts(content: Mapping[str, Any]) -> tuple[NDArray[np.float32] | None, Mapping[str, Any]]:
    attributes = dict(content.get("attributes", {}))
    components = attributes.pop(VECTOR, None)
    return None if components is None else np.array(components, np.float32), attributes
