"""The text attributes of one collection in one worker, indexed for BM25 by tantivy.

The index is in memory, and is built from the stores when shards load. The first search after some writes commits them,
so a search sees every write before it. `text_analysis` tells how texts are split into words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import msgspec
import tantivy

from shared.messages.vector_text import TextField, TextQuery, WordStatistics
from worker.vectors.text_analysis import FieldAnalyzer, analyzed
from worker.vectors.text_queries import Corrections, QueryBuilder, Word, scored_words

ID_FIELD = "_id"
WRITER_BYTES = 32 << 20
PENDING_MAX = 10_000
"""Changes after which a write commits, so that the commit of the next search has a bound."""


class TextIndex:
    """Safe to use from many threads."""

    def __init__(self, fields: Mapping[str, TextField]) -> None:
        # Attributes may have any name, but tantivy's fields may not, so the index's fields are numbered.
        self._fields = {name: f"text{position}" for position, name in enumerate(fields)}
        self.analyzers = {name: FieldAnalyzer(field) for name, field in fields.items()}
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(ID_FIELD, stored=True, tokenizer_name="raw", index_option="basic")
        for name, field in self._fields.items():
            builder.add_text_field(field, tokenizer_name="default" if self.analyzers[name].is_default else field)
        self._index = tantivy.Index(builder.build())
        for name, field in self._fields.items():
            self._index.register_tokenizer(field, self.analyzers[name].words_analyzer)
        self._writer = self._index.writer(heap_size=WRITER_BYTES, num_threads=1)
        self._lock = Lock()
        self._changes = self._commits = 0
        # (the state that a searcher saw, the documents counted in it). The state is (commits, segments): between two
        # commits, segments are merged in the background, which reduces their number and removes deleted documents.
        self._counted = ((-1, 0), 0)

    def put(self, vector_id: bytes, packed: bytes) -> None:
        """Index the text attributes of a vector, in place of its earlier ones. `packed`: a msgpack map of all its
        attributes, or empty bytes."""
        attributes = msgspec.msgpack.decode(packed) if packed else {}
        values = {field: attributes.get(name) for name, field in self._fields.items()}
        texts = {field: text for field, text in values.items() if isinstance(text, str)}
        with self._lock:
            self._writer.delete_documents_by_term(ID_FIELD, vector_id.decode())
            if texts:
                document = tantivy.Document(**{ID_FIELD: [vector_id.decode()]})
                for field, text in texts.items():
                    document.add_text(field, text)
                self._writer.add_document(document)
            self._changed()

    def remove(self, vector_id: bytes) -> None:
        with self._lock:
            self._writer.delete_documents_by_term(ID_FIELD, vector_id.decode())
            self._changed()

    def _changed(self) -> None:
        self._changes += 1
        if self._changes >= PENDING_MAX:
            self._commit()

    def _commit(self) -> None:
        self._writer.commit()
        self._index.reload()
        self._changes = 0
        self._commits += 1

    def _searcher(self) -> tuple[tantivy.Searcher, int]:
        """(a searcher that sees every change, the number of commits that it sees)."""
        with self._lock:
            if self._changes:
                self._commit()
            return self._index.searcher(), self._commits

    def search(self, query: TextQuery, limit: int) -> list[tuple[bytes, float]]:
        """(id, BM25 score) of the best `limit` vectors, best first."""
        clauses = analyzed(query, self.analyzers)
        searcher, commits = self._searcher()
        correction: Callable[[Sequence[Word]], float] = _uncorrected
        if query.statistics is not None and query.statistics.documents:
            words = scored_words(clauses)
            correction = Corrections(words, query.statistics, self._statistics(searcher, commits, words)).of
        tantivy_query = QueryBuilder(self._index.schema, self._fields, correction).query(clauses)
        if tantivy_query is None:
            return []
        hits = searcher.search(tantivy_query, limit, count=False).hits
        return [(searcher.doc(address)[ID_FIELD][0].encode(), float(score)) for score, address in hits]

    def statistics(self, query: TextQuery) -> WordStatistics:
        """The statistics of the query's words in this worker."""
        return self._statistics(*self._searcher(), scored_words(analyzed(query, self.analyzers)))

    def _statistics(self, searcher: tantivy.Searcher, commits: int, words: Sequence[Word]) -> WordStatistics:
        frequencies = tuple(searcher.doc_freq(self._fields[field], word) for field, word in words)
        seen = commits, searcher.num_segments
        counted_in, documents = self._counted
        if counted_in != seen:
            documents = self._count_documents(searcher)
            self._counted = seen, documents
        return WordStatistics(documents, frequencies)

    def _count_documents(self, searcher: tantivy.Searcher) -> int:
        """The number of documents that tantivy computes its scores with. Deleted documents count until their segment is
        merged, and only the explanation of a score says how many there are."""
        hits = searcher.search(tantivy.Query.all_query(), 1, count=False).hits
        if not hits:
            return 0
        address = hits[0][1]
        itself = tantivy.Query.term_query(self._index.schema, ID_FIELD, searcher.doc(address)[ID_FIELD][0], "basic")
        explanation = json.loads(itself.explain(searcher, address).to_json())
        details = [detail for part in explanation["details"] for detail in part.get("details", ())]
        return int(next(detail["value"] for detail in details if detail["description"].startswith("N, ")))


def _uncorrected(words: Sequence[Word]) -> float:
    return 1.0
