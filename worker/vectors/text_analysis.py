"""Text to words: how the texts of a field and the queries for it are split, folded and stemmed (by tantivy)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Token, Tokenizer

from shared.messages.vector_text import TextField, TextQuery

WORD_BYTES_MAX = 40
"""Words of this many bytes or more are left out, as by tantivy's default tokenizer."""


class FieldAnalyzer:
    """Splits texts into words of letters and digits in lower case, and applies the field's settings to them."""

    def __init__(self, field: TextField) -> None:
        self.is_default = not (field.stemming or field.stop_words or field.ascii_folding)
        """Whether tantivy's default tokenizer makes the same words."""
        self.words_analyzer = _analyzer(field, field.stop_words, bool(field.stemming))
        self._beginnings = _analyzer(field, stop_words=False, stemming=False)

    def words(self, text: str) -> list[str]:
        return self.words_analyzer.analyze(text)

    def tokens(self, text: str) -> list[Token]:
        """The words with their positions, which leave gaps for the words left out, and where they are in the text."""
        return self.words_analyzer.pre_tokenize(text).tokens

    def beginnings(self, text: str) -> list[str]:
        """The words without stemming and with stop words, because the beginning of a word is neither stem nor stop
        word."""
        return self._beginnings.analyze(text)


def _analyzer(field: TextField, stop_words: bool, stemming: bool) -> TextAnalyzer:
    builder = TextAnalyzerBuilder(Tokenizer.simple())
    builder = builder.filter(Filter.remove_long(WORD_BYTES_MAX)).filter(Filter.lowercase())
    if stop_words:  # before folding, because the lists have accents
        builder = builder.filter(Filter.stopword(field.language))
    if field.ascii_folding:  # before stemming, so that words with and without accents get the same stem
        builder = builder.filter(Filter.ascii_fold())
    if stemming:
        builder = builder.filter(Filter.stemmer(field.language))
    return builder.build()


@dataclass(frozen=True, slots=True)
class Part:
    """A clause of a query in one field. `words` are (position, word). With a `prefix`, a word that begins with it, or
    that is its `stem`, must follow. `slop` is that of a phrase, −1 if the clause is no phrase."""

    field: str
    boost: float
    words: tuple[tuple[int, str], ...]
    prefix: str = ""
    stem: str = ""
    slop: int = -1

    @property
    def is_empty(self) -> bool:
        return not (self.words or self.prefix)

    def begins(self, word: str) -> bool:
        """Whether the prefix matches this word."""
        return bool(self.prefix) and (word.startswith(self.prefix) or word == self.stem)

    def beginning(self) -> str:
        """A regular expression for the words that the prefix matches. Folding may have put punctuation into them."""
        stem = f"|{re.escape(self.stem)}" if self.stem and not self.stem.startswith(self.prefix) else ""
        return f"{re.escape(self.prefix)}.*{stem}"


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of a query in all its fields; `occur` is that of `TextClause`."""

    occur: str
    parts: tuple[Part, ...]


def analyzed(query: TextQuery, analyzers: Mapping[str, FieldAnalyzer]) -> list[Clause]:
    """The query in the words of its fields, in the same order in every worker."""
    return [
        Clause(
            clause.occur,
            tuple(
                _part(field, boost, clause.text, clause.kind, clause.slop, analyzers[field])
                for field, boost in query.fields
            ),
        )
        for clause in query.clauses
    ]


def _part(field: str, boost: float, text: str, kind: str, slop: int, analyzer: FieldAnalyzer) -> Part:
    if kind == "phrase":
        tokens = analyzer.tokens(text)
        first = tokens[0].position if tokens else 0
        words = tuple((token.position - first, token.text) for token in tokens)
        return Part(field, boost, words, slop=slop)
    if kind == "prefix":
        *before, last = analyzer.beginnings(text) or [""]
        stem = "".join(analyzer.words(last))
        return Part(field, boost, tuple(enumerate(dict.fromkeys(analyzer.words(" ".join(before))))), last, stem)
    return Part(field, boost, tuple(enumerate(dict.fromkeys(analyzer.words(text)))))
