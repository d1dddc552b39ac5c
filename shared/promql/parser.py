"""Parses PromQL text into a typed tree.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/ (3.14). lark's LALR(1) parser reads grammar.lark;
tokens.py makes the tokens, and builder.py and selectors.py make the tree.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib import resources
from typing import Any, Final, cast

import lark
from lark import Lark, Token, UnexpectedInput, UnexpectedToken
from lark.lexer import Lexer

from shared import kernel_cache
from shared.errors import NotExecutable, ParseError
from shared.promql.ast import Expr, Matcher, VectorSelector
from shared.promql.builder import Builder
from shared.promql.durations import resolve_durations
from shared.promql.positions import Fault
from shared.promql.regex import WEIGHT_TOTAL_MAX, weight
from shared.promql.tokens import string, tokens
from shared.promql.types import Typed

__all__ = ["parse", "parse_selector", "resolve_durations"]

QUERY_BYTES_MAX: Final = 1 << 20
"""A longer query is refused without being parsed."""

CACHED_QUERIES: Final = 512
CACHED_LENGTH_MAX: Final = 4 << 10
"""A query up to this length is cached; its tree takes less than 200 KB, so the cache takes at most 100 MB."""
CACHED_SHORT_QUERIES: Final = 4096
SHORT_LENGTH_MAX: Final = 256
"""Of short ones more are cached, which take less than 13 KB each: to parse one takes 0.2 to 0.4 ms, in the coordinator
and again in a worker, and a thousand rules and panels are asked again and again."""


def parse(text: str) -> Expr:
    """The tree of a query, with its types checked.

    Raises ParseError for text that is not PromQL, and NotExecutable for an unknown function, a type error, or a query
    that is too deep or has too many tokens. The message begins with `line:column: parse error:`.
    """
    if len(text) <= SHORT_LENGTH_MAX:
        return _parse_short(text)
    if len(text) <= CACHED_LENGTH_MAX:
        return _parse_cached(text)
    return _parse(text)


def parse_selector(text: str) -> tuple[Matcher, ...]:
    """The matchers of a bare series selector (`match[]`). Raises ParseError for anything else."""
    try:
        expr = parse(text)
    except NotExecutable as error:
        raise ParseError(str(error)) from None
    bare = isinstance(expr, VectorSelector) and expr == VectorSelector(expr.name, expr.matchers)
    if not isinstance(expr, VectorSelector) or not bare:
        fault = Fault('expected a series selector such as up or {job="a"}, without modifiers', expr.span[0])
        raise fault.located(text)
    return expr.matchers


def _parse(text: str) -> Expr:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise Fault("query is not valid UTF-8", error.start).located(text) from None
    if size > QUERY_BYTES_MAX:
        fault = Fault(f"query is {size} bytes long, at most {QUERY_BYTES_MAX} are allowed", 0, executable=True)
        raise fault.located(text)
    try:
        typed = cast(Typed, _lark().parse(text))
        if typed.fault is not None:
            raise typed.fault
    except Fault as fault:
        raise fault.located(text) from None
    except UnexpectedInput as error:
        raise _unexpected(error, text).located(text) from None
    return typed.expr


_parse_short = lru_cache(maxsize=CACHED_SHORT_QUERIES)(_parse)
_parse_cached = lru_cache(maxsize=CACHED_QUERIES)(_parse)


class _Words(Lexer):
    __future_interface__ = 1  # lark's newer interface, which passes its state instead of the text

    def __init__(self, _conf: object) -> None:
        pass

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Token]:
        """The words. Raises Fault where patterns of matchers weigh too much together, before the last is compiled."""
        pattern_weight, is_pattern = 0, False
        for word in tokens(str(lexer_state.text.text)):
            if is_pattern and word.type == "STRING":
                pattern_weight += weight(string(word))
                if pattern_weight > WEIGHT_TOTAL_MAX:
                    text = f"regular expressions weigh more than {WEIGHT_TOTAL_MAX} together; use fewer repetitions"
                    raise Fault(text, word.start_pos or 0, executable=True)
            is_pattern = word.type in ("EQL_REGEX", "NEQ_REGEX")
            yield word


@lru_cache(maxsize=1)
def _lark() -> Lark:
    """Making its tables takes 65 ms, so they are kept beside the kernels, from where reading them takes 10 ms."""
    grammar = resources.files("shared.promql").joinpath("grammar.lark").read_text(encoding="utf-8")
    digest = hashlib.sha256(f"{grammar}{lark.__version__}{sys.version}".encode()).hexdigest()
    name = f"promql-{digest[:24]}"
    stored = kernel_cache.read(name, "tables")
    if stored is not None:
        # As a parser does that lark generates; another release may do it in another way.
        with suppress(AttributeError, TypeError, KeyError):
            return Lark._load_from_dict(**pickle.loads(stored), transformer=Builder())
    parser = Lark(grammar, parser="lalr", lexer=_Words, transformer=Builder(), maybe_placeholders=False)
    tables = io.BytesIO()
    parser.save(tables)
    kernel_cache.write(name, "tables", tables.getvalue())
    return parser


_OPERAND: Final = frozenset({"NUMBER", "DURATION", "STRING", "IDENT", "LPAR", "LBRACE", "AGGREGATOR"})
_OPERATOR: Final = frozenset({"ADD", "SUB", "MUL", "DIV", "EQLC", "AND", "OR"})
_LENGTH: Final = frozenset({"NUMBER", "DURATION", "LPAR", "STEP"})
_LABEL: Final = frozenset({"IDENT", "STRING", "GROUP_LEFT"})
_PLAIN: Final = {
    "RPAR": '")"',
    "LPAR": '"("',
    "RBRACE": '"}"',
    "LBRACE": '"{"',
    "RBRACKET": '"]"',
    "LBRACKET": '"["',
    "COMMA": '","',
    "COLON": '":"',
    "STRING": "a quoted string",
    "IDENT": "a label name",
    "NUMBER": "a number",
    "DURATION": "a duration",
    "EQL": '"=", "!=", "=~" or "!~"',
    "OFFSET": "offset",
    "BY": "by or without",
    "START": "start() or end()",
}


def _unexpected(error: UnexpectedInput, text: str) -> Fault:
    if not isinstance(error, UnexpectedToken):
        return Fault("unexpected input", error.pos_in_stream or 0)
    token: Token = error.token
    accepted = set(error.accepts or error.expected)
    if token.type == "$END":
        return Fault(f"unexpected end of input, expected {_expected(accepted)}", len(text))
    word = str(token) if len(token) <= 40 else token[:40] + "…"
    return Fault(f"unexpected {_kind(token)} {word!r}, expected {_expected(accepted)}", token.start_pos or 0)


def _kind(token: Token) -> str:
    kinds = {"IDENT": "identifier", "NUMBER": "number", "DURATION": "duration", "STRING": "string"}
    return kinds.get(token.type, "keyword" if token[0].isalpha() else "character")


def _expected(accepted: set[str]) -> str:
    """The accepted tokens, in words: classes first, then single tokens that belong to none of these."""
    parts = []
    if accepted >= _OPERAND:
        parts.append("an expression")
        accepted = {"RPAR"} & accepted
    elif accepted >= _LABEL:
        parts.append("a label name")
        accepted &= {"RPAR"}
    elif accepted >= _LENGTH:
        parts.append("a duration such as 5m")
        accepted &= {"RBRACKET"}
    if accepted >= _OPERATOR:
        parts.append("an operator")
        accepted &= {"RPAR", "RBRACE", "COMMA", "LBRACE", "LBRACKET", "COLON", "OFFSET"}
    if "$END" in accepted or (not parts and not accepted):
        parts.append("the end of the query")
    parts += [text for name, text in _PLAIN.items() if name in accepted]
    return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
