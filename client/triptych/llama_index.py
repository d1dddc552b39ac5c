"""A vector store of LlamaIndex (`pip install 'triptych-client[llama-index]'`)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from triptych.client import Client
from triptych.documents import EVERYTHING, NOTHING, attributes_of, id_of, joined, negated, stored_id, within
from triptych.errors import NotFound
from triptych.hits import Vector

COLLECTION = "llama_index"
TEXT = "text"
NODE_ID = "node_id"
INCLUDED = [TEXT, "_id", "_node_content", "_node_type"]
_COMPARISONS = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "neq",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.CONTAINS: "contains",
}
_MEMBERSHIPS = {FilterOperator.ANY: "containsAny", FilterOperator.ALL: "containsAll"}


class TriptychVectorStore(BasePydanticVectorStore):
    """Nodes in a collection, which the first node makes. Its texts are indexed, for the modes `text_search` and
    `hybrid`. `client`: a Client, or the URL of one; `metric`: cosine, dot or l2. Methods that are awaited run in
    threads."""

    stores_text: bool = True
    flat_metadata: bool = False
    collection: str = COLLECTION
    metric: str = "cosine"
    _client: Client = PrivateAttr()
    _exists: bool = PrivateAttr(default=False)

    def __init__(self, client: Client | str = "", *, collection: str = COLLECTION, metric: str = "cosine") -> None:
        super().__init__(collection=collection, metric=metric)
        self._client = Client(client) if isinstance(client, str) else client

    @classmethod
    def class_name(cls) -> str:
        return "TriptychVectorStore"

    @property
    def client(self) -> Client:
        return self._client

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        if not nodes:
            return []
        vectors = np.array([node.get_embedding() for node in nodes], np.float32)
        if not self._exists:
            self._client.vectors.create_collection(
                self.collection, vectors.shape[1], metric=self.metric, text_fields=[TEXT]
            )
            self._exists = True
        attributes = [self._attributes(node) for node in nodes]
        names = [stored_id(node.node_id) for node in nodes]
        self._client.vectors.upsert(names, vectors, attributes, collection=self.collection)
        return [node.node_id for node in nodes]

    def _attributes(self, node: BaseNode) -> dict[str, Any]:
        metadata = node_to_metadata_dict(node, remove_text=True, flat_metadata=self.flat_metadata)
        beside = {name: metadata.pop(name) for name in ("_node_content", "_node_type")}
        beside[TEXT] = node.get_content(metadata_mode=MetadataMode.NONE)
        return attributes_of(node.node_id, metadata, {**beside, NODE_ID: node.node_id})

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        self._delete({"eq": {"field": "ref_doc_id", "value": ref_doc_id}})

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete nodes by their ids, or those that satisfy the filters, or those of these ids that satisfy them. Raises
        ValueError for filters that every node satisfies."""
        if node_ids is not None and filters is None:
            self._delete(None, [stored_id(name) for name in node_ids])
            return
        condition = joined("and", [_one_of(NODE_ID, node_ids), _filter(filters)])
        if condition == EVERYTHING:
            raise ValueError("the filters of a delete are satisfied by every node; clear() deletes all nodes")
        if condition is not None:
            self._delete(condition)

    def clear(self) -> None:
        with suppress(NotFound):  # where nothing has been stored
            self._client.vectors.delete_collection(self.collection)
        self._exists = False

    def _delete(self, condition: Mapping[str, Any] | None, ids: Sequence[str] = ()) -> None:
        with suppress(NotFound):  # where nothing has been stored
            self._client.vectors.delete(ids, filter=condition, collection=self.collection)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        vectors, condition = self._client.vectors, joined("and", [_one_of(NODE_ID, node_ids), _filter(filters)])
        nodes: Iterable[Vector]
        try:
            if node_ids is not None and filters is None:
                nodes = vectors.get(
                    [stored_id(name) for name in node_ids], include=INCLUDED, collection=self.collection
                )
            else:
                nodes = vectors.scroll(filter=condition, include=INCLUDED, collection=self.collection)
            return [_node(vector) for vector in nodes]
        except NotFound:
            return []

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The similarities under l2 are 1 / (1 + distance), so that the most similar node has the greatest one. Raises
        ValueError for modes other than default, text_search and hybrid."""
        # Retrievers of LlamaIndex give an empty list for nodes that are not restricted.
        documents, nodes = _one_of("ref_doc_id", query.doc_ids or None), _one_of(NODE_ID, query.node_ids or None)
        condition = joined("and", [documents, nodes, _filter(query.filters)])
        try:
            hits = self._client.vectors.search(
                **_question(query), filter=condition, include=INCLUDED, collection=self.collection, **kwargs
            ).hits
        except NotFound:
            hits = []
        scores = [hit.score for hit in hits]
        if self.metric == "l2" and query.mode == VectorStoreQueryMode.DEFAULT:
            scores = [1 / (1 + distance) for distance in scores]
        return VectorStoreQueryResult([_node(hit) for hit in hits], scores, list(map(id_of, hits)))

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        return await asyncio.to_thread(self.add, nodes, **kwargs)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        await asyncio.to_thread(self.delete, ref_doc_id, **delete_kwargs)

    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        await asyncio.to_thread(self.delete_nodes, node_ids, filters, **delete_kwargs)

    async def aclear(self) -> None:
        await asyncio.to_thread(self.clear)

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        return await asyncio.to_thread(self.query, query, **kwargs)


def _question(query: VectorStoreQuery) -> dict[str, Any]:
    """The members of the search request."""
    text = {"query": query.query_str or "", "field": TEXT}
    if query.mode == VectorStoreQueryMode.DEFAULT:
        return {"vector": query.query_embedding, "k": query.similarity_top_k}
    if query.mode == VectorStoreQueryMode.TEXT_SEARCH:
        return {"text": text, "k": query.similarity_top_k}
    if query.mode == VectorStoreQueryMode.HYBRID:
        alpha = 0.5 if query.alpha is None else query.alpha
        fusion = {"method": "linear", "weights": {"vector": alpha, "text": 1 - alpha}}
        k = query.hybrid_top_k or query.similarity_top_k
        return {"vector": query.query_embedding, "text": text, "fusion": fusion, "k": k}
    raise ValueError(f"the mode is {query.mode.value!r}; it must be default, text_search or hybrid")


def _node(vector: Vector) -> BaseNode:
    attributes = dict(vector.attributes)
    return metadata_dict_to_node(attributes, text=attributes.get(TEXT, ""))


def _one_of(field: str, values: Sequence[str] | None) -> Mapping[str, Any] | None:
    return None if values is None else within(field, list(values))


def _filter(filters: MetadataFilters | None) -> Mapping[str, Any] | None:
    """None if there are no filters, or only empty ones."""
    if filters is None:
        return None
    conditions = [_filter(each) if isinstance(each, MetadataFilters) else _condition(each) for each in filters.filters]
    if filters.condition == FilterCondition.NOT:
        return negated(joined("or", conditions))
    return joined("or" if filters.condition == FilterCondition.OR else "and", conditions)


def _condition(each: MetadataFilter) -> Mapping[str, Any] | None:
    if each.operator in _COMPARISONS:
        return {_COMPARISONS[each.operator]: {"field": each.key, "value": each.value}}
    if each.operator == FilterOperator.IN:
        return within(each.key, each.value)
    if each.operator == FilterOperator.NIN:
        return negated(within(each.key, each.value))
    if each.operator == FilterOperator.ANY and each.value == []:
        return NOTHING
    if each.operator in _MEMBERSHIPS:
        return {_MEMBERSHIPS[each.operator]: {"field": each.key, "values": each.value}}
    if each.operator == FilterOperator.IS_EMPTY:
        # An empty array exists, but has no element that any of these could hold for.
        texts, numbers = {"field": each.key, "value": ""}, {"field": each.key, "value": -sys.float_info.max}
        return negated(joined("or", [{"gte": texts}, {"gte": numbers}, within(each.key, [True, False])]))
    raise ValueError(f"the filter of {each.key!r} is {each.operator.value!r}, which this store does not have")
