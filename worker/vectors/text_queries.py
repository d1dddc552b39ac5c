"""Analyzed text queries as tantivy's queries, with the word statistics of the whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tantivy import Occur, Query, Schema

from shared.messages.vector_text import WordStatistics, idf
from worker.vectors.text_analysis import Clause, Part

Word = tuple[str, str]
"""A field and a word."""

_OCCURS = {"": Occur.Should, "+": Occur.Must, "-": Occur.MustNot}


def scored_words(clauses: Sequence[Clause]) -> list[Word]:
    """The words that add to the score of a match, each once: the score depends on their frequencies."""
    words = ((part.field, word) for clause in clauses for part in clause.parts for _, word in part.words)
    return list(dict.fromkeys(words))


class Corrections:
    """How many times as much a word counts in all workers as in this one, so that scores can be compared: tantivy
    scores by the frequencies of its own index. The average length of the texts stays that of this worker."""

    def __init__(self, words: Sequence[Word], everywhere: WordStatistics, here: WordStatistics) -> None:
        pairs = zip(words, everywhere.frequencies, here.frequencies, strict=True)
        self._idfs = {
            word: (idf(everywhere.documents, total), idf(here.documents, local))
            for word, total, local in pairs
            if local
        }

    def of(self, words: Sequence[Word]) -> float:
        """For a word, or the words of a phrase, whose weights add up."""
        idfs = [self._idfs[word] for word in words if word in self._idfs]
        return sum(total for total, _ in idfs) / sum(local for _, local in idfs) if idfs else 1.0


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """Builds the queries of one search. `fields`: attribute → field of the schema."""

    schema: Schema
    fields: Mapping[str, str]
    correction: Callable[[Sequence[Word]], float]

    def query(self, clauses: Sequence[Clause]) -> Query | None:
        """None if the query has no words. A score is the sum of what the clauses add in each field; excluded words
        alone find every vector that has a text and none of them, with the score 0."""
        subqueries = [pair for clause in clauses for pair in self._clause(clause)]
        if not subqueries:
            return None
        if all(occur == Occur.MustNot for occur, _ in subqueries):
            subqueries.append((Occur.Must, Query.const_score_query(Query.all_query(), 0.0)))
        return Query.boolean_query(subqueries)

    def _clause(self, clause: Clause) -> Iterator[tuple[Occur, Query]]:
        parts = [part for part in clause.parts if not part.is_empty]
        occur = clause.occur
        if occur == "+" and len(parts) < len(clause.parts):
            # A clause that has only stop words for one field must not be required in the other fields.
            occur = ""
        if not occur and not any(part.prefix or part.slop >= 0 for part in parts):
            for part in parts:
                for _, word in part.words:
                    yield Occur.Should, self._word(part, word)
        elif parts:
            queries = [self._part(part) for part in parts]
            anywhere = (
                queries[0] if len(queries) == 1 else Query.boolean_query([(Occur.Should, one) for one in queries])
            )
            yield _OCCURS[occur], anywhere

    def _part(self, part: Part) -> Query:
        if part.slop >= 0 and len(part.words) > 1:
            phrase = Query.phrase_query(self.schema, self.fields[part.field], list(part.words), part.slop)
            return self._boosted(phrase, part, [word for _, word in part.words])
        queries = [self._word(part, word) for _, word in part.words]
        if part.prefix:
            beginning = Query.regex_query(self.schema, self.fields[part.field], part.beginning())
            queries.append(Query.boost_query(beginning, part.boost))
        return queries[0] if len(queries) == 1 else Query.boolean_query([(Occur.Must, one) for one in queries])

    def _word(self, part: Part, word: str) -> Query:
        return self._boosted(Query.term_query(self.schema, self.fields[part.field], word), part, [word])

    def _boosted(self, query: Query, part: Part, words: Sequence[str]) -> Query:
        boost = part.boost * self.correction([(part.field, word) for word in words])
        return query if boost == 1.0 else Query.boost_query(query, boost)
