"""Pages of scrolls, counts and facets in one worker, against dicts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from shared import wire
from shared.errors import BadData, DeadlineExceeded
from shared.messages import selected_vectors as messages
from shared.messages.selected_vectors import Position, kind_of
from shared.messages.vectors import Collection, Condition
from tests.unit.selected_vectors import RED, expected, fill, page, scroll, selected, some_rows
from tests.unit.vector_shard import COSINE, OneShard
from worker.methods.table import METHODS
from worker.vectors import facets, paging, selection


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    opened = OneShard(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=[0, 10**12], ids=["walking", "sorting"])
def always(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page is made by a walk through the stores, or by sorting."""
    monkeypatch.setattr(selection, "WALK_COST", request.param)


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.usefixtures("always")
def test_a_scroll_by_id_gives_each_selected_vector_once(shard: OneShard, limit: int) -> None:
    rows = some_rows(150)
    fill(shard, rows)
    shard.delete(["v7", "v70"])
    del rows["v7"], rows["v70"]
    assert [p.id.decode() for p in scroll(shard, limit)] == sorted(rows)
    red = sorted(name for name, row in rows.items() if row["colour"] == "red")
    assert [p.id.decode() for p in scroll(shard, limit, filter=RED)] == red
    assert scroll(shard, limit, filter=Condition("eq", "colour", ("green",))) == []


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 64, 1000])
@pytest.mark.usefixtures("always")
def test_a_scroll_by_a_field_is_in_the_order_of_its_values(shard: OneShard, limit: int, descending: bool) -> None:
    rows = some_rows(200)
    fill(shard, rows)
    found = scroll(shard, limit, order_field="x", descending=descending)
    assert [p.id.decode() for p in found] == expected(rows, descending=descending)
    assert all(p.value == rows[p.id.decode()]["x"] for p in found)
    red = {name: row for name, row in rows.items() if row["colour"] == "red"}
    found = scroll(shard, limit, order_field="x", descending=descending, filter=RED)
    assert [p.id.decode() for p in found] == expected(red, descending=descending)


@pytest.mark.usefixtures("always")
def test_a_scroll_by_a_field_that_no_vector_has_is_by_id(shard: OneShard) -> None:
    fill(shard, some_rows(20))
    assert [p.id.decode() for p in scroll(shard, 3, order_field="y")] == sorted(f"v{n}" for n in range(20))


@pytest.mark.usefixtures("always")
def test_a_vector_that_exists_throughout_is_given_once_while_others_come_and_go(shard: OneShard) -> None:
    lasting = {f"k{n:03}": {"x": n} for n in range(300)}
    fill(shard, lasting)
    stopping = threading.Event()

    def write() -> None:
        choice = random.Random(1)
        while not stopping.is_set():
            name = f"k{choice.randrange(300):03}"
            shard.write([name, f"{name}a"], np.ones((2, 8)), [lasting[name], {"x": choice.randrange(300)}])
            shard.delete([f"k{choice.randrange(300):03}a"])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for asked in ({}, {"order_field": "x"}, {"order_field": "x", "descending": True}):
            found: list[Position] = []
            after = None
            while True:
                positions, reply = page(shard, 11, after, **asked)
                found += positions
                after = wire.unpack(reply.body, messages.PageReply).end
                if after is None:
                    break
            names = [p.id.decode() for p in found if len(p.id) == 4]
            assert sorted(names) == sorted(lasting)
    finally:
        stopping.set()
        writer.join()


