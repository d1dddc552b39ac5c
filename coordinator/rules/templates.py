"""Templates of labels and annotations: Go's text/template with Prometheus's functions.

https:

prometheus.io/docs/prometheus/latest/configuration/template_reference/. A template is bounded in its size, its steps,
its output and its queries, so the worst template of the allowed size costs some tenths of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from coordinator.rules import template_syntax as syntax
from coordinator.rules.go_text import GoTime, text_of
from coordinator.rules.template_functions import FUNCTIONS, LAZY, Call, Sample, require_size
from coordinator.rules.template_syntax import Node, Operand, Pipeline, TemplateError

__all__ = ["Sample", "Surroundings", "Template", "TemplateError"]

STEPS_MAX = 20_000
OUTPUT_CHARS_MAX = 256 << 10
MADE_CHARS_MAX = 4 << 20
"""The limit on the texts that functions return, including those that are not part of the output."""
QUERIES_MAX = 20
PARSED_MAX = 4096
VARIABLES = ("$labels", "$externalLabels", "$externalURL", "$value")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all alerts of an evaluation share. `query`: returns the vector of an expression at the time of the
    evaluation; may raise ValueError. `deadline`: of `time.monotonic()`, after which no template continues."""

    query: Callable[[str], list[Sample]]
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""
    now_s: float = 0.0
    deadline: float = float("inf")

    def require_time(self) -> None:
        """Raises TemplateError after the deadline."""
        if time.monotonic() > self.deadline:
            raise TemplateError("the templates of this rule take too long; expand fewer, or with fewer queries")


