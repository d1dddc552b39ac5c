"""Workers' answers to searches merged, by example; and the numbers of requests read without the general parser."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from coordinator.vectors import numbers
from coordinator.vectors.merging import Hits, merge
from coordinator.vectors.numbers import find_unusable, parse_arrays
from coordinator.vectors.walk import walk_write
from proto import vector_pb2
from shared import wire
from shared.messages.vectors import SearchReply, pack_blobs
from shared.wire import Reply

Scored = list[tuple[float, str]]


def reply(*lists: Scored, unknown: tuple[str, ...] = (), vectors: int = 9, shown: bool = False) -> Reply:
    """One worker's answer, each list the best hits of one query. `shown`: with attributes, and the score as vector."""
    hits = [hit for found in lists for hit in found]
    scores = np.array([score for score, _ in hits], np.float32)
    packed = [msgspec.msgpack.encode({"name": name}) for _, name in hits]
    frames = [
        np.array([len(found) for found in lists], np.int32).tobytes(),
        scores.tobytes(),
        *pack_blobs([name.encode() for _, name in hits]),
        *(pack_blobs(packed) if shown else (b"", b"")),
        np.stack([scores, -scores], axis=1).tobytes() if shown else b"",
    ]
    return Reply(wire.pack(SearchReply(unknown, vectors)), frames)


def merged(replies: list[Reply], queries: int, k: int) -> list[Scored]:
    return [[(float(near), name.decode()) for near, name, _, _ in hits] for hits in merge(replies, queries, 2, k).lists]


ONE = reply([(0.9, "d"), (0.5, "b")], [(0.5, "z"), (0.5, "zz")], [])
OTHER = reply([(0.9, "c"), (0.5, "a"), (0.25, "e")], [(0.75, "y"), (0.5, "x")], [(0.125, "w")])
THIRD = reply([(0.9, "b2")], [], [(0.5, "v"), (0.125, "u")])


def test_every_query_has_the_best_of_all_workers_and_equal_ones_by_id() -> None:
    every = [
        [(0.9, "b2"), (0.9, "c"), (0.9, "d"), (0.5, "a"), (0.5, "b"), (0.25, "e")],
        [(0.75, "y"), (0.5, "x"), (0.5, "z"), (0.5, "zz")],
        [(0.5, "v"), (0.125, "u"), (0.125, "w")],
    ]
    every = [[(float(np.float32(score)), name) for score, name in hits] for hits in every]
    for replies in ([ONE, OTHER, THIRD], [THIRD, OTHER, ONE], [OTHER, THIRD, ONE]):
        for k in (1, 2, 3, 6, 9):
            assert merged(replies, 3, k) == [hits[:k] for hits in every]


def test_one_worker_is_its_answer() -> None:
    assert merged([reply([(0.5, "b"), (0.25, "a")])], 1, 5) == [[(0.5, "b"), (0.25, "a")]]
    assert merged([reply([(0.5, "b"), (0.25, "a")])], 1, 1) == [[(0.5, "b")]]


def test_what_belongs_to_a_hit_stays_with_it() -> None:
    replies = [
        reply([(0.5, "b"), (0.25, "e")], [(0.125, "f")], shown=True),
        reply([(0.5, "a"), (0.375, "c")], [], shown=True),
    ]
    first, second = merge(replies, 2, 2, 3).lists
    assert first.ids == [b"a", b"b", b"c"] and second.ids == [b"f"]
    for hits in (first, second):
        assert [msgspec.msgpack.decode(packed)["name"].encode() for packed in hits.attributes] == hits.ids
        assert hits.vectors is not None
        assert hits.vectors.tolist() == [[float(near), -float(near)] for near in hits.near]


def test_workers_without_vectors_are_left_out() -> None:
    empty = reply([], vectors=0, unknown=())
    assert merged([empty, reply([(0.5, "a")])], 1, 3) == [[(0.5, "a")]]
    found = merge([empty, empty], 2, 2, 3)
    assert (found.vectors, found.unknown, [list(hits) for hits in found.lists]) == (0, set(), [[], []])


def test_a_field_is_unknown_if_no_worker_with_vectors_knows_it() -> None:
    replies = [
        reply([], unknown=("a", "b"), vectors=2),
        reply([], unknown=("b", "c"), vectors=3),
        reply([], unknown=(), vectors=0),
    ]
    found = merge(replies, 1, 2, 3)
    assert (found.unknown, found.vectors) == ({"b"}, 5)


def test_hits_are_shown_with_what_they_have() -> None:
    bare = Hits(np.array([0.5, 0.25], np.float32), [b"a", b"b"], [], None)
    assert [(float(n), i, a, v) for n, i, a, v in bare] == [(0.5, b"a", b"", None), (0.25, b"b", b"", None)]
    vectors = np.array([[1.0], [2.0]], np.float32)
    full = Hits(bare.near, bare.ids, [b"x", b"y"], vectors)
    assert [(i, a, v.tolist()) for _, i, a, v in full if v is not None] == [(b"a", b"x", [1.0]), (b"b", b"y", [2.0])]
    turned = full.take(np.array([1, 0]))
    assert (turned.ids, turned.attributes, turned.near.tolist()) == ([b"b", b"a"], [b"y", b"x"], [0.25, 0.5])
    assert turned.vectors is not None and turned.vectors.tolist() == [[2.0], [1.0]]
    last = full.part(1, 2)
    assert (last.ids, last.attributes, last.near.tolist()) == ([b"b"], [b"y"], [0.25])
    assert (bare.take(np.array([1])).attributes, bare.part(0, 1).attributes, bare.part(0, 1).vectors) == ([], [], None)


