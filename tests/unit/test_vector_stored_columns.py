"""Rows of a store as columns: what comes back of whole ones, and which ones are left out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from shared.messages.vectors import ID_BYTES_MAX, Floats
from worker.vectors import stored_rows
from worker.vectors.stored_rows import VERSION_BYTES, Columns, Row, checked

DIMENSION = 3
HEAD = VERSION_BYTES + 4 * DIMENSION
ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"n": 1},
    {"word": "größer", "n": -7, "share": 0.25, "is": True},
    {"list": ["a", "b"] * 40, "long": "x" * 300},
    {f"field {number}": number for number in range(40)},
]


def pack(attributes: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(attributes) if attributes else b""


def value(version: int, vector: Floats, attributes: bytes = b"") -> bytes:
    return version.to_bytes(VERSION_BYTES, "little") + vector.astype(np.float32).tobytes() + attributes


def vectors_of(count: int, dimension: int = DIMENSION) -> Floats:
    return np.random.default_rng(count).normal(size=(count, dimension)).astype(np.float32)


def batch_of(count: int, dimension: int = DIMENSION) -> list[Row]:
    """Rows with attributes of different lengths, every fifth without any."""
    vectors = vectors_of(count, dimension)
    packed = [pack(ATTRIBUTES[row % len(ATTRIBUTES)]) for row in range(count)]
    return [(f"größe {row}".encode(), value(row + 1, vectors[row], packed[row])) for row in range(count)]


def expect(found: Columns, rows: list[Row], dimension: int = DIMENSION) -> None:
    """The columns are those of these rows."""
    head = VERSION_BYTES + 4 * dimension
    assert found.ids == [vector_id for vector_id, _ in rows]
    assert (found.versions.dtype.name, found.vectors.dtype.name) == ("uint64", "float32")
    assert found.versions.tolist() == [int.from_bytes(own[:VERSION_BYTES], "little") for _, own in rows]
    assert found.vectors.shape == (len(rows), dimension)
    assert found.vectors.tobytes() == b"".join(own[VERSION_BYTES:head] for _, own in rows)
    assert found.attributes(range(len(rows))) == [own[head:] for _, own in rows]


@pytest.mark.parametrize("dimension", [1, 2, 3, 128])
@pytest.mark.parametrize("count", [1, 2, 5, 1024])
def test_whole_rows_come_back_as_they_are(count: int, dimension: int) -> None:
    rows = batch_of(count, dimension)
    found, wrong = checked(rows, dimension)
    assert wrong == {}
    expect(found, rows, dimension)
    np.testing.assert_array_equal(found.vectors, vectors_of(count, dimension))
    decoded = [msgspec.msgpack.decode(own) if own else {} for own in found.attributes(range(count))]
    assert decoded == [ATTRIBUTES[row % len(ATTRIBUTES)] for row in range(count)]


def test_rows_are_checked_one_by_one_only_where_one_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bytes] = []
    check = stored_rows._wrong

    def noted(vector_id: bytes, own: bytes, head: int) -> str:
        looks.append(vector_id)
        return check(vector_id, own, head)

    monkeypatch.setattr(stored_rows, "_wrong", noted)
    rows, plain = batch_of(300), [(b"%d" % row, bytes(HEAD)) for row in range(300)]
    for whole in (rows, plain, rows + plain, rows[:1], []):
        expect(checked(whole, DIMENSION)[0], whole)
    assert looks == []
    checked([*plain, (b"x", b"")], DIMENSION)
    assert looks == [vector_id for vector_id, _ in plain] + [b"x"]


def test_attributes_are_those_of_the_places_that_are_asked_for() -> None:
    found, _ = checked(batch_of(5), DIMENSION)
    assert found.attributes([4, 0, 2]) == [pack(ATTRIBUTES[place]) for place in (4, 0, 2)]
    assert found.attributes([]) == []


@pytest.mark.parametrize("version", [0, 1, 255, 1 << 32, (1 << 64) - 1])
def test_a_version_of_any_size_is_read(version: int) -> None:
    found, _ = checked([(b"a", value(version, vectors_of(1)[0], pack({"n": 1}))), (b"b", bytes(HEAD))], DIMENSION)
    assert found.versions.tolist() == [version, 0]


@pytest.mark.parametrize("component", [0.0, -0.0, 1e-45, -3.4e38])
def test_a_component_of_any_size_is_read(component: float) -> None:
    vector = np.array([1, component, 2], np.float32)
    found, wrong = checked([(b"a", value(1, vector))], DIMENSION)
    assert (found.vectors.tobytes(), wrong) == (vector.tobytes(), {})


@pytest.mark.parametrize("dimension", [1, 128])
def test_of_no_rows_there_are_no_columns(dimension: int) -> None:
    found, wrong = checked([], dimension)
    assert wrong == {}
    expect(found, [], dimension)


def test_a_row_may_be_without_attributes_or_have_an_empty_map() -> None:
    vector = vectors_of(1)[0]
    for attributes in ([b"", b""], [b"", b"\x80"], [b"\x80", b"\x80"], [b"\xde\x00\x00", b"\xdf\x00\x00\x00\x00"]):
        rows = [(b"%d" % place, value(7, vector, own)) for place, own in enumerate(attributes)]
        found, wrong = checked(rows, DIMENSION)
        assert wrong == {}
        expect(found, rows)


def test_an_id_that_ends_in_a_character_is_not_read_with_the_next_one() -> None:
    start, rest = "ö".encode()[:1], "ö".encode()[1:]
    vector = vectors_of(1)[0]
    found, wrong = checked([(b"a" + start, value(1, vector)), (rest + b"b", value(2, vector))], DIMENSION)
    assert wrong.keys() == {b"a" + start, rest + b"b"}
    expect(found, [])


VECTOR = np.array([1, 2, 3], np.float32)
WHOLE = pack({"a": 1, "text": "some words"})
READ = "its id or its attributes cannot be read"
DAMAGED: dict[str, tuple[bytes, bytes, str]] = {
    "empty value": (b"d", b"", f"its row has 0 bytes, at least {HEAD} are right"),
    "short value": (b"d", value(1, VECTOR)[:-1], f"its row has {HEAD - 1} bytes, at least {HEAD} are right"),
    "not a number": (b"d", value(1, np.array([1, np.nan, 3]), WHOLE), "a component of it is not finite"),
    "infinite": (b"d", value(1, np.array([1, 2, np.inf])), "a component of it is not finite"),
    "minus infinite": (b"d", value(1, np.array([-np.inf, 2, 3])), "a component of it is not finite"),
    "id": (b"\xff", value(1, VECTOR, WHOLE), READ),
    "half a character as the id": (b"d\xc3", value(1, VECTOR), READ),
    "no msgpack": (b"d", value(1, VECTOR, b"\xc1"), READ),
    "no map": (b"d", value(1, VECTOR, b"\x93\x01\x02\x03"), READ),
    "nothing": (b"d", value(1, VECTOR, b"\xc0"), READ),
    "a number as a name": (b"d", value(1, VECTOR, b"\x81\x01\x02"), READ),
    "a map as a value": (b"d", value(1, VECTOR, b"\x81\xa1x\x80"), READ),
    "a map without its last value": (b"d", value(1, VECTOR, b"\x81\xa1x"), READ),
    "a map without its content": (b"d", value(1, VECTOR, b"\x81"), READ),
    "a text without its end": (b"d", value(1, VECTOR, b"\x81\xa1x\xa5abc"), READ),
    "a text in no code": (b"d", value(1, VECTOR, b"\x81\xa1x\xa1\xff"), READ),
    "two maps": (b"d", value(1, VECTOR, WHOLE + WHOLE), READ),
    "two empty maps": (b"d", value(1, VECTOR, b"\x80\x80"), READ),
    "bytes behind the map": (b"d", value(1, VECTOR, WHOLE + b"\x00"), READ),
}


@pytest.mark.parametrize("place", [0, 1, 4, 9])
@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_row_is_left_out_alone_and_said(kind: str, place: int) -> None:
    vector_id, damaged, why = DAMAGED[kind]
    rows = batch_of(9)
    found, wrong = checked([*rows[:place], (vector_id, damaged), *rows[place:]], DIMENSION)
    assert wrong.keys() == {vector_id}
    assert wrong[vector_id].startswith(why)
    expect(found, rows)


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_row_may_be_the_only_one(kind: str) -> None:
    vector_id, damaged, why = DAMAGED[kind]
    found, wrong = checked([(vector_id, damaged)], DIMENSION)
    assert (list(wrong), wrong[vector_id][: len(why)]) == ([vector_id], why)
    expect(found, [])


@pytest.mark.parametrize("others", [b"", b"\x80", WHOLE, pack({"c": "é"}), pack({"c": "À"})])
def test_attributes_that_end_early_are_not_completed_by_those_of_the_next_row(others: bytes) -> None:
    whole = pack({"n": 300, "text": "words", "list": [1, 2], "share": 0.5})
    for kept in range(1, len(whole)):
        rows = [(b"a", value(1, VECTOR, whole)), (b"c", value(3, VECTOR, others)), (b"d", value(4, VECTOR, whole))]
        damaged = (b"b", value(2, VECTOR, whole[:kept]))
        found, wrong = checked([rows[0], damaged, *rows[1:]], DIMENSION)
        assert list(wrong) == [b"b"] and wrong[b"b"].startswith(READ)
        expect(found, rows)


@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_a_map_that_is_spread_over_two_rows_makes_both_of_them_wrong(cut: int) -> None:
    parts = [(b"b", value(2, VECTOR, WHOLE[:cut])), (b"c", value(3, VECTOR, WHOLE[cut:]))]
    rows = [(b"a", value(1, VECTOR, WHOLE)), (b"d", value(4, VECTOR))]
    found, wrong = checked([rows[0], *parts, rows[1]], DIMENSION)
    assert list(wrong) == [b"b", b"c"]
    expect(found, rows)


@pytest.mark.parametrize("twice", [0, 1, 2])
def test_two_maps_of_a_row_are_not_taken_for_those_of_rows_without_any(twice: int) -> None:
    packed = [b"", b"", b""]
    packed[twice] = WHOLE + WHOLE
    rows = [(b"%d" % place, value(place, VECTOR, own)) for place, own in enumerate(packed)]
    found, wrong = checked(rows, DIMENSION)
    assert list(wrong) == [b"%d" % twice] and wrong[b"%d" % twice].startswith(READ)
    expect(found, [row for place, row in enumerate(rows) if place != twice])


def test_each_damaged_row_of_many_is_said() -> None:
    rows = batch_of(40)
    damaged = [(b"%d" % number + own[0], own[1]) for number, own in enumerate(DAMAGED.values())]
    mixed = [row for pair in zip(rows, damaged, strict=False) for row in pair] + rows[len(damaged) :]
    found, wrong = checked(mixed, DIMENSION)
    assert list(wrong) == [vector_id for vector_id, _ in damaged]
    assert all(text.startswith(own[2]) for text, own in zip(wrong.values(), DAMAGED.values(), strict=True))
    expect(found, rows)


@pytest.mark.parametrize("length", [0, ID_BYTES_MAX + 1])
def test_an_id_of_a_wrong_length_is_said_beside_another_damage(length: int) -> None:
    rows = [(b"x" * ID_BYTES_MAX, value(1, VECTOR)), (b"y" * length, value(2, VECTOR)), (b"z", b"")]
    found, wrong = checked(rows, DIMENSION)
    assert wrong == {
        b"y" * length: f"its id has {length} bytes",
        b"z": f"its row has 0 bytes, at least {HEAD} are right",
    }
    expect(found, rows[:1])
