"""Reads YAML files field by field, by name and type, so that every error message names the line.

All scalars are kept as text. The code that takes a field decides how to parse it, as in Prometheus, where labels may be
written without quotes. Like Prometheus, this refuses unknown fields and duplicate keys.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from coordinator import regular_files
from coordinator.regular_files import NotReadable
from shared.durations import parse_duration_ms
from shared.errors import ConfigError

FILE_BYTES_MAX = 16 << 20
DEPTH_MAX = 50
NODES_MAX = 1_000_000
"""The most values of one file. Values that an alias refers to count again."""
SHOWN_CHARS = 100

T = TypeVar("T")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE, _FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")
_WHOLE = re.compile(r"\d{1,15}", re.ASCII)
_SIZE = re.compile(r"(\d{1,12})([KMGTPE]i?)?B?", re.ASCII)
_SIZE_POWERS = {unit: power for power, unit in enumerate("KMGTPE", 1)}


class Fields(dict[str, Any]):
    """A mapping. `line`: the line where it begins. `lines`: key → line. Lines are counted from 1."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class Items(list[Any]):
    """A list. `line`: the line where it begins. `lines`: the line of each item."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def read(path: Path, what: str) -> bytes:
    """The content of a regular file of limited size. Raises ConfigError, whose text begins with `what`."""
    try:
        return regular_files.content(path, FILE_BYTES_MAX)
    except NotReadable as why:
        raise ConfigError(f"{what} {regular_files.shown(path)} {why}") from None


def parse(content: bytes, path: str | Path) -> Section:
    """Parse a file that must be a mapping. A file without a document is an empty mapping. Raises ConfigError."""
    document = _document(content, path)
    if document is None:
        document = Fields(1)
    if not isinstance(document, Fields):
        raise ConfigError(f"{path}: the file is {_kind(document)}; it must be a mapping of fields")
    return Section(document, path)


def parse_list(content: bytes, path: str | Path) -> list[Section]:
    """Parse a file that must be a list of mappings. A file without a document is an empty list. Raises ConfigError."""
    document = _document(content, path)
    if document is None:
        document = Items(1)
    if not isinstance(document, Items):
        raise ConfigError(f"{path}: the file is {_kind(document)}; it must be a list of mappings")
    return _sections(document, path, "", lambda text: ConfigError(f"{path}: the file {text}"))


def _document(content: bytes, path: str | Path) -> Any:
    try:
        return _Builder(path).build(yaml.parse(content, _LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(f"{path}: {where}{getattr(error, 'problem', None) or 'not YAML'}") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None


def _sections(items: Items, path: str | Path, where: str, wrong: Callable[[str], ConfigError]) -> list[Section]:
    for index, value in enumerate(items):
        if not isinstance(value, Fields):
            raise wrong(f"has {_kind(value)} as its item {index}; it must be a list of mappings")
    return [Section(value, path, f"{where}[{index}]") for index, value in enumerate(items)]


class _Builder:
    """Builds values from the parser's events. It is not recursive, so that deep nesting is refused before it can
    overflow the stack."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._anchors: dict[str, Any] = {}
        self._nodes = 0

    def build(self, events: Iterator[Any]) -> Any:
        open_nodes: list[tuple[Fields | Items, str | None]] = []
        keys: list[str | None] = []  # for each open node, the key whose value comes next
        documents: list[Any] = []
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.events.DocumentStartEvent) and documents:
                raise self._error(line, "a second document begins; the file must have one")
            if isinstance(event, yaml.events.CollectionEndEvent):
                keys.pop()
                value, anchor = open_nodes.pop()
                if anchor is not None:
                    self._anchors[anchor] = value
                continue
            if not isinstance(event, yaml.events.NodeEvent):
                continue
            value = self._value(event, line)
            parent = open_nodes[-1][0] if open_nodes else None
            if parent is None:
                documents.append(value)
            elif isinstance(parent, Items):
                parent.append(value)
                parent.lines.append(line)
            elif keys[-1] is None:
                keys[-1] = self._key(parent, event, value, line)
                continue
            else:
                key, keys[-1] = keys[-1], None
                self._put(parent, key, value, line)
            if isinstance(event, yaml.events.CollectionStartEvent):
                if len(open_nodes) >= DEPTH_MAX:
                    raise self._error(line, f"values are nested more than {DEPTH_MAX} deep")
                open_nodes.append((value, event.anchor))
                keys.append(None)
        return documents[0] if documents else None

    def _value(self, event: Any, line: int) -> Any:
        if isinstance(event, yaml.events.AliasEvent):
            name = str(event.anchor)
            if name not in self._anchors:
                raise self._error(line, f"the alias {name[:SHOWN_CHARS]!r} stands for nothing before it")
            value = self._anchors[name]
            self._count(_size(value, NODES_MAX - self._nodes), line)
            return value
        self._count(1, line)
        if isinstance(event, yaml.events.MappingStartEvent):
            return Fields(line)
        if isinstance(event, yaml.events.SequenceStartEvent):
            return Items(line)
        value = None if event.implicit[0] and event.value in _NULLS else event.value
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _count(self, more: int, line: int) -> None:
        self._nodes += more
        if self._nodes > NODES_MAX:
            raise self._error(line, f"the file has more than {NODES_MAX} values, with those that aliases stand for")

    def _key(self, parent: Fields, event: Any, value: Any, line: int) -> str:
        if not isinstance(event, yaml.events.ScalarEvent) or value is None:
            raise self._error(line, "a key must be text")
        if value in parent and value in parent.lines:
            raise self._error(line, f"{value[:SHOWN_CHARS]!r} is given twice")
        parent.lines[value] = line
        return str(value)

    def _put(self, parent: Fields, key: str, value: Any, line: int) -> None:
        if key != "<<":
            parent[key] = value
            return
        del parent.lines[key]  # a merge key adds only keys that the mapping does not have itself
        for merged in value if isinstance(value, Items) else [value]:
            if not isinstance(merged, Fields):
                raise self._error(line, "what << merges must be a mapping")
            for name, content in merged.items():
                parent.setdefault(name, content)

    def _error(self, line: int, text: str) -> ConfigError:
        return ConfigError(f"{self._path}: line {line}: {text}")


