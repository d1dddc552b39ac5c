"""The text part of a search request, in JSON or protobuf."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from coordinator.parsing.body_errors import explained_in_quotes
from coordinator.vectors.text_query import Operator, check_cost, parse
from coordinator.vectors.values import shown
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vector_text import Highlighting, TextClause, TextQuery
from shared.messages.vectors import Collection

QUERY_CHARS_MAX = 4096
FIELDS_MAX = 16
FIELD_CHARS_MAX = 4 * QUERY_CHARS_MAX
"""Characters of the query times the fields in which its words are looked up."""
BOOST_MAX = 1000.0
HIGHLIGHTED_MAX = 1000
"""The limit on results of a search with highlights."""
FRAGMENT_CHARS_MIN, FRAGMENT_CHARS_MAX = 20, 1000
FRAGMENTS_MAX = 10
TAG_CHARS_MAX = 64
HIGHLIGHT_CHARS_MAX = 4 << 20
"""Characters of all highlights of an answer together, if every other character is a word of its own."""

"""Characters of an error that may repeat a name of the request."""

T = TypeVar("T")


class _Highlight(msgspec.Struct, forbid_unknown_fields=True):
    fields: list[str] = []
    preTag: str = "<em>"
    postTag: str = "</em>"
    fragmentChars: int = 150
    fragments: int = 3
    escapeHtml: bool = True


class TextRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`text` of a search request in JSON."""

    query: str = ""
    field: str = ""
    fields: dict[str, float] | list[str] = []
    operator: Operator = "or"
    highlight: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TextSearch:
    """The text part of a request, checked as far as that needs no settings of the collection. `boosts`: field → boost;
    empty for all text fields of the collection. `label`: the part of the request that names the fields."""

    query: str
    clauses: tuple[TextClause, ...]
    boosts: dict[str, float]
    label: str
    highlight: _Highlight | None

    def asked(self, collection: Collection) -> TextQuery:
        """The query as the workers get it. Raises BadData for fields that are no text fields of the collection, or too
        many for the query."""
        boosts = self.boosts or dict.fromkeys(collection.text_fields(), 1.0)
        _require_known(boosts, collection, self.label)
        check_cost(self.clauses, len(boosts))
        if len(self.query) * len(boosts) > FIELD_CHARS_MAX:
            raise BadData(
                f"text.query has {len(self.query)} characters for {len(boosts)} fields; "
                f"their number times that of the fields may be at most {FIELD_CHARS_MAX}"
            )
        return TextQuery(tuple(boosts.items()), self.clauses)

    def highlighting(self, collection: Collection, k: int) -> Highlighting | None:
        """How the results' texts are highlighted, None if they are not. Raises BadData for fields that are no text
        fields of the collection, and if the highlights of `k` results could be too long."""
        highlight = self.highlight
        if highlight is None:
            return None
        fields = tuple(dict.fromkeys(highlight.fields)) or tuple(self.boosts) or tuple(collection.text_fields())
        _require_known(fields, collection, "text.highlight.fields")
        if k > HIGHLIGHTED_MAX:
            raise BadData(f"k is {k}; a search with text.highlight gives at most {HIGHLIGHTED_MAX} results")
        worst = highlight.fragmentChars * (2 + len(highlight.preTag) + len(highlight.postTag)) // 2
        if k * len(fields) * highlight.fragments * worst > HIGHLIGHT_CHARS_MAX:
            raise BadData(
                f"the highlights of {k} results in {len(fields)} fields could have more than {HIGHLIGHT_CHARS_MAX} "
                "characters; lower k, text.highlight.fragments or text.highlight.fragmentChars"
            )
        return Highlighting(
            fields,
            highlight.preTag,
            highlight.postTag,
            highlight.fragmentChars,
            highlight.fragments,
            highlight.escapeHtml,
        )


