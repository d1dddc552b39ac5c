"""The text attributes of one collection in one worker, indexed for BM25 by tantivy.

The index is in memory, and is built from the stores when shards load. The first search after some writes commits them,
so a search sees every write before it. Texts are split into words and lower-cased by tantivy's default tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import msgspec
import tantivy

ID_FIELD = "_id"
WRITER_BYTES = 32 << 20
PENDING_MAX = 10_000
"""Changes after which a write commits, so that the commit of the next search has a bound."""


class TextIndex:
    """Safe to use from many threads."""

    def __init__(self, fields: Sequence[str]) -> None:
        # Attributes may have any name, but tantivy's fields may not, so the index's fields are numbered.
        self._fields = {name: f"text{position}" for position, name in enumerate(fields)}
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(ID_FIELD, stored=True, tokenizer_name="raw", index_option="basic")
        for field in self._fields.values():
            builder.add_text_field(field, stored=False)
        self._index = tantivy.Index(builder.build())
        self._writer = self._index.writer(heap_size=WRITER_BYTES, num_threads=1)
        self._lock = Lock()
        self._changes = 0

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

    def search(self, field: str, query: str, limit: int) -> list[tuple[bytes, float]]:
        """(id, BM25 score) of the best `limit` vectors, best first. A vector matches if its field contains any word of
        the query."""
        with self._lock:
            if self._changes:
                self._commit()
            searcher = self._index.searcher()
        index_field = self._fields[field]
        words = [tantivy.Query.term_query(self._index.schema, index_field, word) for word in self._words(query)]
        if not words:
            return []
        wanted = tantivy.Query.boolean_query([(tantivy.Occur.Should, word) for word in words])
        hits = searcher.search(wanted, limit, count=False).hits
        return [(searcher.doc(address)[ID_FIELD][0].encode(), float(score)) for score, address in hits]

    def _words(self, query: str) -> list[str]:
        return list(dict.fromkeys(_ANALYZER.analyze(query)))


# tantivy's "default" tokenizer: words of letters and digits, in lower case, without those of 40 bytes or more.
_ANALYZER = (
    tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    .filter(tantivy.Filter.remove_long(40))
    .filter(tantivy.Filter.lowercase())
    .build()
)
