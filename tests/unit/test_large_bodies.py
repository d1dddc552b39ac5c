"""Large bodies are read in slices as small ones are read whole, and refused by counts before they are decoded."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.parsing import json_walk, large_bodies
from coordinator.parsing.large_bodies import MEMBERS_MAX, REST_BYTES_MAX, SPANS_MAX, LargeMessage, LargeObject
from proto import log_pb2
from shared.errors import BadData, TooLarge
from shared.protobuf_fields import delimited_head

DECODER = msgspec.json.Decoder(list[Any])

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 53), 1 << 53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=3) | st.sampled_from(["a", "b"]), values, max_size=4)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The first call of a kernel takes longer than hypothesis allows."""
    read(b'{"a":["%s"]}' % (b"x" * 100_000))
    LargeMessage(b"", 1, "records", 1)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "SLICE_BYTES", 6)


def read(body: bytes) -> Any:
    """The object that the slices and the rest of a body say, put together."""
    large = LargeObject(body, {"a": 1000, "b": 1000})
    content = msgspec.json.decode(large.rest)
    for name, slices in large.lists.items():
        for first, text in slices:
            assert first == len(content[name])
            content[name] += slices.decode(first, text, DECODER)
        assert len(content[name]) == slices.count
    return content


@given(objects, separators, st.booleans())
def test_an_object_in_slices_is_what_it_is_in_one_piece(
    content: dict[str, Any], separator: tuple[str, str], escaped: bool
) -> None:
    body = json.dumps(content, separators=separator, ensure_ascii=escaped).encode()
    assert read(body) == msgspec.json.decode(body)


@given(
    objects, st.integers(0, 60), st.integers(0, 3), st.binary(max_size=2) | st.sampled_from([b",", b"]", b"{", b'"'])
)
def test_a_damaged_object_is_read_as_in_one_piece_or_refused(
    content: dict[str, Any], start: int, gone: int, middle: bytes
) -> None:
    text = json.dumps(content).encode()
    body = text[:start] + middle + text[start + gone :]
    try:
        whole = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        with pytest.raises((BadData, msgspec.MsgspecError, UnicodeDecodeError)):
            read(body)
        return
    if isinstance(whole, dict):
        try:
            assert read(body) == whole
        except BadData as error:
            assert "given twice" in str(error)