def _size(value: Any, most: int) -> int:
    """The number of values in this value, including itself. Counting stops above `most`."""
    count, uncounted = 0, [value]
    while uncounted and count <= most:
        next_value = uncounted.pop()
        count += 1
        if isinstance(next_value, Fields):
            uncounted.extend(next_value.values())
        elif isinstance(next_value, Items):
            uncounted.extend(next_value)
    return count


class Section:
    """A mapping whose fields are taken by name. `where`: its name within the file, such as `alerting`.

    Every method raises ConfigError, which names the file, the line and the field, if the field does not have the type
    that the method expects. `finish` refuses fields that were not taken.
    """

    def __init__(self, fields: Fields, path: str | Path, where: str = "") -> None:
        self.fields = fields
        self.path = path
        self.where = where
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def error(self, text: str, name: str = "") -> ConfigError:
        """An error about a field, or about the whole section."""
        line = self.fields.lines.get(name, self.fields.line)
        field = ".".join(part for part in (self.where, name) if part)
        return ConfigError(f"{self.path}: line {line}: {field}{': ' if field else ''}{text}")

    def take(self, name: str) -> Any:
        """The value of a field: text, Fields, Items, or None if it is missing or null."""
        self._known.append(name)
        return self.fields.get(name)

    def text(self, name: str, default: str = "") -> str:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(f"is {_kind(value)}; it must be text", name)
        return value

    def required(self, name: str) -> str:
        """The text of a field that must exist and not be empty."""
        text = self.text(name)
        if not text:
            raise self.error(f"{name} is missing")
        return text

    def _read(self, name: str, default: T, read: Callable[[str], T], expected: str) -> T:
        text = self.text(name, "\0")
        if text == "\0":
            return default
        try:
            return read(text)
        except (ValueError, KeyError):
            raise self.error(f"is {text[:SHOWN_CHARS]!r}; it must be {expected}", name) from None

    def boolean(self, name: str, default: bool = False) -> bool:
        booleans = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
        return self._read(name, default, lambda text: booleans[text.lower()], "true or false")

    def whole(self, name: str, default: int = 0) -> int:
        return self._read(name, default, _whole, "a whole number, 0 or more")

    def duration_ms(self, name: str, default: int = 0) -> int:
        return self._read(name, default, parse_duration_ms, "a duration such as 30s or 1h30m")

    def size_bytes(self, name: str, default: int = 0) -> int:
        return self._read(name, default, _size_bytes, "a size such as 10MB")

    def one_of(self, name: str, choices: Collection[str], default: str) -> str:
        text = self.text(name, default)
        if text not in choices:
            raise self.error(f"is {text[:SHOWN_CHARS]!r}; it must be one of {', '.join(choices)}", name)
        return text

    def items(self, name: str) -> Items:
        value = self.take(name)
        if value is None:
            return Items(self.fields.line)
        if not isinstance(value, Items):
            raise self.error(f"is {_kind(value)}; it must be a list", name)
        return value

    def texts(self, name: str) -> list[str]:
        texts = self.items(name)
        for text in texts:
            if not isinstance(text, str):
                raise self.error(f"has {_kind(text)}; it must be a list of texts", name)
        return list(texts)

    def mapping(self, name: str) -> dict[str, str]:
        """A mapping of names to texts, such as labels. null is an empty text."""
        value = self.take(name)
        if value is None:
            return {}
        if not isinstance(value, Fields):
            raise self.error(f"is {_kind(value)}; it must be a mapping of names to texts", name)
        for key, text in value.items():
            if text is not None and not isinstance(text, str):
                raise self.error(f"{key[:SHOWN_CHARS]!r} is {_kind(text)}; it must be text", name)
        return {key: text or "" for key, text in value.items()}

    def section(self, name: str) -> Section | None:
        """The mapping with this name, or None."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, Fields):
            raise self.error(f"is {_kind(value)}; it must be a mapping", name)
        return Section(value, self.path, f"{self.where}.{name}" if self.where else name)

    def sections(self, name: str) -> list[Section]:
        """The mappings of a list."""
        within = f"{self.where}.{name}" if self.where else name
        return _sections(self.items(name), self.path, within, lambda text: self.error(text, name))

    def finish(self) -> None:
        """Raises ConfigError for a field that was not taken. The error names the most similar known field."""
        for name in self.fields:
            if name not in self._known:
                similar = difflib.get_close_matches(name[:SHOWN_CHARS], self._known, n=1)
                hint = f"did you mean {similar[0]}?" if similar else f"known are {', '.join(sorted(set(self._known)))}"
                raise self.error(f"unknown field {name[:SHOWN_CHARS]!r}; {hint}", name)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return "a mapping" if isinstance(value, Fields) else "a list" if isinstance(value, Items) else "text"


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _size_bytes(text: str) -> int:
    """Bytes of a size such as 10MB; units are powers of 1024, as Prometheus reads them."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    power = _SIZE_POWERS[match[2][0]] if match[2] else 0
    return int(match[1]) * 1024**power
