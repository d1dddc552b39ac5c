"""The vector store of LlamaIndex with a real cluster. The test imports LlamaIndex, which takes 1.2 s, as every process
that runs tests imports this file."""

from __future__ import annotations

import asyncio
import uuid

import pytest
import triptych


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
