"""Attributes of vectors in JSON, before they are decoded: those that would become too many objects are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from coordinator.parsing.large_bodies import SLICE_BYTES, Members
from coordinator.vectors.numbers import COMPONENTS_BYTES_MAX
from coordinator.vectors.values import TEXT_BYTES_MAX, shown
from shared.errors import BadData
from shared.messages.vectors import ARRAY_ELEMENTS_MAX

ODD_ATTRIBUTES_MAX = 1024
"""The limit on the attributes of a vector as they are encoded, where later ones may replace earlier ones."""
TEXT_ENCODED_BYTES_MAX = 6 * TEXT_BYTES_MAX + 2
"""The longest text of an attribute in JSON, with every character escaped."""

_TEXTS = msgspec.json.Decoder(list[str])


def check_large_vector(text: bytes, where: str) -> None:
    """Raises BadData for a vector whose decoding would make more values than its attributes may have."""
    octets = np.frombuffer(text, np.uint8)
    vector = Members(octets)
    for name, name_end, begin in vector:
        end = vector.past_value(begin)
        if text[name:name_end] != b'"attributes"' or text[begin : begin + 1] != b"{":
            continue
        attributes = Members(octets[begin:end], ODD_ATTRIBUTES_MAX)
        for label, label_end, value in attributes:
            opening = text[begin + value : begin + value + 1]
            count = attributes.count_elements(value) if opening == b"[" else 0
            size = (attributes.at if opening == b"[" else attributes.past_value(value)) - value
            most = SLICE_BYTES if opening == b"{" else TEXT_ENCODED_BYTES_MAX
            shown_name = shown(text[begin + label : begin + label_end].decode(errors="replace"))
            if text[begin + label : begin + label_end] == b'"vector"':
                most = COMPONENTS_BYTES_MAX
            elif count > ARRAY_ELEMENTS_MAX:
                raise BadData(
                    f"{where}.{shown_name}: the array has {count} elements; the limit is {ARRAY_ELEMENTS_MAX}"
                )
            if size > most:
                raise BadData(f"{where}.{shown_name} has {size} bytes; it may have at most {most}")


def plain_value(raw: msgspec.Raw, where: str) -> Any:
    """An attribute's value, which is not checked yet. Raises BadData for an array that is too large to be decoded."""
    if len(memoryview(raw)) > SLICE_BYTES and bytes(memoryview(raw)[:1]) == b"[":
        # Only texts make so long an array, and nothing else is decoded: what nests in it could be of any number.
        try:
            return _TEXTS.decode(raw)
        except msgspec.MsgspecError as error:
            raise BadData(f"{where}: an array of more than {SLICE_BYTES} bytes must be of strings: {error}") from None
    # The decoder refuses a number beyond the range of a double. As infinity, it gets the error of our own check.
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return float("inf")