@pytest.mark.parametrize("descending", [False, True])
def test_a_page_has_room_for_later_values_when_its_last_one_is_gone(
    shard: OneShard, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is not full would end the scroll."""
    fill(shard, {f"v{n}": {"x": n} for n in range(10)})
    equal = paging._equal

    def after_a_change(chosen: Any, field: str, value: Any, *more: Any) -> list[Position]:
        shard.write([f"v{value}"], np.ones((1, 8)), [{}])
        return equal(chosen, field, value, *more)

    monkeypatch.setattr(paging, "_equal", after_a_change)
    positions, reply = page(shard, 3, order_field="x", descending=descending)
    values = [position.value for position in positions]
    assert len(values) == 3
    assert values == sorted(values, reverse=descending)
    assert wire.unpack(reply.body, messages.PageReply).end == positions[-1]


@pytest.mark.parametrize("descending", [False, True])
def test_texts_that_are_written_while_a_page_is_made_move_no_other_vector(
    shard: OneShard, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting = {f"v{n}": {"x": f"m{n}"} for n in range(9)}
    fill(shard, lasting)
    written = iter(range(1000))
    keys = paging._keys

    def before_a_change(*given: Any) -> Any:
        found = keys(*given)
        number = next(written)
        shard.write(["a", "z"], np.ones((2, 8)), [{"x": f"a{number}"}, {"x": f"z{number}"}])
        return found

    monkeypatch.setattr(paging, "_keys", before_a_change)
    names = [p.id.decode() for p in scroll(shard, 2, order_field="x", descending=descending)]
    assert sorted(name for name in names if name in lasting) == sorted(lasting)


def test_a_page_ends_early_at_its_bytes(shard: OneShard) -> None:
    fill(shard, some_rows(30))
    positions, reply = page(shard, 20, fields=None, bytes_max=100)
    assert 1 <= len(positions) < 20
    assert wire.unpack(reply.body, messages.PageReply).end == positions[-1]
    assert len(reply.frames[4]) == len(positions) * 32
    found: list[str] = []
    after: Position | None = None
    while True:
        positions, reply = page(shard, 20, after, fields=("x",), bytes_max=1)
        assert len(positions) == 1
        found += [p.id.decode() for p in positions]
        after = wire.unpack(reply.body, messages.PageReply).end
        if after is None:
            break
    assert found == sorted(f"v{n}" for n in range(30))


def test_a_page_goes_on_behind_vectors_that_are_deleted_while_it_is_made(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shard, some_rows(10))
    contents = paging.contents

    def after_a_delete(*arguments: Any) -> Any:
        shard.delete(["v0", "v1", "v2"])
        return contents(*arguments)

    monkeypatch.setattr(paging, "contents", after_a_delete)
    positions, reply = page(shard, 3, fields=None)
    assert positions == []
    assert wire.unpack(reply.body, messages.PageReply).end == Position(None, b"v2")


def test_a_page_has_the_vectors_behind_one_that_is_deleted_while_it_is_made(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shard, some_rows(10))
    contents = paging.contents

    def after_a_delete(*arguments: Any) -> Any:
        shard.delete(["v1"])
        return contents(*arguments)

    monkeypatch.setattr(paging, "contents", after_a_delete)
    positions, reply = page(shard, 3, fields=None)
    assert [position.id for position in positions] == [b"v0", b"v2"]
    assert wire.unpack(reply.body, messages.PageReply).end == Position(None, b"v2")


def test_unknown_fields_are_named_and_match_nothing(shard: OneShard) -> None:
    fill(shard, some_rows(10))
    unknown = Condition("gt", "nowhere", (1,))
    reply = wire.unpack(page(shard, 5, filter=unknown)[1].body, messages.PageReply)
    assert (reply.unknown, reply.vectors, reply.end) == (("nowhere",), 10, None)
    assert selected(shard, "vector.count", filter=unknown) == messages.SelectedReply(("nowhere",), 10, {}, 0)


def test_counts_are_of_the_selected_vectors(shard: OneShard) -> None:
    rows = some_rows(100)
    fill(shard, rows)
    shard.delete(["v1"])
    del rows["v1"]
    assert selected(shard, "vector.count").count == 99
    red = [row for row in rows.values() if row["colour"] == "red"]
    assert selected(shard, "vector.count", filter=RED).count == len(red)


def counted(shard: OneShard, field: str, **asked: Any) -> dict[tuple[str, Any], int]:
    body = messages.FacetsBody(COSINE, field=field, **{"filter": None, **asked})
    reply = wire.unpack(shard.call("vector.facets", body).body, messages.FacetsReply)
    counts = {(kind_of(value), value): n for value, n in zip(reply.values, reply.counts, strict=True)}
    assert len(counts) == len(reply.values)
    return counts


def test_facets_count_each_value_of_each_kind(shard: OneShard) -> None:
    rows = some_rows(300)
    fill(shard, rows)
    for condition in (None, RED):
        counts: dict[tuple[str, Any], int] = {}
        for row in rows.values():
            if row["x"] is not None and (condition is None or row["colour"] == "red"):
                key = (kind_of(row["x"]), row["x"])
                counts[key] = counts.get(key, 0) + 1
        assert counted(shard, "x", filter=condition) == counts
    assert counted(shard, "nowhere") == {}


def test_facets_count_a_vector_once_for_equal_numbers_of_its_array(shard: OneShard) -> None:
    fill(
        shard,
        {"a": {"x": [1, 1.0]}, "b": {"x": [0.0, -0.0]}, "c": {"x": [2, 2]}, "d": {"x": [True, True]}, "e": {"x": 1}},
    )
    assert counted(shard, "x") == {("number", 1): 2, ("number", 0.0): 1, ("number", 2): 1, ("bool", True): 1}
    fill(shard, {"a": {"x": [2**53, 2.0**53, 2**53 + 1]}, "b": {"x": [1e300, 0.5, 0.5]}})
    counts = counted(shard, "x")
    assert (counts["number", 2**53], counts["number", 2**53 + 1], counts["number", 0.5]) == (1, 1, 1)


def test_facets_of_too_many_values_are_refused(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shard, {f"v{n}": {"x": n * 10**9, "text": f"{n}"} for n in range(12)})
    monkeypatch.setattr(facets, "VALUES_MAX", 12)
    assert len(counted(shard, "x")) == 12
    monkeypatch.setattr(facets, "VALUES_MAX", 11)
    with pytest.raises(BadData, match="field 'x' has 12 distinct values in one worker"):
        counted(shard, "x")
    monkeypatch.setattr(facets, "VALUES_MAX", 12)
    monkeypatch.setattr(facets, "TEXT_BYTES_MAX", 13)
    with pytest.raises(BadData, match="distinct values have 14 characters"):
        counted(shard, "text")


def test_work_ends_at_the_deadline(shard: OneShard) -> None:
    fill(shard, some_rows(10))
    bodies: list[tuple[str, msgspec.Struct]] = [
        ("vector.page", messages.PageBody(COSINE, None, "x", False, None, 5, 1 << 20, None)),
        ("vector.facets", messages.FacetsBody(COSINE, None, "x")),
        ("vector.delete_matching", messages.SelectionBody(COSINE, RED)),
    ]
    for name, body in bodies:
        request = wire.Request(name, (0,), time.monotonic() - 1, wire.pack(body))
        with pytest.raises(DeadlineExceeded, match=name):
            METHODS[name].run({0: SimpleNamespace(vectors=shard.vectors)}, request)  # type: ignore[dict-item]


def test_a_worker_without_the_collection_has_nothing(shard: OneShard) -> None:
    other = Collection(9, "other", 8, "l2")
    reply = shard.call("vector.page", messages.PageBody(other, None, "", False, None, 5, 1 << 20))
    assert wire.unpack(reply.body, messages.PageReply) == messages.PageReply()
    for name, body in (
        ("vector.count", messages.SelectionBody(other)),
        ("vector.delete_matching", messages.SelectionBody(other)),
        ("vector.update", messages.UpdateBody(other, None, b"", ("x",))),
    ):
        assert wire.unpack(shard.call(name, body, part=(b"", b"")).body, messages.SelectedReply).count == 0
    assert wire.unpack(
        shard.call("vector.facets", messages.FacetsBody(other, None, "x")).body, messages.FacetsReply
    ) == (messages.FacetsReply())
