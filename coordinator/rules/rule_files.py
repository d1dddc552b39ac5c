"""Rule files in Prometheus's format, read strictly: every mistake is named with file, line, group and rule.

https://prometheus.io/docs/prometheus/latest/configuration/recording_rules/ and alerting_rules/.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from coordinator import regular_files
from coordinator.prometheus_config import yaml_fields
from coordinator.prometheus_config.yaml_fields import Section
from coordinator.rules.templates import Template, TemplateError
from shared.errors import ConfigError, TriptychError
from shared.labels import METRIC_NAME
from shared.promql import parser, printer
from shared.promql.ast import Call, Expr, VectorSelector, children

FILES_MAX = 1_000
GROUPS_MAX = 5_000
RULES_MAX = 20_000
"""Limits for all files together."""
TEXTS_MAX = 256
"""The limit on the labels, and on the annotations, of one rule."""

Kind = Literal["record", "alert"]


@dataclass(frozen=True, slots=True)
class RuleDefinition:
    """One rule. `expr`: as it was written; `shown`: as it is shown, in PromQL's standard form. `labels` and
    `annotations`: those of an alert are templates; the labels of the group are among them. `reads`: the metrics that
    the rule may read, None: any."""

    kind: Kind
    name: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    for_ms: int = 0
    keep_firing_for_ms: int = 0
    shown: str = ""
    line: int = 0
    reads: frozenset[str] | None = None

    def identity(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """A key that is the same for a rule before and after a change of its file, and for rules that write the same
        series."""
        return self.kind, self.name, tuple(sorted(self.labels.items()))


@dataclass(frozen=True, slots=True)
class GroupDefinition:
    """Rules that are evaluated in order, at the same time. `file`: its name as it is shown. `limit`: on the series or
    alerts of each rule, 0: none."""

    file: str
    name: str
    interval_ms: int
    rules: tuple[RuleDefinition, ...]
    query_offset_ms: int = 0
    limit: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values of the configuration file for groups that do not set them."""

    interval_ms: int = 60_000
    query_offset_ms: int = 0


def paths_of(patterns: Sequence[str]) -> list[Path]:
    """The files that the patterns match, each once. A name without wildcards is included even if the file does not
    exist. Raises ConfigError."""
    paths: dict[Path, None] = {}
    for pattern in patterns:
        matching = sorted(islice(glob.iglob(pattern), FILES_MAX + 1))
        if not matching and not glob.has_magic(pattern):
            matching = [pattern]  # reading it says what is wrong
        paths |= dict.fromkeys(map(Path, matching))
        if len(paths) > FILES_MAX:
            raise ConfigError(f"rule_files: {pattern!r} and those before it match more than {FILES_MAX} files")
    return list(paths)


def read_all(patterns: Sequence[str], defaults: Defaults) -> list[GroupDefinition]:
    """The groups of all files that the patterns match. Raises ConfigError."""
    groups: list[GroupDefinition] = []
    rules = 0
    for path in paths_of(patterns):
        file_groups = parse(yaml_fields.read(path, "the rule file"), path, defaults)
        groups += file_groups
        rules += sum(len(group.rules) for group in file_groups)
        if len(groups) > GROUPS_MAX or rules > RULES_MAX:
            raise ConfigError(
                f"{regular_files.shown(path)} and the rule files before it have {len(groups)} groups and {rules} "
                f"rules; the limits are {GROUPS_MAX} and {RULES_MAX}"
            )
    return groups


def parse(content: bytes, path: str | Path, defaults: Defaults = Defaults()) -> list[GroupDefinition]:
    """The groups of one file. Raises ConfigError."""
    file = regular_files.shown(path)
    root = yaml_fields.parse(content, file)
    groups = [_group(section, file, defaults) for section in root.sections("groups")]
    root.finish()
    names: set[str] = set()
    for section, group in zip(root.sections("groups"), groups, strict=True):
        if group.name in names:
            raise section.error(f"the group name {group.name!r} is repeated in this file", "name")
        names.add(group.name)
    return groups


