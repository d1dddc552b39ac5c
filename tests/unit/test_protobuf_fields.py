"""Varints and fields of protobuf messages, as kernels and as Python read and write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protobuf_fields import (
    DELIMITED,
    FIXED_32,
    FIXED_64,
    VARINT,
    checked_length,
    delimited_field,
    delimited_head,
    field_length,
    integer,
    past_field,
    read_varint,
    varint,
)

NUMBERS = st.integers(0, 1 << 14) | st.integers(0, (1 << 64) - 1)


def octets(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@given(NUMBERS)
def test_what_is_written_is_read_again(number: int) -> None:
    data = varint(number)
    assert read_varint(data + b"\xff", 0) == (number, len(data))
    assert integer(octets(data), 0, len(data)) == (np.uint64(number).astype(np.int64), len(data))
    if number < 1 << 28:
        assert field_length(octets(data), 0, len(data)) == (number, len(data))
    else:
        assert field_length(octets(data), 0, len(data))[0] == -1
    if number < 1 << 63:
        assert checked_length(octets(data), 0) == (number, len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x80\x80\x80"])
def test_a_varint_that_is_cut_off_is_none(data: bytes) -> None:
    assert field_length(octets(data), 0, len(data)) == (-1, 0)
    assert integer(octets(data), 0, len(data))[1] == -1
    with pytest.raises(IndexError):
        read_varint(data, 0)


def test_a_varint_ends_within_ten_bytes() -> None:
    data = b"\xff" * 9 + b"\x01"
    assert integer(octets(data), 0, 10) == (-1, 10)
    assert integer(octets(b"\xff" * 10 + b"\x01"), 0, 11)[1] == -1


def test_a_length_is_in_its_shortest_form() -> None:
    assert field_length(octets(b"\x81\x00"), 0, 2) == (-1, 0)
    assert integer(octets(b"\x81\x00"), 0, 2) == (1, 2)


@pytest.mark.parametrize(("number", "size"), [(1, 0), (15, 5), (2, 300)])
def test_a_delimited_field_is_its_head_and_its_content(number: int, size: int) -> None:
    body = octets(b"?" + delimited_head(number, size) + bytes(size) + b"?")
    end = len(body) - 1
    assert delimited_field(body, 1, end) == (number, end - size, end)
    assert past_field(body, 2, end, DELIMITED) == end
    assert delimited_field(body, 1, end - 1)[0] == -1
    assert past_field(body, 2, end - 1, DELIMITED) == -1
    assert delimited_field(body, end, end)[0] == -1


@pytest.mark.parametrize("head", [b"\x08\x00", b"\x09" + bytes(8), b"\x0d" + bytes(4), b"\x92", b"\x0a"])
def test_a_field_of_another_type_is_none(head: bytes) -> None:
    assert delimited_field(octets(head), 0, len(head))[0] == -1


@pytest.mark.parametrize(
    "head", [b"\x12\x02", b"\x92\x00\x02", b"\x12\x82\x00", b"\x92" + b"\x80\x80\x80\x00\x82" + b"\x80\x80\x80\x00"]
)
def test_a_tag_and_a_length_may_have_five_bytes_each(head: bytes) -> None:
    body = octets(head + b"ab")
    assert delimited_field(body, 0, len(body)) == (2, len(head), len(body))
    assert delimited_field(octets(head[:-1] + b"\x80\x80\x80\x80\x80\x00ab"), 0, len(head) + 7)[0] == -1


@pytest.mark.parametrize(("wire_type", "size"), [(FIXED_64, 8), (FIXED_32, 4), (VARINT, 2)])
def test_a_field_is_passed_over_where_it_is_whole(wire_type: int, size: int) -> None:
    content = b"\x80" * (size - 1) + b"\x01"
    assert past_field(octets(content), 0, size, wire_type) == size
    assert past_field(octets(content), 0, size - 1, wire_type) == -1


@pytest.mark.parametrize("wire_type", [3, 4, 6, 7])
def test_a_field_of_an_unknown_type_has_no_end(wire_type: int) -> None:
    assert past_field(octets(bytes(8)), 0, 8, wire_type) == -1
