"""Splits large request bodies into slices, so that a decoder holds the interpreter lock for only about 1 ms at a time
and never sees more elements than the request may have.

Kernels locate the elements without the lock (`coordinator.parsing.json_walk`, `shared.protobuf_fields`). A request
whose large part is one list, such as the records of an append, becomes slices of that list and the rest of the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.parsing import json_walk
from shared.errors import BadData, TooLarge
from shared.protobuf_fields import SCATTERED, SLICE_BEGIN, SLICE_END, SLICE_FIRST, message_slices

SLICED_BYTES_MIN = 64 << 10
"""Smaller bodies are decoded in one piece, which takes about 2 ms in the worst case."""
SLICE_BYTES = 64 << 10
REST_BYTES_MAX = 256 << 10
"""The most bytes of a request without its lists: names, settings and, in protobuf, unknown fields."""
MEMBERS_MAX = 64
SPANS_MAX = 1024
"""The most pieces of a message between the elements of its list."""

_PLACE = re.compile(r"\$\[(\d+)\]")

T = TypeVar("T")


class Slices:
    """A list within a body. It has `count` elements; slices exist for those within the caller's limit."""

    def __init__(self, body: bytes, name: str, count: int, table: NDArray[np.int64]) -> None:
        self.name = name
        self.count = count
        self._body = body
        self._table = table

    def require_elements_within(self, bytes_max: int) -> None:
        """Raises TooLarge if an element has more than `bytes_max` bytes as encoded."""
        sizes = self._table[:, SLICE_END] - self._table[:, SLICE_BEGIN]
        too_large = np.flatnonzero(sizes > max(bytes_max, SLICE_BYTES))
        if len(too_large):
            row = int(too_large[0])
            raise TooLarge(
                f"`{self.name}[{self._table[row, SLICE_FIRST]}]` has {sizes[row]} bytes as it is encoded; "
                f"it may have at most {bytes_max}"
            )

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield (position of the slice's first element in the list, the encoded slice) for each slice."""
        for begin, end, first in self._table.tolist():
            yield first, self._body[begin:end]

    def decode(self, first: int, text: bytes, decoder: msgspec.json.Decoder[list[T]]) -> list[T]:
        """Decode one slice of a JSON list. Raises the decoder's errors, with the position in the body."""
        if len(text) > SLICE_BYTES:
            text = _without_slash_escapes(text)
        try:
            return decoder.decode(b"[" + text + b"]")
        except msgspec.MsgspecError as error:
            raise type(error)(self._placed(str(error), first)) from None

    def _placed(self, message: str, first: int) -> str:
        return _PLACE.sub(lambda match: f"$.{self.name}[{first + int(match[1])}]", message, count=1)


class LargeObject:
    """A JSON object. `lists`: name → slices, for the members named in `limits` that are arrays. `rest`: the object with
    these arrays empty.

    `limits`: name → how many elements the array may have. The caller must refuse a larger `Slices.count`. Raises
    BadData if the body is not an object, TooLarge if its rest is too large to be decoded in one piece.
    """

    def __init__(self, body: bytes, limits: Mapping[str, int], rest_bytes_max: int = REST_BYTES_MAX) -> None:
        self.lists: dict[str, Slices] = {}
        text = np.frombuffer(body, np.uint8)
        pieces = []
        rest_bytes = 0
        reader = Members(text)
        for name, name_end, begin in reader:
            plain = body[name + 1 : min(name_end - 1, name + 64)].decode(errors="replace")
            if plain in limits and body[begin : begin + 1] == b"[":
                if plain in self.lists:
                    raise BadData(f"`{plain}` is given twice; it must be given once")
                self.lists[plain], reader.at = _sliced_array(body, text, plain, begin, limits[plain])
                pieces.append(b'"%s":[]' % plain.encode())
                continue
            end = reader.past_value(begin)
            rest_bytes += name_end - name + end - begin
            what = f"the body without {' and '.join(limits)}, up to field {plain!r},"
            _require_small_rest(rest_bytes, rest_bytes_max, what)
            pieces.append(body[name:name_end] + b":" + body[begin:end])
        self.rest = b"{" + b",".join(pieces) + b"}"


class LargeMessage:
    """A protobuf message. `list`: its fields with one field number, which are messages, strings or bytes; each slice of
    the list is itself a message with these fields. `rest`: the message without them. `name`: the name of the field in
    errors. `limit`: how many of these fields there may be; the caller must refuse a larger `Slices.count`.

    Raises BadData if the body is not a message, TooLarge if its rest is too large to be parsed in one piece.
    """

    def __init__(self, body: bytes, number: int, name: str, limit: int, rest_bytes_max: int = REST_BYTES_MAX) -> None:
        data = np.frombuffer(body, np.uint8)
        table = np.empty((2 * len(body) // SLICE_BYTES + SPANS_MAX, 3), np.int64)
        spans = np.empty((SPANS_MAX, 2), np.int64)
        count, slice_count, span_count = message_slices(data, number, limit, SLICE_BYTES, table, spans)
        if count == SCATTERED:
            raise BadData(f"other fields are between those of `{name}` more than {SPANS_MAX} times, the limit")
        if count < 0:
            error_at = slice_count
            raise BadData(f"the body is not a protobuf message: the field at byte {error_at} is truncated or unknown")
        spans = spans[:span_count]
        rest_bytes = int((spans[:, 1] - spans[:, 0]).sum())
        _require_small_rest(rest_bytes, rest_bytes_max, f"the body without {name}")
        self.list = Slices(body, name, count, table[:slice_count])
        self.rest = b"".join(body[begin:end] for begin, end in spans.tolist())


class Members:
    """Iterates over the members of a JSON object. Yields (where the quoted name begins, where it ends, where the value
    begins) for each. Before the next one, `at` must be moved past the value. Raises BadData."""

    def __init__(self, text: NDArray[np.uint8], members_max: int = MEMBERS_MAX) -> None:
        self.at = json_walk.past_space(text, 0, len(text))
        self._text = text
        self._members_max = members_max

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        count = 0
        if self._next() != "{":
            raise _broken(json_walk.BROKEN, self.at)
        if self._peek() != "}":
            while True:
                if count == self._members_max:
                    raise BadData(f"an object in the body has more than {self._members_max} members, the limit")
                name, name_end, begin = json_walk.member(self._text, self.at, len(self._text))
                if name < 0:
                    raise _broken(name, self.at)
                yield name, name_end, begin
                count += 1
                self.at = json_walk.past_space(self._text, self.at, len(self._text))
                if self._peek() != ",":
                    break
                self._next()
        if self._next() != "}" or self.at < len(self._text):
            raise _broken(json_walk.BROKEN, self.at)

    def past_value(self, begin: int) -> int:
        """Move past the value at `begin`. Returns the position after it."""
        at = json_walk.past_value(self._text, begin, len(self._text))
        if at < 0:
            raise _broken(at, begin)
        self.at = at
        return at

    def count_elements(self, begin: int) -> int:
        """Move past the array at `begin`. Returns its number of elements."""
        table = np.empty((1, 3), np.int64)  # no slice is made, but the kernel still writes one end
        count, error_at, self.at = json_walk.slices(self._text, begin, len(self._text), 0, SLICE_BYTES, table)
        if count < 0:
            raise _broken(count, error_at)
        return count

    def _peek(self) -> str:
        return chr(self._text[self.at]) if self.at < len(self._text) else ""

    def _next(self) -> str:
        character = self._peek()
        self.at = json_walk.past_space(self._text, self.at + 1, len(self._text))
        return character


def _sliced_array(body: bytes, text: NDArray[np.uint8], name: str, begin: int, limit: int) -> tuple[Slices, int]:
    """Split the array at `begin`: (its slices, where it ends)."""
    table = np.empty((2 + 2 * (len(body) - begin) // SLICE_BYTES, 3), np.int64)
    count, slice_count, end = json_walk.slices(text, begin, len(body), limit, SLICE_BYTES, table)
    if count < 0:
        error_at = slice_count
        raise _broken(count, error_at)
    return Slices(body, name, count, table[:slice_count]), end


def _broken(reason: int, at: int) -> BadData:
    if reason == json_walk.TOO_DEEP:
        return BadData(f"the body is nested too deeply: more than {json_walk.DEPTH_MAX} brackets in one value")
    return BadData(f"the body is not valid JSON: it is no object, or wrong or not closed after byte {at}")


def _require_small_rest(size: int, size_max: int, what: str) -> None:
    if size > size_max:
        raise TooLarge(f"{what} has {size} bytes; it may have at most {size_max}")


def _without_slash_escapes(text: bytes) -> bytes:
    out = np.empty(len(text), np.uint8)
    return out[: json_walk.without_slash_escapes(np.frombuffer(text, np.uint8), out)].tobytes()
