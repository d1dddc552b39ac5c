"""The language of text queries: plain words, `"phrases"`, prefixes, and words that must or must not be there.

    query  = clause, clause … between white space
    clause = ["+" | "-"], ( '"' phrase '"' ["~" slop] | word "*" | word )

Every string is a query. A sign, quote or star in any other place is a character like others, and a backslash at the
beginning of a word makes all of it plain; one in front of the last star, that star.
"""

from __future__ import annotations

import re
from typing import Literal

from shared.errors import BadData
from shared.messages.vector_text import TextClause

Operator = Literal["or", "and"]

COSTLY_MAX = 64
"""The limit on the words of the phrases of a query, and four for each prefix, times the fields. Each word of a phrase
may have to read its places in all texts, and a prefix the vectors of many words; among 100,000 vectors, this takes 7
and 26 ms at the most."""
PREFIX_COST = 4
SLOP_MAX = 100

_WORDS = re.compile(r"[^\W_]+")
_CLAUSE = re.compile(
    r"""(?P<sign>[+-]?)                                 # a sign in front of white space is a word
        (?: "(?P<phrase>[^"]*)"(?:~(?P<slop>[0-9]{1,9}))?
          | \\(?P<plain>\S*)
          | (?P<prefix>[^\s"*]\S*)(?<!\\)\*(?=\s|\Z)
          | (?P<word>\S+) )""",
    re.VERBOSE,
)


def parse(query: str, operator: Operator = "or") -> tuple[TextClause, ...]:
    """The clauses of a query. With the operator "and", clauses without a sign must match. Raises BadData for a slop
    that is too large."""
    usual = "+" if operator == "and" else ""
    clauses: list[TextClause] = []
    words: list[str] = []
    for match in _CLAUSE.finditer(query):
        sign = match["sign"]
        if match["phrase"] is not None:
            slop = int(match["slop"] or 0)
            if slop > SLOP_MAX:
                raise BadData(f"text.query: the slop of a phrase is {slop}; it must be 0 to {SLOP_MAX}")
            clauses.append(TextClause(match["phrase"], "phrase", sign or usual, slop))
        elif match["prefix"] is not None:
            clauses.append(TextClause(match["prefix"], "prefix", sign or usual))
        else:
            word = match["word"] if match["plain"] is None else match["plain"]
            if sign or usual:
                clauses.append(TextClause(word, "words", sign or usual))
            else:
                words.append(word)
    if words:
        clauses.append(TextClause(" ".join(words)))
    return tuple(clauses)


def check_cost(clauses: tuple[TextClause, ...], fields: int) -> None:
    """Raises BadData for more phrases and prefixes than one search may look for in so many fields."""
    prefixes = sum(clause.kind == "prefix" for clause in clauses)
    words = sum(len(_WORDS.findall(clause.text)) for clause in clauses if clause.kind == "phrase")
    if (words + PREFIX_COST * prefixes) * fields > COSTLY_MAX:
        raise BadData(
            f"text.query has {prefixes} prefixes, and phrases of {words} words, for {fields} fields; the words of "
            f"phrases and {PREFIX_COST} for each prefix, times the fields, may be at most {COSTLY_MAX}"
        )
