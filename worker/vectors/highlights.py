"""The pieces of a text in which a query's words occur, with tags around these."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tantivy import Token

from shared.messages.vector_text import Highlighting, TextField, TextQuery
from worker.vectors.text_analysis import FieldAnalyzer, Part, analyzed

TEXT_CHARS_MAX = 1 << 16
"""Only so many characters of a text are searched, because each word becomes an object."""
MATCHES_MAX = 1000
"""Only so many matches of a text are examined, because each may begin a fragment."""
ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Match:
    """A word of the text, from character `start` to `end`, that the query has."""

    start: int
    end: int
    word: str


class Highlighter:
    """Finds what one query matches in the texts of some fields. Excluded clauses of the query are not highlighted."""

    def __init__(self, fields: Mapping[str, TextField], query: TextQuery, highlighting: Highlighting) -> None:
        self._wanted = highlighting
        self._analyzers = {name: FieldAnalyzer(fields[name]) for name in highlighting.fields}
        everywhere = TextQuery(tuple((name, 1.0) for name in highlighting.fields), query.clauses)
        self._parts: dict[str, list[Part]] = {name: [] for name in highlighting.fields}
        for clause in analyzed(everywhere, self._analyzers):
            for part in clause.parts if clause.occur != "-" else ():
                self._parts[part.field].append(part)

    def fragments(self, attributes: Mapping[str, object]) -> dict[str, list[str]]:
        """Field → its fragments in the order of the text, for the fields in which something matches."""
        highlighted = {}
        for name in self._wanted.fields:
            text = attributes.get(name)
            if isinstance(text, str):
                text = text[:TEXT_CHARS_MAX]
                matches = self._matches(name, text)
                if matches:
                    highlighted[name] = [self._tagged(text, *fragment) for fragment in self._best(text, matches)]
        return highlighted

    def _matches(self, field: str, text: str) -> list[Match]:
        tokens = self._analyzers[field].tokens(text)
        places: set[int] = set()
        for part in self._parts[field]:
            places |= _places(part, tokens)
        return [
            Match(tokens[i].char_offset_from, tokens[i].char_offset_to, tokens[i].text)
            for i in sorted(places)[:MATCHES_MAX]
        ]

    def _best(self, text: str, matches: Sequence[Match]) -> list[tuple[int, int, Sequence[Match]]]:
        """(start, end, matches inside) of the fragments: those with the most different words, then with the most
        words, then the first."""
        ranked: list[tuple[int, int, int, int]] = []
        last = 0
        for first, match in enumerate(matches):
            last = max(last, first)
            while last + 1 < len(matches) and matches[last + 1].end - match.start <= self._wanted.fragment_chars:
                last += 1
            inside = matches[first : last + 1]
            ranked.append((-len({one.word for one in inside}), -len(inside), first, last))
        chosen: list[tuple[int, int, Sequence[Match]]] = []
        for _, _, first, last in sorted(ranked):
            if len(chosen) == self._wanted.fragments:
                break
            start, end = _around(text, matches[first].start, matches[last].end, self._wanted.fragment_chars)
            if all(end <= other_start or other_end <= start for other_start, other_end, _ in chosen):
                inside = [match for match in matches if start <= match.start and match.end <= end]
                chosen.append((start, end, inside))
        return sorted(chosen)

    def _tagged(self, text: str, start: int, end: int, matches: Sequence[Match]) -> str:
        wanted = self._wanted
        escaped = html.escape if wanted.escape_html else str
        pieces = [f"{ELLIPSIS} "] if start > 0 else []
        at = start
        for match in matches:
            word = escaped(text[match.start : match.end])
            pieces += [escaped(text[at : match.start]), wanted.pre_tag, word, wanted.post_tag]
            at = match.end
        pieces.append(escaped(text[at:end]))
        if end < len(text):
            pieces.append(f" {ELLIPSIS}")
        return "".join(pieces)


def _places(part: Part, tokens: Sequence[Token]) -> set[int]:
    """Which tokens the part of a query matches. The words of a phrase count only where they follow each other, but
    those of a phrase with slop count anywhere."""
    words = {word for _, word in part.words}
    if part.slop != 0 or len(part.words) < 2:
        return {place for place, token in enumerate(tokens) if token.text in words or part.begins(token.text)}
    at = {token.position: place for place, token in enumerate(tokens) if token.text in words}
    places: set[int] = set()
    for position in at:
        spelt = [at.get(position + offset, -1) for offset, _ in part.words]
        if all(place >= 0 and tokens[place].text == word for place, (_, word) in zip(spelt, part.words, strict=True)):
            places.update(spelt)
    return places


def _around(text: str, start: int, end: int, chars: int) -> tuple[int, int]:
    """The piece of about `chars` characters around text[start:end], which ends between words where it can."""
    before = max(0, start - max(0, chars - (end - start)) // 2)
    after = min(len(text), max(end, before + chars))
    before = max(0, min(before, after - chars))
    if before > 0:
        space = text.find(" ", before - 1, start)
        before = space + 1 if space >= 0 else start
    if after < len(text):
        space = text.rfind(" ", end, after + 1)
        after = space if space >= 0 else end
    return before, after
