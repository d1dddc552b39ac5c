"""The text fields of a new collection, checked."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import msgspec

from coordinator.vectors.values import shown
from shared.errors import BadData
from shared.messages.vector_text import LANGUAGES, STOP_WORD_LANGUAGES, TextField

TEXT_FIELDS_MAX = 16


def checked(entries: Sequence[str | TextField]) -> tuple[str | TextField, ...]:
    """The fields as a collection stores them: as a name alone where all settings are the defaults, so that equal
    settings are equal however they were written. Raises BadData."""
    fields = [TextField(entry) if isinstance(entry, str) else entry for entry in entries]
    names = [field.field for field in fields]
    if len(set(names)) != len(names) or len(names) > TEXT_FIELDS_MAX or not all(names):
        raise BadData(
            f"textFields is {names[: TEXT_FIELDS_MAX + 1]}; it must be at most {TEXT_FIELDS_MAX} different names"
        )
    return tuple(_checked(field) for field in fields)


def _checked(field: TextField) -> str | TextField:
    where = f"textFields: {shown(field.field)}"
    if field.language and field.language not in LANGUAGES:
        nearest = difflib.get_close_matches(field.language.lower(), LANGUAGES, 1)
        meant = f"perhaps {nearest[0]!r}, " if nearest else ""
        raise BadData(
            f"{where} has the language {shown(field.language)}; it must be {meant}one of {', '.join(LANGUAGES)}"
        )
    if field.stemming and not field.language:
        raise BadData(f"{where} has stemming and no language; stemming needs a language")
    if field.stop_words and field.language not in STOP_WORD_LANGUAGES:
        raise BadData(
            f"{where} has stopWords and the language {shown(field.language)}; "
            f"there are stop words for {', '.join(STOP_WORD_LANGUAGES)}"
        )
    stemming = bool(field.language) if field.stemming is None else field.stemming
    settled = msgspec.structs.replace(field, stemming=stemming)
    return field.field if settled == TextField(field.field, stemming=False) else settled


def as_json(entries: Sequence[str | TextField]) -> list[str | dict[str, object]]:
    """The fields as requests give them."""
    return [entry if isinstance(entry, str) else msgspec.to_builtins(entry) for entry in entries]


def described(entries: Sequence[str | TextField]) -> str:
    """The fields in one line."""
    return ", ".join(str(entry) if isinstance(entry, str) else _described(entry) for entry in entries)


def _described(field: TextField) -> str:
    parts = [
        field.language,
        "stemming" if field.stemming else "",
        "stop words" if field.stop_words else "",
        "ASCII folding" if field.ascii_folding else "",
    ]
    return f"{field.field} ({', '.join(part for part in parts if part)})"
