"""The kind of index that a collection asks for: what is kept of it, and which index the workers then use."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from coordinator.vectors.catalogue import Catalogue, describe
from shared.control import LocalControl
from shared.errors import BadData
from shared.messages.vectors import STORAGES, Collection
from worker.vectors.candidate_index import new_index
from worker.vectors.graph import Graph
from worker.vectors.inverted_lists import InvertedLists


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    kept = Catalogue(LocalControl(tmp_path))
    kept.load()
    return kept


@pytest.mark.parametrize(
    ("storage", "index", "kind"),
    [(storage, None, InvertedLists) for storage in STORAGES if storage != "b1"]
    + [("f32", "lists", InvertedLists), ("f32", "graph", Graph), ("i8", "graph", Graph)]
    + [("b1", None, Graph), ("b1", "graph", Graph)],
)
def test_a_collection_has_the_index_that_it_asks_for(
    catalogue: Catalogue, tmp_path: Path, storage: str, index: str | None, kind: type
) -> None:
    made = catalogue.create(Collection(0, "a", 8, "cosine", storage, (), msgspec.UNSET if index is None else index))
    assert isinstance(new_index(made), kind)
    assert made.kind_of_index == ("graph" if kind is Graph else "lists")
    assert f"index {made.kind_of_index}" in describe(made)
    again = Catalogue(LocalControl(tmp_path))
    again.load()
    assert again.find("a") == made
    assert again.create(Collection(0, "a", 8, "cosine", storage, (), made.kind_of_index)) == made


def test_the_usual_index_is_left_out_of_the_list_of_collections(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.create(Collection(0, "a", 8, "cosine", "f32", (), "lists"))
    catalogue.create(Collection(0, "b", 8, "cosine", "b1", (), "graph"))
    assert b'"index"' not in (tmp_path / "collections.json").read_bytes()
    catalogue.create(Collection(0, "c", 8, "cosine", "f32", (), "graph"))
    assert (tmp_path / "collections.json").read_bytes().count(b'"index":"graph"') == 1


def test_another_index_than_the_collection_has_is_refused(catalogue: Catalogue) -> None:
    catalogue.create(Collection(0, "a", 8, "cosine", "f32"))
    with pytest.raises(BadData, match=r"exists with .* index lists; it cannot become .* index graph"):
        catalogue.create(Collection(0, "a", 8, "cosine", "f32", (), "graph"))


@pytest.mark.parametrize(
    ("storage", "index", "why"),
    [
        ("f32", "ivf", "index is 'ivf'; it must be one of lists, graph"),
        ("f32", "", "index is ''; it must be one of lists, graph"),
        ("b1", "lists", "index is 'lists' and storage is 'b1'; of signs, the index must be graph"),
    ],
)
def test_a_wrong_index_is_refused(catalogue: Catalogue, storage: str, index: str, why: str) -> None:
    with pytest.raises(BadData, match=why):
        catalogue.create(Collection(0, "a", 8, "cosine", storage, (), msgspec.UNSET if index is None else index))
    assert catalogue.find("a") is None


def test_a_description_of_an_earlier_release_has_the_usual_index() -> None:
    assert Collection(1, "a", 8, "cosine", "f32").kind_of_index == "lists"
    assert Collection(1, "a", 8, "cosine", "b1").kind_of_index == "graph"
