"""What a client is told of a body that is not decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.parsing.body_errors import explained
from shared.errors import MESSAGE_CHARS_MAX, BadData


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    first: int = 0
    other: str = ""


class Outer(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    top_level: int = 0
    items: list[Inner] | None = None
    by_name: dict[str, Inner] = {}
    any: Any = None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"toplevel": 1}', "unknown field `toplevel`; did you mean `topLevel`?"),
        ('{"x": 1}', "unknown field `x`; known are any, byName, items, topLevel"),
        (
            '{"items": [{}, {"frist": 1}]}',
            "unknown field `frist` - at `$.items[1]`; did you mean `first`?",
        ),
        (
            '{"byName": {"a": {"y": 1}}}',
            "unknown field `y` - at `$.byName[...]`; known are first, other",
        ),
        ('{"topLevel": "a"}', "Expected `int`, got `str` - at `$.topLevel`"),
        ("3", "Expected `object`, got `int`"),
    ],
)
def test_it_names_what_is_wrong_and_what_would_be_right(body: str, told: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as refused:
        msgspec.json.decode(body, type=Outer)
    assert explained(refused.value, Outer).removeprefix("Object contains ") == told


def test_a_name_as_long_as_a_body_is_not_told_whole() -> None:
    name = "n" * 1_000_000
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(f'{{"{name}": 1}}', type=Outer)
    assert len(explained(refused.value, Outer)) < 300
    assert len(explained(refused.value, int)) < 300
    assert len(str(BadData(name))) < MESSAGE_CHARS_MAX + 50 and str(BadData(name)).endswith("(of 1000000 characters)")