def _require_known(names: Any, collection: Collection, label: str) -> None:
    text_fields = collection.text_fields()
    unknown = next((name for name in names if name not in text_fields), None)
    if unknown is not None or not text_fields:
        raise BadData(
            f"{label} is {shown(unknown or '')}; "
            f"the text fields of the collection {collection.name!r}: {', '.join(text_fields) or 'none'}"
        )


def from_json(text: TextRequest) -> TextSearch:
    fields = text.fields if isinstance(text.fields, dict) else dict.fromkeys(text.fields, 1.0)
    highlight = None if text.highlight is None else converted(text.highlight, _Highlight, "text.highlight")
    return _checked(text.query, text.operator, text.field, fields, highlight)


def converted(content: dict[str, Any], kind: type[T], label: str) -> T:
    """An object of a request as a `kind`. Its names may be in snake_case. Raises BadData that names it."""
    try:
        return msgspec.convert({_camel(name): value for name, value in content.items()}, kind)
    except msgspec.ValidationError as error:
        raise BadData(f"{label} is not right: {explained_in_quotes(error, kind, label)}") from error


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join([other.capitalize() for other in others])


def from_protobuf(text: vector_pb2.TextQuery) -> TextSearch:
    highlight = None
    if text.HasField("highlight"):
        given = text.highlight
        highlight = _Highlight(
            list(given.fields),
            given.pre_tag if given.HasField("pre_tag") else _Highlight().preTag,
            given.post_tag if given.HasField("post_tag") else _Highlight().postTag,
            given.fragment_chars or _Highlight().fragmentChars,
            given.fragments or _Highlight().fragments,
            given.escape_html if given.HasField("escape_html") else True,
        )
    if text.operator not in ("", "or", "and"):
        raise BadData(f"text.operator is {shown(text.operator)}; it must be 'or' or 'and'")
    operator: Operator = "and" if text.operator == "and" else "or"
    return _checked(text.query, operator, text.field, dict(text.fields), highlight)


def _checked(
    query: str, operator: Operator, field: str, fields: dict[str, float], highlight: _Highlight | None
) -> TextSearch:
    if not query:
        raise BadData("text.query is empty; it must have at least one word")
    if len(query) > QUERY_CHARS_MAX:
        raise BadData(f"text.query has {len(query)} characters; at most {QUERY_CHARS_MAX} are allowed")
    if field and fields:
        raise BadData("text.field and text.fields are both given; a search has one of them")
    if len(fields) > FIELDS_MAX:
        raise BadData(f"text.fields has {len(fields)} entries; at most {FIELDS_MAX} are allowed")
    for name, boost in fields.items():
        if not (math.isfinite(boost) and 0 < boost <= BOOST_MAX):
            raise BadData(
                f"text.fields: the boost of {shown(name)} is {boost}; it must be above 0, up to {BOOST_MAX:g}"
            )
    if highlight is not None:
        _check_highlight(highlight)
    boosts = {field: 1.0} if field else fields
    return TextSearch(query, parse(query, operator), boosts, "text.field" if field else "text.fields", highlight)


def _check_highlight(highlight: _Highlight) -> None:
    if len(highlight.fields) > FIELDS_MAX:
        raise BadData(f"text.highlight.fields has {len(highlight.fields)} entries; at most {FIELDS_MAX} are allowed")
    for name, tag in (("preTag", highlight.preTag), ("postTag", highlight.postTag)):
        if len(tag) > TAG_CHARS_MAX:
            raise BadData(f"text.highlight.{name} has {len(tag)} characters; at most {TAG_CHARS_MAX} are allowed")
    for name, value, least, most in (
        ("fragmentChars", highlight.fragmentChars, FRAGMENT_CHARS_MIN, FRAGMENT_CHARS_MAX),
        ("fragments", highlight.fragments, 1, FRAGMENTS_MAX),
    ):
        if not least <= value <= most:
            raise BadData(f"text.highlight.{name} is {value}; it must be {least} to {most}")
