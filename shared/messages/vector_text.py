"""Text fields of a collection, text queries, and the messages about both."""

from __future__ import annotations

import math

import msgspec

LANGUAGES = (
    "arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian",
    "norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil", "turkish",
)  # fmt: skip
"""The languages for which tantivy has a stemmer (Snowball)."""
STOP_WORD_LANGUAGES = tuple(
    language for language in LANGUAGES if language not in ("arabic", "greek", "romanian", "tamil", "turkish")
)
"""Those of LANGUAGES for which tantivy has a list of stop words."""


class TextField(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """An attribute indexed for BM25, and how its text is split into words: always in lower case; with accents removed
    if `ascii_folding`; without the stop words of `language` if `stop_words`; and reduced to their stems if `stemming`
    (None: if there is a language)."""

    field: str
    language: str = ""
    stemming: bool | None = None
    stop_words: bool = False
    ascii_folding: bool = False


class TextClause(msgspec.Struct, frozen=True, array_like=True):
    """A part of a text query. `kind`: "words" (any of them), "prefix" (words that begin with it) or "phrase" (its words
    one after the other, with up to `slop` others between them). `occur`: "" (adds to the score), "+" (must match) or
    "-" (must not match); the latter two match if all words of `text` do."""

    text: str
    kind: str = "words"
    occur: str = ""
    slop: int = 0


class WordStatistics(msgspec.Struct, frozen=True, array_like=True):
    """`documents`: how many vectors have a text. `frequencies`: how many of them have each word of each field of a
    query, in the order in which `TextIndex.words` gives them."""

    documents: int
    frequencies: tuple[int, ...]


class TextQuery(msgspec.Struct, frozen=True):
    """`fields`: (field, boost) each. `statistics`: those of all workers, so that scores can be compared between
    workers; None: each worker uses its own."""

    fields: tuple[tuple[str, float], ...]
    clauses: tuple[TextClause, ...]
    statistics: WordStatistics | None = None


class Highlighting(msgspec.Struct, frozen=True):
    """How matches are shown: at most `fragments` pieces of each field's text, of about `fragment_chars` characters
    each, with `pre_tag` and `post_tag` around each matching word. `escape_html`: escape the text between the tags."""

    fields: tuple[str, ...]
    pre_tag: str
    post_tag: str
    fragment_chars: int
    fragments: int
    escape_html: bool


def idf(documents: int, frequency: int) -> float:
    """The weight of a word in BM25, as tantivy computes it."""
    return math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))
