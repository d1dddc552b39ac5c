"""Limits of ids, attributes, components and collections: the last value that is taken and the first that is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.vectors import catalogue as catalogue_module
from coordinator.vectors.catalogue import Catalogue, checked
from coordinator.vectors.changes import ChangeRequest, delete_from_json
from coordinator.vectors.decode import (
    IDS_MAX,
    Upserts,
    check_components,
    check_halves,
    check_ids,
)
from coordinator.vectors.fusion import fuse
from coordinator.vectors.merging import Hits
from coordinator.vectors.numbers import find_unusable
from coordinator.vectors.text_settings import TEXT_FIELDS_MAX
from coordinator.vectors.values import (
    ATTRIBUTES_MAX,
    NAME_BYTES_MAX,
    SHOWN_MAX,
    TEXT_BYTES_MAX,
    check_value,
    id_bytes,
    pack_attributes,
    shown,
)
from shared.control import LocalControl
from shared.errors import BadData, TooLarge, Unavailable
from shared.messages.vectors import DIMENSION_MAX, HALF_MOST, ID_BYTES_MAX, Collection

# Ids, attributes, values


def test_ids_have_one_byte_to_so_many() -> None:
    for name in ("x", "x" * ID_BYTES_MAX, "é" * (ID_BYTES_MAX // 2)):
        assert id_bytes(name, "ids") == name.encode()
    with pytest.raises(BadData, match="an id is empty"):
        id_bytes("", "ids")
    with pytest.raises(BadData, match=f"has {ID_BYTES_MAX + 1} bytes"):
        id_bytes("x" * (ID_BYTES_MAX + 1), "ids")
    with pytest.raises(BadData, match="not UTF-8"):
        id_bytes("\ud800", "ids")


def test_a_list_of_ids_may_be_empty_and_has_at_most_so_many() -> None:
    assert delete_from_json(b'{"ids": [], "collection": "c"}') == ChangeRequest("c", [], None)
    assert len(check_ids(["x"] * IDS_MAX)) == IDS_MAX
    with pytest.raises(TooLarge, match=f"ids has {IDS_MAX + 1} entries"):
        check_ids(["x"] * (IDS_MAX + 1))


def test_texts_are_limited_by_their_bytes() -> None:
    for text in ("x" * TEXT_BYTES_MAX, "é" * (TEXT_BYTES_MAX // 2), "\U0001f600" * (TEXT_BYTES_MAX // 4)):
        assert check_value(text, "f") == text
        with pytest.raises(BadData, match=f"the limit is {TEXT_BYTES_MAX}"):
            check_value(text + text[0], "f")


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, True, False, 0, 0.5, -1e308, ""])
def test_values_in_range_are_kept_as_they_are(value: object) -> None:
    kept = check_value(value, "f")
    assert (type(kept), kept) == (type(value), value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-(2**63) - 1, "-9223372036854775809 does not fit a 64-bit integer"),
        (2**63, "9223372036854775808 does not fit a 64-bit integer"),
        (float("inf"), "inf is not a finite number"),
        (float("nan"), "nan is not a finite number"),
        (None, "null cannot be a value"),
        ([1], "an array cannot be a value"),
        ({}, "an object cannot be a value"),
    ],
)
def test_values_out_of_range_are_refused(value: object, words: str) -> None:
    with pytest.raises(BadData, match=words):
        check_value(value, "here")


def test_attributes_are_limited_in_number_and_length_of_name() -> None:
    assert pack_attributes({}, "f") == b""
    for attributes in ({f"{n}": n for n in range(ATTRIBUTES_MAX)}, {"x" * NAME_BYTES_MAX: 1}):
        assert msgspec.msgpack.decode(pack_attributes(attributes, "f")) == attributes
    with pytest.raises(BadData, match=f"{ATTRIBUTES_MAX + 1} attributes"):
        pack_attributes({f"{n}": n for n in range(ATTRIBUTES_MAX + 1)}, "f")
    with pytest.raises(BadData, match=f"has {NAME_BYTES_MAX + 1} bytes"):
        pack_attributes({"x" * (NAME_BYTES_MAX + 1): 1}, "f")
    with pytest.raises(BadData, match="has 0 bytes"):
        pack_attributes({"": 1}, "f")


def test_long_values_are_cut_in_messages() -> None:
    fits = "x" * (SHOWN_MAX - 2)
    assert shown(fits) == repr(fits)
    assert shown(fits + "y") == "'" + fits + "…"
    assert len(shown(fits + "y")) == SHOWN_MAX


# Components


@pytest.mark.parametrize("storage", ["f16", "i8", "b1"])
def test_a_component_that_float16_does_not_have_is_refused_where_vectors_are_compared_as_such(storage: str) -> None:
    table = np.ones((3, 4), dtype=np.float32)
    table[1, 2] = -HALF_MOST
    check_halves(table, Collection(1, "h", 4, "dot", storage), lambda row: f"row {row}")
    table[1, 2] = -HALF_MOST - 1
    with pytest.raises(BadData, match=f"row 1: component 2 is -65505; with the storage '{storage}'"):
        check_halves(table, Collection(1, "h", 4, "dot", storage), lambda row: f"row {row}")
    check_halves(table, Collection(1, "h", 4, "cosine", storage), str)
    check_halves(table, Collection(1, "h", 4, "l2", "f32"), str)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_the_component_that_is_not_finite_is_named(bad: float) -> None:
    table = np.ones((3, 4), dtype=np.float32)
    table[1, 3] = bad
    assert find_unusable(table, lengths_matter=False) == (1, 3)
    with pytest.raises(BadData, match="row 1: component 3 is not a finite"):
        check_components(table, "dot", lambda row: f"row {row}")


def test_zeros_have_no_direction_and_any_other_component_gives_one() -> None:
    table = np.zeros((3, 4), dtype=np.float32)
    table[0, 0] = table[1, 3] = 1
    assert find_unusable(table, lengths_matter=True) == (2, -1)
    assert find_unusable(table, lengths_matter=False) is None
    assert find_unusable(table[:2], lengths_matter=True) is None
    check_components(table, "l2", str)
    with pytest.raises(BadData, match="row 2 is all zeros"):
        check_components(table, "cosine", lambda row: f"row {row}")


def upserts(*sizes: int) -> Upserts:
    ids = [b"v%d" % place for place in range(len(sizes))]
    return Upserts("c", ids, np.ones(sum(sizes), np.float32), np.array(sizes), [b""] * len(sizes))


def test_the_first_vector_decides_the_dimension_within_its_limits() -> None:
    assert upserts(1, 5).dimension() == 1
    assert upserts(DIMENSION_MAX).dimension() == DIMENSION_MAX
    for count in (0, DIMENSION_MAX + 1):
        with pytest.raises(BadData, match=f"'v0', field attributes.vector has {count} components"):
            upserts(count).dimension()


def test_the_first_vector_of_another_dimension_is_named() -> None:
    collection = Collection(1, "c", 2, "dot", "f32", ())
    assert upserts(2, 2).matrix(collection).shape == (2, 2)
    with pytest.raises(BadData, match=r"'v1', field attributes.vector has 3 components; .* 'c' is 2"):
        upserts(2, 3, 1).matrix(collection)


def test_of_an_id_that_comes_twice_the_last_vector_is_kept() -> None:
    twice = Upserts("c", [b"a", b"b", b"a"], np.arange(3, dtype=np.float32), np.array([1, 1, 1]), [b"1", b"2", b"3"])
    ids, table, attributes = twice.last_wins(twice.flat.reshape(3, 1))
    assert (ids, table.ravel().tolist(), attributes) == ([b"a", b"b"], [2.0, 1.0], [b"3", b"2"])
    once = Upserts("c", [b"a", b"b"], np.arange(2, dtype=np.float32), np.array([1, 1]), [b"1", b"2"])
    table = once.flat.reshape(2, 1)
    assert once.last_wins(table)[1] is table


# Fusion


def test_hits_without_attributes_or_vectors_are_fused() -> None:
    plain = Hits(np.zeros(2, np.float32), [b"a", b"b"], [], None)
    fused = fuse([plain, Hits(np.zeros(0, np.float32), [], [], None)], 5)
    assert (fused.ids, fused.attributes, fused.vectors) == ([b"a", b"b"], [], None)
    np.testing.assert_allclose(fused.near, [1 / 61, 1 / 62], rtol=1e-6)
    assert fuse([plain, plain], 1).ids == [b"a"]


def test_hits_of_equal_scores_are_fused_by_id() -> None:
    one, other = (Hits(np.zeros(1, np.float32), [name], [], None) for name in (b"b", b"a"))
    assert fuse([one, other], 2).ids == [b"a", b"b"]


# Collections


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "x" * 64, "0"])
def test_names_of_collections(name: str) -> None:
    checked(Collection(0, name, 1, "cosine", "i8", ("t",)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("", 1, "dot", "f32", ()), "a name has 1 to 64"),
        (("x" * 65, 1, "dot", "f32", ()), "a name has 1 to 64"),
        ((".a", 1, "dot", "f32", ()), "a name has 1 to 64"),
        (("a", 0, "dot", "f32", ()), "dimension is 0"),
        (("a", DIMENSION_MAX + 1, "dot", "f32", ()), f"dimension is {DIMENSION_MAX + 1}"),
        (("a", 1, "hamming", "f32", ()), "metric is 'hamming'"),
        (("a", 1, "dot", "f8", ()), "storage is 'f8'"),
        (("a", 1, "dot", "i8", ()), "the metric must be cosine"),
        (("a", 1, "l2", "i8", ()), "the metric must be cosine"),
        (("a", 1, "dot", "b1", ()), "storage is 'b1' and metric is 'dot'"),
        (("a", 1, "dot", "f32", ("t", "t")), "different names"),
        (("a", 1, "dot", "f32", ("t", "")), "different names"),
        (("a", 1, "dot", "f32", tuple(map(str, range(TEXT_FIELDS_MAX + 1)))), f"at most {TEXT_FIELDS_MAX}"),
    ],
)
def test_wrong_settings_of_a_collection_are_refused(settings: tuple, words: str) -> None:
    with pytest.raises(BadData, match=words):
        checked(Collection(0, *settings))


def test_the_largest_settings_of_a_collection_are_taken() -> None:
    checked(Collection(0, "a", DIMENSION_MAX, "cosine", "i8", tuple(map(str, range(TEXT_FIELDS_MAX)))))


def test_there_are_so_many_collections_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "COLLECTIONS_MAX", 2)
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    made = [catalogue.create(Collection(0, name, 1, "dot", "f32")) for name in ("b", "a")]
    assert [collection.id for collection in made] == [1, 2]
    assert catalogue.next_id == 3
    assert [collection.name for collection in catalogue.all()] == ["a", "b"]
    with pytest.raises(BadData, match="there are 2 collections, which is the limit"):
        catalogue.create(Collection(0, "c", 1, "dot", "f32"))
    assert catalogue.create(Collection(0, "a", 1, "dot", "f32")) == made[1]


def test_so_many_dropped_collections_are_waited_for_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_module, "DROPPED_MAX", 1)
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    first, second = (catalogue.create(Collection(0, name, 1, "dot", "f32")) for name in ("a", "b"))
    catalogue.remove("a")
    with pytest.raises(Unavailable, match="1 dropped collections wait"):
        catalogue.remove("b")
    assert (catalogue.all(), catalogue.dropped) == ([second], [first])
    catalogue.confirm_dropped(first)
    assert catalogue.dropped == []
    assert catalogue.remove("b") == second


def test_ids_go_on_above_a_given_number_and_never_fall(tmp_path: Path) -> None:
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    catalogue.give_above(7)
    assert catalogue.next_id == 8
    catalogue.give_above(3)
    assert catalogue.next_id == 8
    again = Catalogue(LocalControl(tmp_path / "vector"))
    again.load()
    assert again.create(Collection(0, "a", 1, "dot", "f32")).id == 8
