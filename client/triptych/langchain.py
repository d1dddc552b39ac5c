"""A vector store of LangChain (`pip install 'triptych-client[langchain]'`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from triptych.client import Client
from triptych.documents import attributes_of, filter_of, id_of, metadata_of, stored_id
from triptych.errors import NotFound
from triptych.hits import Hit, Vector

COLLECTION = "langchain"
TEXT = "text"


class TriptychVectorStore(VectorStore):
    """Documents in a collection, which the first document makes.

    `client`: a Client, or the URL of one; `metric`: cosine, dot or l2; `text_attribute`: where the text is stored, and,
    with `search_text`, indexed for searches by text. Filters: the service's own, `{"colour": "red"}` or
    `{"year": {"$gte": 2020}}`. Methods of LangChain that are awaited run in threads.
    """

    def __init__(
        self,
        embedding: Embeddings,
        *,
        client: Client | str = "",
        collection: str = COLLECTION,
        metric: str = "cosine",
        text_attribute: str = TEXT,
        search_text: bool = False,
    ) -> None:
        self.client = Client(client) if isinstance(client, str) else client
        self.collection = collection
        self._embedding = embedding
        self._metric = metric
        self._text = text_attribute
        self._text_fields = [text_attribute] if search_text else []
        self._exists = False

    @property
    def embeddings(self) -> Embeddings:
        return self._embedding

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Store texts with their embeddings; one whose id is there is replaced. Returns their ids."""
        contents = list(texts)
        for what, several in (("metadatas", metadatas), ("ids", ids)):
            if several is not None and len(several) != len(contents):
                raise ValueError(f"there are {len(several)} {what} for {len(contents)} texts")
        if not contents:
            return []
        names = [name or str(uuid.uuid4()) for name in (ids or [None] * len(contents))]
        vectors = np.array(self._embedding.embed_documents(contents), np.float32)
        attributes = [
            attributes_of(name, metadata or {}, {self._text: content})
            for name, metadata, content in zip(names, metadatas or [{}] * len(names), contents)
        ]
        self._create(vectors.shape[1])
        stored = [stored_id(name) for name in names]
        self.client.vectors.upsert(stored, vectors, attributes, collection=self.collection)
        return names

    def _create(self, dimension: int) -> None:
        if not self._exists:
            self.client.vectors.create_collection(
                self.collection, dimension, metric=self._metric, text_fields=self._text_fields
            )
            self._exists = True

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents by their ids; None: all of them. Raises TypeError for other arguments, as they would not
        restrict what is deleted."""
        if kwargs:
            others = f"{', '.join(sorted(kwargs))} and {'no ids' if ids is None else 'ids'}"
            raise TypeError(f"delete has {others}; only ids say what is deleted")
        try:
            if ids is None:
                every = {"exists": {"field": self._text}}
                self.client.vectors.delete(filter=every, collection=self.collection)
            else:
                self.client.vectors.delete([stored_id(name) for name in ids], collection=self.collection)
        except NotFound:
            pass  # nothing has been stored
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        try:
            vectors = self.client.vectors.get(list(dict.fromkeys(map(stored_id, ids))), collection=self.collection)
        except NotFound:
            return []
        return [self._document(vector) for vector in vectors]

    def similarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Documents with their scores, the best first. Other parameters are those of `Vectors.search`, such as `text`
        for a hybrid search."""
        hits = self._search(self._embedding.embed_query(query), k, filter, **kwargs)
        return [(self._document(hit), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        return [self._document(hit) for hit in self._search(embedding, k, filter, **kwargs)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        embedding = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(embedding, k, fetch_k, lambda_mult, filter, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Of the `fetch_k` nearest documents, `k` that are near and differ from each other."""
        hits = self._search(embedding, fetch_k, filter, **kwargs)
        vectors = [hit.vector for hit in hits]
        if not hits:
            return []
        chosen = maximal_marginal_relevance(np.array(embedding, np.float32), vectors, lambda_mult, k)
        return [self._document(hits[place]) for place in chosen]

    def _search(self, vector: Sequence[float], k: int, filter: Mapping[str, Any] | None, **kwargs: Any) -> list[Hit]:
        try:
            return self.client.vectors.search(
                vector, k=k, filter=filter_of(filter), collection=self.collection, **kwargs
            ).hits
        except NotFound:
            return []  # nothing has been stored

    def _document(self, vector: Vector) -> Document:
        content = vector.attributes.get(self._text, "")
        return Document(page_content=content, metadata=metadata_of(vector, [self._text]), id=id_of(vector))

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        if self._metric == "l2":
            return lambda distance: 1 / (1 + distance)
        if self._metric == "cosine":
            return lambda cosine: (1 + cosine) / 2
        return lambda product: product

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> TriptychVectorStore:
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store
