"""Large bodies of requests, read in slices: a decoder holds the interpreter lock for a millisecond at a time, and sees
no more elements than the request may have.

Kernels find the elements without the lock (`coordinator.json_walk`, `shared.protobuf_fields`). A request whose large
part is one list, such as the records of an append, becomes slices of that list, and the rest of the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator import json_walk
from shared.errors import BadData, TooLarge
from shared.protobuf_fields import SCATTERED, SLICE_BEGIN, SLICE_END, SLICE_FIRST, message_slices

SLICED_BYTES_MIN = 64 << 10
"""Bodies below this are decoded in one piece, which takes some 2 ms at the worst."""
SLICE_BYTES = 64 << 10
REST_BYTES_MAX = 256 << 10
"""Of a request beside its lists: names, settings, and in protobuf all that is unknown."""
MEMBERS_MAX = 64
SPANS_MAX = 1024
"""Pieces of a message that lie between the elements of its list."""

_PLACE = re.compile(r"\$\[(\d+)\]")

T = TypeVar("T")


class Slices:
    """A list within a body: `count` elements, of which slices are told up to a most."""

    def __init__(self, body: bytes, name: str, count: int, table: NDArray[np.int64]) -> None:
        self.name = name
        self.count = count
        self._body = body
        self._table = table

    def require_elements_within(self, bytes_max: int) -> None:
        """Raises TooLarge for an element that is encoded in more than so many bytes."""
        sizes = self._table[:, SLICE_END] - self._table[:, SLICE_BEGIN]
        too_large = np.flatnonzero(sizes > max(bytes_max, SLICE_BYTES))
        if len(too_large):
            row = int(too_large[0])
            raise TooLarge(
                f"`{self.name}[{self._table[row, SLICE_FIRST]}]` has {sizes[row]} bytes as it is encoded; "
                f"it may have at most {bytes_max}"
            )

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """(the position of its first element in the list, the slice as it is encoded) of each."""
        for begin, end, first in self._table.tolist():
            yield first, self._body[begin:end]

    def decode(self, first: int, text: bytes, decoder: msgspec.json.Decoder[list[T]]) -> list[T]:
        """The elements of one slice of a list in JSON. Raises as the decoder does, with the place in the body."""
        if len(text) > SLICE_BYTES:
            text = _without_slash_escapes(text)
        try:
            return decoder.decode(b"[" + text + b"]")
        except msgspec.MsgspecError as error:
            raise type(error)(self._placed(str(error), first)) from None

    def _placed(self, message: str, first: int) -> str:
        return _PLACE.sub(lambda match: f"$.{self.name}[{first + int(match[1])}]", message, count=1)


class LargeObject:
    """A JSON object: `lists`, by name, of the members named when they are arrays, and `rest`, the object in which these
    arrays are empty.

    `most` says how many elements each array may have; it is for the caller to refuse a larger `Slices.count`. Raises
    BadData for a body that is no such object, TooLarge when its rest is too large to be decoded in one piece.
    """

    def __init__(self, body: bytes, most: Mapping[str, int], rest_bytes_max: int = REST_BYTES_MAX) -> None:
        self.lists: dict[str, Slices] = {}
        text = np.frombuffer(body, np.uint8)
        pieces = []
        rest_bytes = 0
        reader = Members(text)
        for name, name_end, begin in reader:
            plain = body[name + 1 : min(name_end - 1, name + 64)].decode(errors="replace")
            if plain in most and body[begin : begin + 1] == b"[":
                if plain in self.lists:
                    raise BadData(f"`{plain}` is given twice; it must be given once")
                self.lists[plain], reader.at = _sliced_array(body, text, plain, begin, most[plain])
                pieces.append(b'"%s":[]' % plain.encode())
                continue
            end = reader.past_value(begin)
            rest_bytes += name_end - name + end - begin
            beside = f"what the body has beside {' and '.join(most)}, up to field {plain!r},"
            _require_small_rest(rest_bytes, rest_bytes_max, beside)
            pieces.append(body[name:name_end] + b":" + body[begin:end])
        self.rest = b"{" + b",".join(pieces) + b"}"


class LargeMessage:
    """A protobuf message: `list`, its fields of one number, which are messages, texts or bytes, and `rest`, the message
    without them. Each slice of the list is such a message itself. `name` is the field's in errors; for `most` see
    `LargeObject`.

    Raises BadData for a body that is no message, TooLarge when its rest is too large to be parsed in one piece.
    """

    def __init__(self, body: bytes, number: int, name: str, most: int, rest_bytes_max: int = REST_BYTES_MAX) -> None:
        data = np.frombuffer(body, np.uint8)
        table = np.empty((2 * len(body) // SLICE_BYTES + SPANS_MAX, 3), np.int64)
        spans = np.empty((SPANS_MAX, 2), np.int64)
        count, made, others = message_slices(data, number, most, SLICE_BYTES, table, spans)
        if count == SCATTERED:
            raise BadData(f"other fields stand between those of `{name}` more than {SPANS_MAX} times, the limit")
        if count < 0:
            raise BadData(f"the body is not a protobuf message: the field at byte {made} is not whole or unknown")
        spans = spans[:others]
        rest_bytes = int((spans[:, 1] - spans[:, 0]).sum())
        _require_small_rest(rest_bytes, rest_bytes_max, f"what the body has beside {name}")
        self.list = Slices(body, name, count, table[:made])
        self.rest = b"".join(body[begin:end] for begin, end in spans.tolist())


class Members:
    """The members of the JSON object that a text is. Iterating gives (where the name with its quotes begins, where it
    ends, where the value begins) of each; `at` must be behind the value before the next. Raises BadData."""

    def __init__(self, text: NDArray[np.uint8], most: int = MEMBERS_MAX) -> None:
        self.at = json_walk.past_space(text, 0, len(text))
        self._text = text
        self._most = most

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        count = 0
        if self._next() != "{":
            raise _broken(json_walk.BROKEN, self.at)
        if self._peek() != "}":
            while True:
                if count == self._most:
                    raise BadData(f"an object in the body has more than {self._most} members, the limit")
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
        """Go behind the value that begins here, and return where that is."""
        at = json_walk.past_value(self._text, begin, len(self._text))
        if at < 0:
            raise _broken(at, begin)
        self.at = at
        return at

    def count_elements(self, begin: int) -> int:
        """How many elements the array that begins here has. Go behind it."""
        table = np.empty((1, 3), np.int64)  # for no slice, of which the kernel notes the end all the same
        count, wrong, self.at = json_walk.slices(self._text, begin, len(self._text), 0, SLICE_BYTES, table)
        if count < 0:
            raise _broken(count, wrong)
        return count

    def _peek(self) -> str:
        return chr(self._text[self.at]) if self.at < len(self._text) else ""

    def _next(self) -> str:
        character = self._peek()
        self.at = json_walk.past_space(self._text, self.at + 1, len(self._text))
        return character


def _sliced_array(body: bytes, text: NDArray[np.uint8], name: str, begin: int, most: int) -> tuple[Slices, int]:
    """(the slices of the array that begins here, where it ends)."""
    table = np.empty((2 + 2 * (len(body) - begin) // SLICE_BYTES, 3), np.int64)
    count, made, end = json_walk.slices(text, begin, len(body), most, SLICE_BYTES, table)
    if count < 0:
        raise _broken(count, made)
    return Slices(body, name, count, table[:made]), end


def _broken(reason: int, at: int) -> BadData:
    if reason == json_walk.TOO_DEEP:
        return BadData(f"the body is nested too deeply: more than {json_walk.DEPTH_MAX} brackets in one value")
    return BadData(f"the body is not valid JSON: it is no object, or wrong or not closed after byte {at}")


def _require_small_rest(size: int, most: int, what: str) -> None:
    if size > most:
        raise TooLarge(f"{what} has {size} bytes; it may have at most {most}")


def _without_slash_escapes(text: bytes) -> bytes:
    out = np.empty(len(text), np.uint8)
    return out[: json_walk.without_slash_escapes(np.frombuffer(text, np.uint8), out)].tobytes()
