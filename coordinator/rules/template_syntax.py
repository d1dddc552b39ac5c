"""The syntax of Go's text/template, as far as labels and annotations of alerts use it.

https://pkg.go.dev/text/template. There is no `define`, `template`, `block` and `call`. No library of Go templates for
Python is maintained, so this is a small one, whose every part is bounded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

TEXT_CHARS_MAX = 64 << 10
DEPTH_MAX = 40


class TemplateError(Exception):
    """A text that is no template, or a template that fails when it is executed."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: object


@dataclass(frozen=True, slots=True)
class Dot:
    pass


@dataclass(frozen=True, slots=True)
class Variable:
    name: str


@dataclass(frozen=True, slots=True)
class Function:
    name: str


@dataclass(frozen=True, slots=True)
class Field:
    """`base.name`."""

    base: Operand
    name: str


@dataclass(frozen=True, slots=True)
class Nested:
    pipeline: Pipeline


Operand = Literal | Dot | Variable | Function | Field | Nested


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each with its arguments, of which the last one is the result of the command before. `names`: variables
    that get the result; `declares`: with `:=`."""

    commands: tuple[tuple[Operand, ...], ...]
    names: tuple[str, ...] = ()
    declares: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    pipeline: Pipeline


@dataclass(slots=True)
class Block:
    """`kind`: if, with or range; `otherwise`: what follows `else`."""

    kind: str
    pipeline: Pipeline
    body: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Jump:
    """`break` or `continue`."""

    kind: str


Node = Text | Action | Block | Jump


class _Token(NamedTuple):
    kind: str
    text: str


_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))
    |(?P<char>'(?:[^'\\\n]|\\.[^']*)')
    |(?P<variable>\$[A-Za-z_0-9]*)
    |(?P<field>\.[A-Za-z_]\w*)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>:=|[=(),|.])""",
    re.VERBOSE,
)
_CONSTANTS = {"true": True, "false": False, "nil": None}
_KEYWORDS = ("if", "else", "end", "range", "with", "break", "continue")
_NOT_SERVED = ("define", "template", "block", "call")


def parse(text: str, functions: Collection[str], variables: Collection[str]) -> list[Node]:
    """Raises TemplateError, also for functions and variables that do not exist."""
    if len(text) > TEXT_CHARS_MAX:
        raise TemplateError(f"it has {len(text)} characters; the limit is {TEXT_CHARS_MAX}")
    return _Parser(functions, variables).parse(text)


def _pieces(text: str) -> Iterator[str | list[_Token]]:
    """Texts between actions, and the tokens of each action. White space is trimmed at `{{-` and `-}}`."""
    at = 0
    trims = False
    while True:
        start = text.find("{{", at)
        text_before = text[at:] if start < 0 else text[at:start]
        if trims:
            text_before = text_before.lstrip()
        if start < 0:
            yield text_before
            return
        at = start + 2
        if text.startswith("-", at) and text[at + 1 : at + 2].isspace():
            text_before, at = text_before.rstrip(), at + 1
        yield text_before
        comment = re.compile(r"\s*/\*.*?\*/\s*?(\s-)?}}", re.DOTALL).match(text, at)
        if comment is not None:
            at, trims = comment.end(), comment[1] is not None
            continue
        tokens: list[_Token] = []
        while True:
            end = re.compile(r"\s*}}|\s-}}").match(text, at)
            if end is not None:
                at, trims = end.end(), "-" in end[0]
                break
            match = _TOKEN.match(text, at)
            if match is None:
                if at >= len(text):
                    raise TemplateError("an action is not closed with }}")
                raise TemplateError(f"unexpected {text[at : at + 10]!r} in an action")
            tokens.append(_Token(match.lastgroup or "", match[0]))
            at = match.end()
        yield tokens


