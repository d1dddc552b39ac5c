"""The vector store of LlamaIndex with a real cluster. The test imports LlamaIndex, which takes 1.2 s, as every process
that runs tests imports this file."""

from __future__ import annotations

import asyncio
import uuid

import pytest
import triptych


def test_an_index_of_llama_index_is_searched_by_its_retriever(cluster):
    from llama_index.core import Document, StorageContext, VectorStoreIndex
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
    from triptych.llama_index import TriptychVectorStore

    store = TriptychVectorStore(cluster.url, collection=f"llama_{uuid.uuid4().hex}")
    texts = {"D1": "a quick fox", "D2": "bread"}
    index = VectorStoreIndex.from_documents(
        [Document(text=text, doc_id=name) for name, text in texts.items()],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=MockEmbedding(embed_dim=4),
    )

    def found(retriever):
        return {hit.node.text for hit in retriever.retrieve("fox")}

    assert found(index.as_retriever(similarity_top_k=5)) == set(texts.values())
    assert found(index.as_retriever(similarity_top_k=5, doc_ids=["D2"])) == {"bread"}
    [bread] = [node.node_id for node in store.get_nodes() if node.text == "bread"]
    assert found(VectorIndexRetriever(index, similarity_top_k=5, node_ids=[bread])) == {"bread"}


def test_similarities_of_llama_index_are_greater_for_nearer_nodes_under_l2(cluster):
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores.types import VectorStoreQuery
    from triptych.llama_index import TriptychVectorStore

    store = TriptychVectorStore(cluster.url, collection=f"llama_{uuid.uuid4().hex}", metric="l2")
    store.add([TextNode(id_=name, embedding=[at, 0.0]) for name, at in (("far", 50.0), ("near", 2.0), ("at", 1.0))])
    result = store.query(VectorStoreQuery([1.0, 0.0], 3))
    assert result.ids == ["at", "near", "far"]
    assert result.similarities == [1, 1 / 2, 1 / 50]


def test_empty_lists_of_llama_index_select_what_they_say(cluster):
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery
    from triptych.llama_index import TriptychVectorStore

    store = TriptychVectorStore(cluster.url, collection=f"llama_{uuid.uuid4().hex}")
    values = {
        "none": None, "empty": [], "text": "", "texts": ["a"], "number": -1e308, "integer": -(1 << 63),
        "numbers": [0], "no": False, "yes": [True], "time": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    rows = {"missing": {}, **{name: {"tags": value} for name, value in values.items()}}
    store.add([TextNode(id_=name, metadata=each, embedding=[1.0, 0.0]) for name, each in rows.items()])

    def filters(operator, value=None):
        return MetadataFilters(filters=[MetadataFilter(key="tags", operator=operator, value=value)])

    def selected(chosen):
        return {node.node_id for node in store.get_nodes(filters=chosen)}

    nested = MetadataFilters(filters=[MetadataFilters(filters=[]), filters("contains", "a")])
    nothing_else = MetadataFilters(filters=[MetadataFilters(filters=[])])
    not_in_none = MetadataFilters(filters=[filters("in", [])], condition="not")
    assert selected(filters("is_empty")) == {"missing", "none", "empty"}
    assert selected(filters("in", [])) == selected(filters("any", [])) == set()
    assert selected(filters("nin", [])) == selected(not_in_none) == selected(nothing_else) == rows.keys()
    assert selected(nested) == {"texts"}
    query = VectorStoreQuery([1.0, 0.0], 20, filters=filters("nin", []), node_ids=[], doc_ids=[])
    assert set(store.query(query).ids) == rows.keys()
    # No delete becomes one of everything.
    texts = filters("contains", "a")
    assert store.get_nodes([], texts) == store.get_nodes([]) == []
    store.delete_nodes([])
    store.delete_nodes([], texts)
    store.delete_nodes(filters=filters("in", []))
    store.delete_nodes(filters=nothing_else)
    for every in (filters("nin", []), not_in_none):
        with pytest.raises(ValueError, match="are satisfied by every node"):
            store.delete_nodes(filters=every)
    assert selected(None) == rows.keys()
    store.delete_nodes(["texts", "empty"], texts)
    store.delete_nodes(["no"], filters("nin", []))
    assert selected(None) == rows.keys() - {"texts", "no"}


def test_nodes_of_llama_index(cluster):
    from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
    from llama_index.core.vector_stores.types import (
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
    )
    from triptych.llama_index import TriptychVectorStore

    client, name = triptych.Client(cluster.url), f"llama_{uuid.uuid4().hex}"
    store = TriptychVectorStore(client, collection=name)
    assert store.query(VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=1)).nodes == []
    nodes = [
        TextNode(
            id_="n" * 60 + str(1000 + i),
            text=text,
            metadata={"year": 2000 + i, "tags": ["x", str(i)], "none": None},
            embedding=[1.0, float(i)],
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc{i % 2}")},
        )
        for i, text in enumerate(["a quick fox", "bread", "wild animals"])
    ]
    ids = store.add(nodes)
    assert ids == [node.node_id for node in nodes]
    result = store.query(VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=2))
    assert result.ids == ids[:2]
    assert result.nodes[0].text == "a quick fox"
    assert result.nodes[0].metadata == nodes[0].metadata
    assert result.similarities[0] == pytest.approx(1)
    late = MetadataFilters(filters=[MetadataFilter(key="year", value=2001, operator=">=")])
    assert set(store.query(VectorStoreQuery([1.0, 0.0], 5, filters=late)).ids) == set(ids[1:])
    tagged = MetadataFilters(
        filters=[MetadataFilter(key="tags", value="1", operator="contains"), late], condition="and"
    )
    assert [node.node_id for node in store.get_nodes(filters=tagged)] == [ids[1]]
    for mode in (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.HYBRID):
        assert store.query(VectorStoreQuery([0.0, 1.0], 1, query_str="fox", mode=mode, alpha=0.1)).ids == ids[:1]
    with pytest.raises(ValueError, match="it must be default, text_search or hybrid"):
        store.query(VectorStoreQuery([0.0, 1.0], 1, mode=VectorStoreQueryMode.SVM))
    store.delete("doc1")
    assert [node.node_id for node in store.get_nodes(ids)] == [ids[0], ids[2]]
    store.delete_nodes([ids[2]])
    assert [node.node_id for node in store.get_nodes()] == [ids[0]]
    store.clear()
    assert store.get_nodes() == []

    async def awaited():
        assert await store.async_add(nodes[:2]) == ids[:2]
        found = await store.aquery(VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=1))
        await store.adelete("doc1")
        left = [node.node_id for node in await store.aget_nodes()]
        await store.aclear()
        return found.ids, left

    assert asyncio.run(awaited()) == (ids[:1], ids[:1])
