"""Counts in texts for people: `1 record`, `2 records`."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """`count` and `what`, whose first word is a regular plural: `counted(1, "records appended")` is `1 record
    appended`."""
    noun, space, rest = what.partition(" ")
    return f"{count} {noun.removesuffix('s') if count == 1 else noun}{space}{rest}"
