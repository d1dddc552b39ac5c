"""Hints in the answers of the vector area."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from coordinator.vectors.values import shown
from shared.messages.selected_vectors import SelectionReply

FIELDS_NAMED_MAX = 10
"""The limit on fields that have a hint of their own; the others are only counted."""


def unknown_fields(collection: str, unknown: Collection[str], nearest: Mapping[str, str]) -> list[str]:
    """A hint for each field of a filter that no vector of the collection has. `nearest`: field → the most similar
    name of a field that a vector has, if there is one."""
    hints = []
    for name in sorted(unknown)[:FIELDS_NAMED_MAX]:
        similar = f"; the nearest field is {shown(nearest[name])}" if nearest.get(name) else ""
        hints.append(f"filter: no vector of the collection {collection!r} has the field {shown(name)}{similar}")
    others = len(unknown) - len(hints)
    if others > 0:
        hints.append(f"filter: no vector of the collection {collection!r} has {others} other fields")
    return hints


def unknown_of(collection: str, replies: Sequence[SelectionReply], warnings: Sequence[str]) -> list[str]:
    """As `unknown_fields`, from the replies of workers. There are no hints while shards are missing or have no vector,
    since it is not known which fields exist."""
    unknown = [set(reply.unknown) for reply in replies if reply.vectors]
    if warnings or not unknown:
        return []
    nearest = {name: near for reply in replies for name, near in reply.nearest.items()}
    return unknown_fields(collection, set.intersection(*unknown), nearest)
