"""Upper and lower case as in Go's `strings.ToUpper` and `strings.ToLower`, which Prometheus uses.

Each character is mapped to one character, by the simple case mappings of
https://www.unicode.org/reports/tr44/#Casemapping. Python's functions use the full mappings, some of which map a
character to several (ß to SS) or depend on neighbouring characters (Σ at the end of a word).
"""

from __future__ import annotations


def upper(text: str) -> str:
    mapped = text.upper()
    return mapped if len(mapped) == len(text) else "".join(map(_upper, text))  # no full mapping is shorter


def lower(text: str) -> str:
    # These are the only characters with a mapping to several characters or one that depends on its neighbours.
    return text.replace("İ", "i").replace("Σ", "σ").lower()


def _upper(character: str) -> str:
    """The simple mapping of one character. If its full mapping has several characters, the simple mapping is that to
    title case (ᾳ to ᾼ), or there is none (ß)."""
    for mapped in (character.upper(), character.title()):
        if len(mapped) == 1:
            return mapped
    return character