@pytest.mark.parametrize(
    "body", [b"", b" ", b"[]", b'{"a":[1}', b'{"a":[1,]}', b'{"a":[,1]}', b'{"a":[1,,1]}', b'{"a":[1]}x']
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises((BadData, msgspec.MsgspecError)):
        read(body)


def test_a_slash_may_be_escaped_in_a_large_element() -> None:
    text = '"' + "\\/a" * 10 + '\\\\/\\n"'
    assert read(b'{"a":[%s]}' % text.encode()) == {"a": ["/a" * 10 + "\\/\n"]}


def test_an_error_names_the_element_of_the_whole_list() -> None:
    slices = LargeObject(b'{"a":[%s"x"]}' % (b"1," * 50), {"a": 100}).lists["a"]
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$\.a\[50\]`"):
        for first, text in slices:
            slices.decode(first, text, msgspec.json.Decoder(list[int]))


def test_elements_past_the_most_are_counted_and_not_told() -> None:
    slices = LargeObject(b'{"a":[%s1]}' % (b"1," * 99), {"a": 10}).lists["a"]
    assert (slices.count, sum(text.count(b"1") for _, text in slices)) == (100, 10)


def test_a_large_element_is_refused_by_its_place_and_size() -> None:
    slices = LargeObject(b'{"a":[1,2,"%s",3]}' % (b"x" * 50), {"a": 10}).lists["a"]
    slices.require_elements_within(52)
    with pytest.raises(TooLarge, match=r"`a\[2\]` has 52 bytes as it is encoded; it may have at most 51"):
        slices.require_elements_within(51)


def test_depth_members_and_rest_are_bounded() -> None:
    deep = json_walk.DEPTH_MAX
    assert LargeObject(b'{"a":[%s%s]}' % (b"[" * deep, b"]" * deep), {"a": 2}).lists["a"].count == 1
    with pytest.raises(BadData, match="nested too deeply: more than 128 brackets"):
        LargeObject(b'{"a":[%s%s]}' % (b"[" * (deep + 1), b"]" * (deep + 1)), {"a": 2})
    LargeObject(b"{%s}" % b",".join([b'"x":1'] * MEMBERS_MAX), {})
    with pytest.raises(BadData, match=f"more than {MEMBERS_MAX} members"):
        LargeObject(b"{%s}" % b",".join([b'"x":1'] * (MEMBERS_MAX + 1)), {})
    with pytest.raises(
        TooLarge, match=rf"the body without a, up to field 'xy', has \d+ bytes; it may have at most {REST_BYTES_MAX}"
    ):
        LargeObject(b'{"a":[],"xy":"%s"}' % (b"x" * REST_BYTES_MAX), {"a": 1})
    with pytest.raises(BadData, match="`a` is given twice"):
        LargeObject(b'{"a":[],"a":[]}', {"a": 1})


# Protobuf

fields = st.lists(
    st.tuples(st.just(1), st.binary(max_size=9)) | st.tuples(st.sampled_from([3, 9]), st.binary(max_size=3)), max_size=9
)


@given(fields)
def test_a_message_in_slices_is_what_it_is_in_one_piece(content: list[tuple[int, bytes]]) -> None:
    body = b"".join(delimited_head(number, len(text)) + text for number, text in content)
    large = LargeMessage(body, 1, "records", 100)
    assert b"".join(text for _, text in large.list) == b"".join(
        delimited_head(1, len(text)) + text for number, text in content if number == 1
    )
    assert large.list.count == sum(number == 1 for number, _ in content)
    others = [(number, text) for number, text in content if number != 1]
    assert large.rest == b"".join(delimited_head(number, len(text)) + text for number, text in others)


def test_fields_of_all_types_are_passed_over() -> None:
    body = b"\x10\x01" + b"\x0a\x00" + b"\x19" + bytes(8) + b"\x25" + bytes(4) + b"\x0a\x80\x00"
    large = LargeMessage(body, 1, "records", 100)
    assert (large.list.count, large.rest) == (2, b"\x10\x01\x19" + bytes(8) + b"\x25" + bytes(4))
    assert [first for first, _ in large.list] == [0, 1]


@pytest.mark.parametrize("body", [b"\x0a", b"\x0a\x01", b"\x0b", b"\x00\x00", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 9])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(BadData, match="not a protobuf message"):
        LargeMessage(body, 1, "records", 100)


def test_what_stands_beside_the_list_of_a_message_is_bounded() -> None:
    LargeMessage(b"\x10\x00" * (REST_BYTES_MAX // 2), 1, "records", 1)
    with pytest.raises(
        TooLarge, match=f"the body without records has {REST_BYTES_MAX + 2} bytes; it may have at most {REST_BYTES_MAX}"
    ):
        LargeMessage(b"\x10\x00" * (REST_BYTES_MAX // 2 + 1), 1, "records", 1)
    with pytest.raises(BadData, match=f"more than {SPANS_MAX} times"):
        LargeMessage(b"\x10\x00\x0a\x00" * (SPANS_MAX + 1), 1, "records", 5000)


def test_each_slice_of_a_message_is_one() -> None:
    message = log_pb2.AppendRequest(records=[log_pb2.Record(value=bytes([i])) for i in range(9)])
    large = LargeMessage(message.SerializeToString(), 1, "records", 9)
    parsed = [log_pb2.AppendRequest.FromString(text) for _, text in large.list]
    assert [record.value for one in parsed for record in one.records] == [bytes([i]) for i in range(9)]
    assert len(parsed) == 9
    assert np.all(np.diff([first for first, _ in large.list]) > 0)