class _Jump(Exception):
    def __init__(self, kind: str) -> None:
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template; `constant`: its text where it has no action."""

    nodes: Sequence[Node]
    constant: str | None

    @staticmethod
    def of(text: str) -> Template:
        """Raises TemplateError."""
        if "{{" not in text:
            return Template((), text)
        return _parsed(text)

    def expand(self, labels: Mapping[str, str], value: float, around: Surroundings) -> str:
        """The text for an alert. Work for a thread if there are queries in it. Raises TemplateError."""
        if self.constant is not None:
            return self.constant
        around.require_time()
        run = _Run(labels, value, around)
        try:
            run.nodes(self.nodes)
        except _Jump:
            raise TemplateError("break or continue outside of range") from None
        except RecursionError:
            raise TemplateError("it is nested too deeply") from None
        except ValueError as error:  # a time that no text can show
            raise TemplateError(str(error)) from None
        return "".join(run.output)


@lru_cache(PARSED_MAX)
def _parsed(text: str) -> Template:
    return Template(tuple(syntax.parse(text, FUNCTIONS.keys() | LAZY, VARIABLES)), None)


class _Run:
    """One execution."""

    def __init__(self, labels: Mapping[str, str], value: float, around: Surroundings) -> None:
        external = dict(around.external_labels)
        self._data: dict[str, Any] = {
            "Labels": dict(labels),
            "ExternalLabels": external,
            "ExternalURL": around.external_url,
            "Value": value,
        }
        self._dot: Any = _Data(self._data)
        self._scopes: list[dict[str, Any]] = [
            {
                "$": self._dot,
                "$labels": self._data["Labels"],
                "$externalLabels": external,
                "$externalURL": around.external_url,
                "$value": value,
            }
        ]
        self._around = around
        self._steps = self._chars = self._made_chars = self._queries = 0
        self.output: list[str] = []

    def _step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise TemplateError(f"it takes more than {STEPS_MAX} steps")
        self._around.require_time()

    def nodes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._step()
            match node:
                case syntax.Text():
                    self._write(node.text)
                case syntax.Action():
                    value = self._pipeline(node.pipeline)
                    if not node.pipeline.names:
                        self._write("<no value>" if value is None else text_of(value))
                case syntax.Jump():
                    raise _Jump(node.kind)
                case syntax.Block(kind="range"):
                    self._range(node)
                case syntax.Block():
                    self._scopes.append({})
                    value = self._pipeline(node.pipeline)
                    dot = self._dot
                    if node.kind == "with" and is_true(value):
                        self._dot = value
                    self.nodes(node.body if is_true(value) else node.otherwise)
                    self._dot = dot
                    self._scopes.pop()

    def _write(self, text: str) -> None:
        self._chars += len(text)
        if self._chars > OUTPUT_CHARS_MAX:
            raise TemplateError(f"its text is longer than {OUTPUT_CHARS_MAX} characters")
        self.output.append(text)

    def _range(self, node: syntax.Block) -> None:
        self._scopes.append({})
        pipeline = node.pipeline
        value = self._pipeline(Pipeline(pipeline.commands))
        if isinstance(value, dict):
            pairs: list[tuple[Any, Any]] = sorted(value.items())
        elif isinstance(value, list):
            pairs = list(enumerate(value))
        elif value is None:
            pairs = []
        else:
            raise TemplateError(f"range can't iterate over {text_of(value)[:100]}")
        dot, depth = self._dot, len(self._scopes)
        for key, item in pairs:
            self._step()
            assigned = (item,) if len(pipeline.names) == 1 else (key, item)[: len(pipeline.names)]
            self._assign(pipeline, assigned)
            self._dot = item
            try:
                self.nodes(node.body)
            except _Jump as jump:
                if jump.kind == "break":
                    break
            finally:
                del self._scopes[depth:]
        self._dot = dot
        if not pairs:
            self.nodes(node.otherwise)
        self._scopes.pop()

    def _assign(self, pipeline: Pipeline, values: Sequence[Any]) -> None:
        for name, value in zip(pipeline.names, values, strict=True):
            scope = self._scopes[-1]
            if not pipeline.declares:
                scope = next(scope for scope in reversed(self._scopes) if name in scope)
            scope[name] = value

    def _pipeline(self, pipeline: Pipeline) -> Any:
        value: Any = None
        for number, command in enumerate(pipeline.commands):
            value = self._command(command, [value] if number else [])
        if pipeline.names:
            self._assign(pipeline, [value])
        return value

    def _command(self, command: tuple[Operand, ...], last: list[Any]) -> Any:
        self._step()
        head, operands = command[0], command[1:]
        if isinstance(head, syntax.Function):
            if head.name in LAZY:
                return self._lazy(head.name, operands, last)
            return self._call(head.name, [*map(self._value, operands), *last])
        if isinstance(head, syntax.Field) and (operands or last):
            return self._method(self._value(head.base), head.name, [*map(self._value, operands), *last])
        return self._value(head)

    def _lazy(self, name: str, operands: Sequence[Operand], last: list[Any]) -> Any:
        """`and` and `or` evaluate no more arguments than they need."""
        value: Any = None
        for operand in operands:
            value = self._value(operand)
            if is_true(value) == (name == "or"):
                return value
        return last[0] if last else value

    def _call(self, name: str, arguments: list[Any]) -> Any:
        function = FUNCTIONS[name]
        if not function.least <= len(arguments) <= function.most:
            raise TemplateError(f"wrong number of arguments for {name}: {len(arguments)}")
        if name == "query":
            self._queries += 1
            if self._queries > QUERIES_MAX:
                raise TemplateError(f"it asks more than {QUERIES_MAX} queries")
        try:
            require_size(arguments)
            call = Call(self._around.query, self._around.external_url, self._around.now_s)
            value = function.call(call, *arguments)
        except (ValueError, TypeError, OverflowError, ArithmeticError, KeyError, IndexError) as error:
            raise TemplateError(f"error calling {name}: {error}") from None
        if isinstance(value, str):
            self._made_chars += len(value)
            if self._made_chars > MADE_CHARS_MAX:
                raise TemplateError(f"its functions give texts of more than {MADE_CHARS_MAX} characters")
        return value

    def _value(self, operand: Operand) -> Any:
        self._step()
        match operand:
            case syntax.Literal():
                return operand.value
            case syntax.Dot():
                return self._dot
            case syntax.Variable():
                return next(scope[operand.name] for scope in reversed(self._scopes) if operand.name in scope)
            case syntax.Function():
                return self._lazy(operand.name, (), []) if operand.name in LAZY else self._call(operand.name, [])
            case syntax.Nested():
                return self._pipeline(operand.pipeline)
            case syntax.Field():
                return _field(self._value(operand.base), operand.name)

    def _method(self, base: Any, name: str, arguments: list[Any]) -> Any:
        if isinstance(base, GoTime) and name == "Format" and len(arguments) == 1 and isinstance(arguments[0], str):
            try:
                require_size(arguments)
                return base.format(arguments[0])
            except ValueError as error:
                raise TemplateError(f"error calling Format: {error}") from None
        raise TemplateError(f"{name} is no method that takes arguments")


class _Data:
    """The value of `.` at the beginning."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        return f"{{{' '.join(text_of(value) for value in self.fields.values())}}}"


def _field(base: Any, name: str) -> Any:
    if isinstance(base, dict):
        return base.get(name, "")
    if isinstance(base, _Data) and name in base.fields:
        return base.fields[name]
    if isinstance(base, Sample) and name in ("Labels", "Value"):
        return base.labels if name == "Labels" else base.value
    raise TemplateError(f"can't evaluate field {name} in {text_of(base)[:100]}")


def is_true(value: Any) -> bool:
    """Whether a value counts as true in Go's templates: not if it is zero or empty."""
    return bool(value)