class _Parser:
    def __init__(self, functions: Collection[str], variables: Collection[str]) -> None:
        self._functions = functions
        self._scopes: list[set[str]] = [{"$", *variables}]
        self._tokens: list[_Token] = []
        self._depth = 0
        self._loops = 0

    def parse(self, text: str) -> list[Node]:
        root: list[Node] = []
        # Open blocks: the block, where its nodes go now, and whether `else` without a condition was there.
        blocks: list[tuple[Block, list[Node], bool]] = []
        chained: list[int] = []  # how many blocks the `end` of each closes
        nodes = root
        for piece in _pieces(text):
            if isinstance(piece, str):
                if piece:
                    nodes.append(Text(piece))
                continue
            self._tokens = list(reversed(piece))
            self._skip()
            word = self._tokens[-1] if self._tokens else _Token("", "")
            if word.kind != "word" or word.text not in (*_KEYWORDS, *_NOT_SERVED):
                nodes.append(Action(self._whole_pipeline(declares=True)))
                continue
            self._next()
            if word.text in _NOT_SERVED:
                raise TemplateError(f"{word.text} is not served in the templates of rules")
            if word.text in ("if", "with", "range"):
                nodes = self._open(word.text, nodes, blocks)
                chained.append(1)
            elif word.text == "else":
                if not blocks or blocks[-1][2]:
                    raise TemplateError("unexpected else")
                block = blocks[-1][0]
                self._scopes.pop()
                declared = block.pipeline.names if block.pipeline.declares and block.kind != "range" else ()
                self._scopes.append(set(declared))
                blocks[-1] = (block, block.otherwise, True)
                nodes = block.otherwise
                if self._tokens:
                    inner = self._next()
                    if inner.text not in ("if", "with") or inner.text != block.kind:
                        raise TemplateError(f"unexpected {inner.text!r} after else")
                    nodes = self._open(inner.text, nodes, blocks)
                    chained[-1] += 1
            elif word.text == "end":
                if not blocks:
                    raise TemplateError("unexpected end")
                self._require_end()
                for _ in range(chained.pop()):
                    block = blocks.pop()[0]
                    self._loops -= block.kind == "range"
                    self._scopes.pop()
                nodes = blocks[-1][1] if blocks else root
            else:
                self._require_end()
                if not self._loops:
                    raise TemplateError(f"{word.text} outside of range")
                nodes.append(Jump(word.text))
        if blocks:
            raise TemplateError(f"{blocks[-1][0].kind} is not closed with end")
        return root

    def _open(self, kind: str, nodes: list[Node], blocks: list[tuple[Block, list[Node], bool]]) -> list[Node]:
        if len(blocks) >= DEPTH_MAX:
            raise TemplateError(f"blocks are nested more than {DEPTH_MAX} deep")
        self._scopes.append(set())
        block = Block(kind, self._whole_pipeline(declares=True, most=2 if kind == "range" else 1))
        self._loops += kind == "range"
        nodes.append(block)
        blocks.append((block, block.body, False))
        return block.body

    # Pipelines

    def _skip(self) -> None:
        while self._tokens and self._tokens[-1].kind == "space":
            self._tokens.pop()

    def _next(self) -> _Token:
        """Take the next token, and skip the white space after it."""
        if not self._tokens:
            raise TemplateError("an action ends too early")
        token = self._tokens.pop()
        self._skip()
        return token

    def _require_end(self) -> None:
        if self._tokens:
            raise TemplateError(f"unexpected {self._tokens[-1].text!r} in an action")

    def _whole_pipeline(self, *, declares: bool = False, most: int = 1) -> Pipeline:
        names, is_new = self._names(most) if declares else ((), False)
        pipeline = self._pipeline(names, is_new)
        self._require_end()
        return pipeline

    def _names(self, most: int) -> tuple[tuple[str, ...], bool]:
        """Variables before `:=` or `=`."""
        signs = [token.text for token in reversed(self._tokens) if token.kind == "sign"]
        before = signs[: signs.index(":=") if ":=" in signs else signs.index("=") if "=" in signs else 0]
        if not ({":=", "="} & set(signs)) or set(before) - {","}:
            return (), False
        names: list[str] = []
        while True:
            token = self._next()
            if token.kind != "variable":
                raise TemplateError(f"unexpected {token.text!r} before an assignment")
            names.append(token.text)
            sign = self._next()
            if sign.text in (":=", "="):
                break
            if sign.text != ",":
                raise TemplateError(f"unexpected {sign.text!r} before an assignment")
        if len(names) > most:
            raise TemplateError(f"{len(names)} variables are assigned at once")
        if sign.text == "=":
            for name in names:
                self._require_variable(name)
        return tuple(names), sign.text == ":="

    def _pipeline(self, names: tuple[str, ...] = (), declares: bool = False) -> Pipeline:
        with self._deeper():
            commands = [self._command()]
            while self._tokens and self._tokens[-1].text == "|":
                self._next()
                commands.append(self._command())
        for command in commands[1:]:
            if not isinstance(command[0], Function | Field):
                raise TemplateError("only a function can follow |")
        if declares:
            self._scopes[-1].update(names)
        return Pipeline(tuple(commands), names, declares)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise TemplateError(f"parentheses are nested more than {DEPTH_MAX} deep")
        yield
        self._depth -= 1

    def _command(self) -> tuple[Operand, ...]:
        operands: list[Operand] = []
        while self._tokens and self._tokens[-1].text not in ("|", ")"):
            operands.append(self._operand())
        if not operands:
            raise TemplateError("a command is missing")
        if len(operands) > 1 and not isinstance(operands[0], Function | Field):
            raise TemplateError("what is no function has arguments")
        return tuple(operands)

    def _operand(self) -> Operand:
        token = self._tokens.pop()
        operand: Operand
        match token.kind:
            case "string" | "char":
                operand = Literal(_unquoted(token))
            case "raw":
                operand = Literal(token.text[1:-1])
            case "number":
                operand = Literal(_number(token.text))
            case "variable":
                self._require_variable(token.text)
                operand = Variable(token.text)
            case "field":
                operand = Field(Dot(), token.text[1:])
            case "word" if token.text in _CONSTANTS:
                operand = Literal(_CONSTANTS[token.text])
            case "word":
                if token.text not in self._functions:
                    raise TemplateError(f"function {token.text!r} is not defined")
                operand = Function(token.text)
            case "sign" if token.text == ".":
                operand = Dot()
            case "sign" if token.text == "(":
                self._skip()
                operand = Nested(self._pipeline())
                if not self._tokens or self._tokens.pop().text != ")":
                    raise TemplateError("a parenthesis is not closed")
            case _:
                raise TemplateError(f"unexpected {token.text!r} in an action")
        while self._tokens and self._tokens[-1].kind == "field":
            operand = Field(operand, self._tokens.pop().text[1:])
        if self._tokens and self._tokens[-1].kind not in ("space", "sign"):
            raise TemplateError(f"unexpected {self._tokens[-1].text!r} behind {token.text!r}")
        self._skip()
        return operand

    def _require_variable(self, name: str) -> None:
        if not any(name in scope for scope in self._scopes):
            raise TemplateError(f"variable {name!r} is not defined")


def _unquoted(token: _Token) -> str | int:
    try:
        value = str(ast.literal_eval(token.text))
        value.encode()  # half of a surrogate pair is no character
    except (ValueError, SyntaxError):
        raise TemplateError(f"{token.text[:50]} is not a literal") from None
    if token.kind == "string":
        return value
    if len(value) != 1:
        raise TemplateError(f"{token.text[:50]} is not one character")
    return ord(value)


def _number(text: str) -> int | float:
    try:
        return int(text, 0) if re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|0|[1-9]\d{0,18})", text) else float(text)
    except ValueError:
        raise TemplateError(f"{text[:50]!r} is not a number") from None