def _group(section: Section, file: str, defaults: Defaults) -> GroupDefinition:
    name = section.required("name")
    interval_ms = section.duration_ms("interval") or defaults.interval_ms
    offset_ms = section.duration_ms("query_offset", defaults.query_offset_ms)
    limit = section.whole("limit")
    labels = _labels(section)
    sections = section.sections("rules")
    section.finish()
    rules = []
    for number, rule in enumerate(sections, 1):
        rule.where = f"group {name!r}, rule {number}"
        rules.append(_rule(rule, labels))
    return GroupDefinition(file, name, interval_ms, tuple(rules), offset_ms, limit, labels)


def _rule(section: Section, group_labels: Mapping[str, str]) -> RuleDefinition:
    record, alert = section.text("record"), section.text("alert")
    if bool(record) == bool(alert):
        raise section.error(
            "both record and alert are set; it must be one of them"
            if record
            else "neither record nor alert is set; it must be one of them"
        )
    kind: Kind = "record" if record else "alert"
    section.where += f", {record or alert!r}"
    expr = section.required("expr")
    labels = {**group_labels, **_labels(section)}
    annotations = _texts(section, "annotations")
    for_ms, keep_ms = section.duration_ms("for"), section.duration_ms("keep_firing_for")
    section.finish()
    if kind == "record":
        _require_recording(section, record)
        if "{" in record or "}" in record:
            raise section.error(f"is {record!r}, which has braces; should it be in expr?", "record")
    else:
        _require_templates(section, labels, "labels")
        _require_templates(section, annotations, "annotations")
    try:
        tree = parser.parse(expr)
        shown = printer.to_text(tree)
    except (TriptychError, RecursionError) as error:
        raise section.error(f"could not parse the expression: {error or 'it is nested too deeply'}", "expr") from None
    has_queries = any("query" in text for text in (*labels.values(), *annotations.values()))
    return RuleDefinition(
        kind,
        record or alert,
        expr,
        labels,
        annotations,
        for_ms,
        keep_ms,
        shown,
        section.fields.line,
        None if has_queries else _reads(tree),
    )


def _reads(tree: Expr) -> frozenset[str] | None:
    """The metrics that an expression reads; None: any."""
    names: set[str] = set()
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, Call) and node.func == "info":
            return None
        if isinstance(node, VectorSelector):
            exact = [one.value for one in node.matchers if (one.name, one.op) == (METRIC_NAME, "=")]
            if not exact:
                return None
            names.update(exact)
        left.extend(children(node))
    return frozenset(names)


def _require_recording(section: Section, name: str) -> None:
    for field_name in ("annotations", "for", "keep_firing_for"):
        if field_name in section and section.fields[field_name] not in ({}, "0", "0s"):
            raise section.error("is for alerts; a recording rule has none", field_name)
    if not _is_utf8(name):
        raise section.error(f"is {name!r}; it must be UTF-8", "record")


def _labels(section: Section) -> dict[str, str]:
    labels = _texts(section, "labels")
    if METRIC_NAME in labels:
        raise section.error(f"{METRIC_NAME!r} is not a label that a rule may set; the name is in record", "labels")
    return labels


def _texts(section: Section, name: str) -> dict[str, str]:
    texts = section.mapping(name)
    if len(texts) > TEXTS_MAX:
        raise section.error(f"has {len(texts)} names; it may have {TEXTS_MAX}", name)
    for key, text in texts.items():
        if not key or not _is_utf8(key):
            raise section.error(f"{key!r} is not a name", name)
        if not _is_utf8(text):
            raise section.error(f"{key!r} is not UTF-8", name)
    return texts


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_templates(section: Section, texts: Mapping[str, str], name: str) -> None:
    for key, text in texts.items():
        try:
            Template.of(text)
        except TemplateError as error:
            raise section.error(f"{key!r} is not a template: {error}", name) from None


def duplicates(groups: Sequence[GroupDefinition]) -> Iterator[tuple[RuleDefinition, int]]:
    """The rules with the same name and labels, whose results would overwrite each other, and how many there are."""
    counted: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[RuleDefinition]] = {}
    for group in groups:
        for rule in group.rules:
            counted.setdefault(rule.identity(), []).append(rule)
    for rules in counted.values():
        if len(rules) > 1:
            yield rules[0], len(rules)