# Numbers of requests

USUAL = [
    "[]",
    "[0]",
    "[1,2,3]",
    "[1, 2,\n3,\t4,\r5 ]",
    "[ 1]",
    "[0.5,-0.25,1.5e3,1.5E3,1e+2,1e-2,-1E-2,12e0]",
    "[0.1,0.123456789,123456.789]",
    "[1234567890.12345678]",
    "[1e20,1e22,1e23,1e38,1e-30]",
    "[0.0,0e5,-0.0]",
    "[9007199254740991,9007199254740992]",
    "[1.5e-38]",
    "[123456789012345678901234567890]",
    "[0.12345678901234567890123]",
]


@pytest.mark.parametrize("text", USUAL)
def test_usual_numbers_are_not_left_to_the_general_parser(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_with_unusual", lambda *_: pytest.fail("left to the general parser"))
    flat, counts = parse_arrays([b"[7]", text.encode(), b"[8,9]"])
    expected = np.array(msgspec.json.decode(text, type=list[float]), dtype=np.float64).astype(np.float32)
    assert counts.tolist() == [1, len(expected), 2]
    assert flat.tobytes() == np.concatenate([np.float32([7]), expected, np.float32([8, 9])]).tobytes()


@pytest.mark.parametrize("text", ["[1e45]", "[1e-45]", "[1e-39]", "[16777217.000000000001]"])
def test_numbers_whose_rounding_is_in_doubt_are_left_to_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[list[int]] = []
    general = numbers._with_unusual

    def noted(arrays: object, parsed: object, counts: object, unusual: np.ndarray) -> object:
        left.append(unusual.tolist())
        return general(arrays, parsed, counts, unusual)  # type: ignore[arg-type]

    monkeypatch.setattr(numbers, "_with_unusual", noted)
    with np.errstate(over="ignore"):
        expected = np.array(msgspec.json.decode(text, type=list[float]), dtype=np.float64).astype(np.float32)
    flat, counts = parse_arrays([b"[7]", text.encode(), b"[8,9]"])
    assert left == [[1]] and counts.tolist() == [1, 1, 2]
    assert flat.tolist() == [7.0, *expected.tolist(), 8.0, 9.0]


def test_the_fields_of_a_write_may_come_in_any_order() -> None:
    name = vector_pb2.WriteRequest(collection="c").SerializeToString()
    vectors = []
    for number in range(3):
        request = vector_pb2.WriteRequest()
        vector = request.upsert_vectors.add(id=f"v{number}")
        vector.attributes["vector"].vector_value.values.extend([number, number + 0.5])
        vector.attributes["colour"].string_value = "red"
        vectors.append(request.SerializeToString())
    for body in (name + b"".join(vectors), vectors[0] + name + vectors[1] + vectors[2], b"".join(vectors) + name):
        walked = walk_write(body, 3)
        assert walked is not None
        rows, (first, last) = walked
        assert body[first:last] == b"c"
        assert [body[row[2] : row[3]] for row in rows.tolist()] == [b"v0", b"v1", b"v2"]
        assert [np.frombuffer(body[row[4] : row[5]], np.float32).tolist() for row in rows.tolist()] == [
            [0.0, 0.5],
            [1.0, 1.5],
            [2.0, 2.5],
        ]
        assert rows[:, 6].tolist() == [1, 1, 1]
        short = walk_write(body, 1)
        assert short is not None and len(short[0]) == 2


@pytest.mark.parametrize(
    ("length", "is_usual"),
    [
        (b"\x01", True),
        (b"\x81\x00", True),
        (b"\x81\x80\x00", True),
        (b"\x81\x80\x80\x80\x00", True),
        (b"\x81\x80\x80\x80\x80\x00", False),
        (b"\x81", False),
        (b"\x03", False),
        (b"\x02", False),
    ],
)
def test_a_length_has_at_most_five_bytes_and_ends_within_the_body(length: bytes, is_usual: bool) -> None:
    walked = walk_write(b"\x12" + length + b"c", 3)
    assert (walked is not None) is is_usual
    if walked is not None:
        assert (len(walked[0]), walked[1]) == (0, (1 + len(length), 2 + len(length)))


@pytest.mark.parametrize("body", [b"\x10\x01", b"\x0d\x00\x00\x00\x00", b"\x1a\x00", b"\x92\x01\x00"])
def test_fields_that_are_not_of_a_write_are_left_to_the_general_parser(body: bytes) -> None:
    assert walk_write(body, 3) is None
    assert walk_write(b"", 3) is not None


def test_the_first_vector_that_nothing_can_be_compared_with_is_found() -> None:
    table = np.array([[1, 2, 3], [0, 0, 0], [0, np.nan, np.inf], [0, 0, -0.0]], np.float32)
    assert find_unusable(table, lengths_matter=True) == (1, -1)
    assert find_unusable(table, lengths_matter=False) == (2, 1)
    assert find_unusable(table[2:], lengths_matter=True) == (0, 1)
    assert find_unusable(table[3:], lengths_matter=True) == (0, -1)
    assert find_unusable(table[3:], lengths_matter=False) is None
    assert find_unusable(table[:1], lengths_matter=True) is None
    assert find_unusable(np.array([[0, 0, 1e-30], [-np.inf, 0, 0]], np.float32), lengths_matter=True) == (1, 0)
