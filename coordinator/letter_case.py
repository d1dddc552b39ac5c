"""Upper and lower case as Go's `strings.ToUpper` and `strings.ToLower` have them, which Prometheus uses: each character
becomes one character, by the simple case mappings of https://www.unicode.org/reports/tr44/#Casemapping.

Python's own functions use the full mappings, of which some make several characters of one (ß becomes SS) or depend on
the characters beside it (Σ at the end of a word).
"""

from __future__ import annotations


def upper(text: str) -> str:
    mapped = text.upper()
    return mapped if len(mapped) == len(text) else "".join(map(_upper, text))  # no full mapping is shorter


def lower(text: str) -> str:
    # No other character has several lower ones, or depends on those beside it.
    return text.replace("İ", "i").replace("Σ", "σ").lower()


def _upper(character: str) -> str:
    """The simple mapping of a character whose full one has several is that to title case (ᾳ becomes ᾼ), or there is
    none (ß)."""
    for mapped in (character.upper(), character.title()):
        if len(mapped) == 1:
            return mapped
    return character
