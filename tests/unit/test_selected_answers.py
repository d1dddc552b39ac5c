"""Answers of several workers about selected vectors, merged; groups of a search."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.fanout.calls import FanOut
from coordinator.vectors import groups, refinements, scroll
from coordinator.vectors.facets import most_frequent
from coordinator.vectors.groups import GroupedSearch
from coordinator.vectors.merging import Hits, MergedHits
from coordinator.vectors.refinements import GroupBy, Refinement
from coordinator.vectors.scroll import ScrollRequest
from shared import wire
from shared.messages.selected_vectors import FacetsReply, PageReply, Position
from shared.messages.vectors import Collection, Condition, SearchBody, Value, pack_blobs
from shared.wire import Reply

BY_N = ScrollRequest("", None, limit=4, order_field="n")


def reply(*entries: tuple[Value | None, str], end: tuple[Value | None, str] | None = None) -> Reply:
    last = None if end is None else Position(end[0], end[1].encode())
    body = PageReply(values=[value for value, _ in entries], end=last)
    return Reply(wire.pack(body), [*pack_blobs([name.encode() for _, name in entries]), b"", b"", b""])


def merged(request: ScrollRequest, *replies: Reply) -> tuple[list[str], Position | None]:
    page = scroll.merge(request, replies, 2)
    return [vector.id.decode() for vector in page.vectors], page.end


def test_pages_of_workers_are_merged_by_value_and_id() -> None:
    one = reply((True, "z"), (1, "b"), ("x", "a"), (None, "c"))
    two = reply((1.0, "a"), (2, "d"), (None, "b"))
    ten = ScrollRequest("", None, limit=10, order_field="n")
    assert merged(ten, one, two) == (["z", "a", "b", "d", "a", "b", "c"], None)
    assert merged(BY_N, one, two) == (["z", "a", "b", "d"], Position(2, b"d"))
    falling = ScrollRequest("", None, limit=10, order_field="n", descending=True)
    one, two = reply(("x", "a"), (1, "b"), (True, "z"), (None, "c")), reply((2, "d"), (1.0, "a"), (None, "b"))
    assert merged(falling, one, two) == (["a", "d", "a", "b", "z", "b", "c"], None)


def test_a_merged_page_ends_where_the_first_worker_ended_its_own() -> None:
    """What another worker has behind that place comes with the next page."""
    one, two = reply((1, "a"), (3, "b"), end=(3, "b")), reply((2, "c"), (4, "d"))
    assert merged(BY_N, one, two) == (["a", "c", "b"], Position(3, b"b"))
    assert merged(BY_N, reply(end=(0, "x")), two) == ([], Position(0, b"x"))
    assert merged(BY_N, reply((1, "a"), end=(1, "a")), reply((1, "b"), end=(1, "b"))) == (["a"], Position(1, b"a"))
    by_id = ScrollRequest("", None, limit=2)
    assert merged(by_id, reply((None, "a")), reply((None, "b"), end=(None, "b"))) == (["a", "b"], Position(None, b"b"))
    assert merged(by_id, reply((None, "a")), reply((None, "b"))) == (["a", "b"], None)


def test_tokens_come_back_as_they_were() -> None:
    for value in (None, True, 1, 1.0, 2**63 - 1, "text", ""):
        order = '"orderBy":{"field":"n"},' if value is not None else ""
        request = scroll.from_json(f'{{{order}"limit":1}}'.encode())
        token = scroll.token_of(request, Position(value, b"\xc3\xa9"))
        again = scroll.from_json(f'{{{order}"pageToken":"{token}"}}'.encode()).after
        assert again is not None
        assert (again.value, type(again.value), again.id) == (value, type(value), b"\xc3\xa9")


def test_counts_of_values_are_added_over_the_workers() -> None:
    one = FacetsReply(values=["a", 1, True, 2.0, "c"], counts=[3, 2, 2, 1, 1])
    two = FacetsReply(values=["b", 1.0, 2, "c"], counts=[3, 2, 1, 1])
    every = [(1, 4), ("a", 3), ("b", 3), (True, 2), (2.0, 2), ("c", 2)]
    for limit in range(1, 8):
        found = most_frequent([one, two], limit)
        assert found == every[:limit]
        assert [type(value) for value, _ in found] == [type(value) for value, _ in every[:limit]]


# Groups


def hits(*rows: tuple[str, dict[str, Any]]) -> Hits:
    near = -np.arange(len(rows), dtype=np.float32)
    return Hits(near, [name.encode() for name, _ in rows], [msgspec.msgpack.encode(row) for _, row in rows], None)


class Searches:
    """Vectors, the nearest first, searched with the conditions that a grouped search makes."""

    def __init__(self, *tags: Any) -> None:
        self.rows = [(f"v{n}", {} if tag is None else {"tag": tag}) for n, tag in enumerate(tags)]
        self.asked = 0

    async def ask(self, body: SearchBody) -> tuple[MergedHits, FanOut]:
        self.asked += 1
        assert body.filter is not None
        found = [row for row in self.rows if self._holds(body.filter, row[1].get("tag"))]
        return MergedHits([hits(*found[: body.k])]), FanOut([], {})

    def _holds(self, condition: Condition, tag: Any) -> bool:
        own = {(type(tag) is bool, tag)} if not isinstance(tag, list) else {(type(e) is bool, e) for e in tag}
        if condition.op == "and":
            return all(self._holds(child, tag) for child in condition.children)
        if condition.op == "not":
            return not self._holds(condition.children[0], tag)
        if condition.op == "exists":
            return tag is not None
        wanted = {(type(value) is bool, value) for value in condition.values}
        assert condition.op in ("has", "within")
        return own <= wanted if condition.op == "within" else bool(own & wanted)

    async def groups(self, count: int, per_group: int) -> list[tuple[Any, list[str]]]:
        body = SearchBody(Collection(1, "c", 2, "dot"), 10)
        self.search = GroupedSearch(self.ask, body, GroupBy("tag", count, per_group))
        return [(group.value, [name.decode() for name in group.hits.ids]) for group in await self.search.run()]


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "CANDIDATES_MIN", 1)


@pytest.mark.usefixtures("few_candidates")
async def test_groups_are_found_and_filled_however_the_values_are_spread() -> None:
    skewed = Searches(*["a"] * 50, None, "b", "c", "a", "b", True, 1, 1.0)
    assert await skewed.groups(5, 2) == [
        ("a", ["v0", "v1"]), ("b", ["v51", "v54"]), ("c", ["v52"]), (True, ["v55"]), (1, ["v56", "v57"]),
    ]  # fmt: skip
    assert await Searches(*["a"] * 50, "b").groups(1, 3) == [("a", ["v0", "v1", "v2"])]
    assert await Searches(None, None).groups(3, 3) == []


@pytest.mark.usefixtures("few_candidates")
async def test_a_vector_with_an_array_is_in_the_group_of_each_element() -> None:
    spread = Searches(["a", "b"], "b", ["c", "a", "a"], "a")
    assert await spread.groups(3, 3) == [("a", ["v0", "v2", "v3"]), ("b", ["v0", "v1"]), ("c", ["v2"])]


@pytest.mark.usefixtures("few_candidates")
async def test_values_that_only_stand_beside_known_ones_are_found_in_the_order_of_their_best_results() -> None:
    hidden = Searches(*[["a"]] * 20, *["a"] * 20, ["a", "b"], ["c"], ["b"])
    assert await hidden.groups(9, 2) == [("a", ["v0", "v1"]), ("b", ["v40", "v42"]), ("c", ["v41"])]
    assert hidden.search.infos == []


@pytest.mark.usefixtures("few_candidates")
async def test_two_texts_of_one_instant_are_two_groups_and_bools_no_numbers() -> None:
    zulu, other = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"
    spread = Searches(*[zulu] * 9, other, [1, True], other)
    assert await spread.groups(9, 2) == [
        (zulu, ["v0", "v1"]), (other, ["v9", "v11"]), (1, ["v10"]), (True, ["v10"]),
    ]  # fmt: skip


@pytest.mark.usefixtures("few_candidates")
async def test_searches_for_more_groups_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ROUNDS_MAX", 3)
    spread = Searches(*(letter for letter in "abcdefgh" for _ in range(100)))
    found = await spread.groups(8, 2)
    assert [value for value, _ in found] == ["a", "b", "c"]
    assert spread.search.infos == ["groupBy: 3 groups were found in 3 searches; there may be more of them"]


@pytest.mark.parametrize(
    ("offset", "threshold", "metric", "kept"),
    [
        (0, None, "", ["v0", "v1"]),
        (1, None, "", ["v1", "v2"]),
        (3, None, "", ["v3"]),
        (9, None, "", []),
        (0, -1.0, "", ["v0", "v1"]),
        (0, -0.5, "", ["v0"]),
        (1, -0.5, "", []),
        (1, 2.0, "l2", ["v1", "v2"]),
        (2, 2.0, "l2", ["v2"]),
        (0, 1e300, "l2", ["v0", "v1"]),
        (0, 1e300, "", []),
    ],
)
def test_results_are_cut_at_the_offset_and_the_threshold(
    offset: int, threshold: float | None, metric: str, kept: list[str]
) -> None:
    rows = hits(*((f"v{n}", {}) for n in range(4)))
    cut = Refinement(offset, threshold).cut(rows, 2, metric)
    assert [name.decode() for name in cut.ids] == kept
    assert len(cut.near) == len(cut.attributes) == len(kept)


def test_a_score_that_is_shown_as_the_threshold_stays() -> None:
    rows = hits(("a", {}))
    rows.near = np.array([0.9], dtype=np.float32)
    assert refinements.Refinement(threshold=0.9).cut(rows, 1, "cosine").ids == [b"a"]
