"""Settings of text fields, and queries in words."""

from __future__ import annotations

from functools import cache

import msgspec

from coordinator.vectors import decode, text_query, text_settings
from shared.messages.vector_text import Highlighting, TextField, TextQuery
from shared.messages.vectors import Collection
from tests.fuzz.target import Target
from worker.vectors.highlights import Highlighter
from worker.vectors.text import TextIndex


def _settings(data: bytes) -> None:
    """Settings that are taken can be used, and are the same when they are read again."""
    kept = text_settings.checked(decode.settings_from_json(data).textFields)
    again = msgspec.convert(text_settings.as_json(kept), list[str | TextField])
    assert text_settings.checked(again) == kept
    TextIndex(Collection(1, "c", 3, "l2", "f32", kept).text_fields())


_TEXTS = Collection(1, "c", 3, "l2", "f32", ("name", TextField("body", "english", True, True, True))).text_fields()
_ROW = {"name": "a b running d*", "body": "Running \u00e9t\u00e9 + a - b"}
_HIGHLIGHTING = Highlighting(("name", "body"), "<", ">", 20, 2, False)


@cache
def _index() -> TextIndex:
    """Has threads, which a process that is forked afterwards does not have: made where it is used."""
    made = TextIndex(_TEXTS)
    made.put(b"v", msgspec.msgpack.encode(_ROW))
    return made


def _text_query(data: bytes) -> None:
    """Every text is a query; what is highlighted is in the text."""
    text = data.decode(errors="ignore")
    for operator in ("or", "and"):
        clauses = text_query.parse(text, operator)
        text_query.check_cost(clauses, 2)
        asked = TextQuery((("name", 2.0), ("body", 1.0)), clauses)
        _index().search(asked, 3)
        for name, fragments in Highlighter(_TEXTS, asked, _HIGHLIGHTING).fragments(_ROW).items():
            for fragment in fragments:
                assert fragment.replace("<", "").replace(">", "").strip("\u2026 ") in _ROW[name]


_SETTINGS = [
    b'{"dimension":3,"metric":"l2","storage":"f16","textFields":["name"]}',
    b'{"dimension":3,"textFields":["a",{"field":"name","language":"english","stemming":true,"stopWords":true}]}',
]
_SETTING_TOKENS = (
    "dimension", "metric", "storage", "textFields", "field", "language", "stemming", "stopWords", "asciiFolding",
    "german", "tamil", "null", "true", "false",
)  # fmt: skip
_QUERIES = [b'+run "a b"~2 d* -e', b'\\-5 "running b" \xc3\xa9t*', b'"" * - + "a']
_QUERY_TOKENS = ('"', "~2", "*", "+", "-", "\\", "running", " ")

TARGETS = [
    Target("vector-settings", _settings, lambda: _SETTINGS, tokens=_SETTING_TOKENS),
    Target("vector-text-query", _text_query, lambda: _QUERIES, tokens=_QUERY_TOKENS),
]
