"""Unit tests of rules, in the format of promtool.

https:

prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/. Native histograms are not supported in them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coordinator.prometheus_config import yaml_fields
from coordinator.prometheus_config.yaml_fields import Section
from coordinator.rules import rule_files
from coordinator.rules.alerts import ALERT_NAME, Vector
from coordinator.rules.groups import Group
from coordinator.rules.memory_storage import MemoryStorage
from coordinator.rules.rule_files import Defaults, GroupDefinition
from coordinator.rules.series_notation import parse_labels, parse_points
from coordinator.rules.vectors import vector_of
from shared.durations import format_duration
from shared.errors import ConfigError, TriptychError
from shared.labels import Labels
from shared.promql.model import String

EVALUATIONS_MAX = 1_000_000
FUZZY_SHARE = 1e-12


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    labels: Labels
    annotations: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AlertTest:
    """The alerts of this name that should fire at a time."""

    time_ms: int
    name: str
    expected: list[ExpectedAlert]


@dataclass(frozen=True, slots=True)
class ExpressionTest:
    time_ms: int
    expr: str
    expected: list[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class RuleTest:
    """One element of `tests`. `series`: (labels, points an interval apart)."""

    name: str
    interval_ms: int
    series: list[tuple[Labels, list[float | None]]]
    alerts: list[AlertTest]
    expressions: list[ExpressionTest]
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""


@dataclass(frozen=True, slots=True)
class TestFile:
    __test__ = False  # it is none of pytest's

    rule_files: list[str]
    interval_ms: int
    group_order: list[str]
    tests: list[RuleTest]
    is_fuzzy: bool = False


def parse(content: bytes, path: Path) -> TestFile:
    """Raises ConfigError."""
    root = yaml_fields.parse(content, path)
    interval_ms = root.duration_ms("evaluation_interval") or 60_000
    file = TestFile(
        [str(path.parent / name) for name in root.texts("rule_files")],
        interval_ms,
        root.texts("group_eval_order"),
        [_test(section, interval_ms) for section in root.sections("tests")],
        root.boolean("fuzzy_compare"),
    )
    root.finish()
    return file


def _test(section: Section, interval_ms: int) -> RuleTest:
    test = RuleTest(
        section.text("name"),
        section.duration_ms("interval") or interval_ms,
        [_series(one) for one in section.sections("input_series")],
        [_alert_test(one) for one in section.sections("alert_rule_test")],
        [_expression_test(one) for one in section.sections("promql_expr_test")],
        section.mapping("external_labels"),
        section.text("external_url"),
    )
    section.finish()
    return test


def _series(section: Section) -> tuple[Labels, list[float | None]]:
    def no_histogram(word: str) -> list[float]:
        raise ValueError(f"{word[:50]!r} is a native histogram, which unit tests of rules do not have here")

    try:
        labels = parse_labels(section.required("series"))
        points = parse_points(section.text("values"), no_histogram)
    except (ValueError, SyntaxError) as error:
        raise section.error(str(error)) from None
    section.finish()
    return labels, points


def _alert_test(section: Section) -> AlertTest:
    name = section.required("alertname")
    expected = []
    for one in section.sections("exp_alerts"):
        labels = {**one.mapping("exp_labels"), ALERT_NAME: name}
        annotations = one.mapping("exp_annotations")
        one.finish()
        expected.append(ExpectedAlert(_sorted(labels), tuple(sorted(annotations.items()))))
    test = AlertTest(section.duration_ms("eval_time"), name, expected)
    section.finish()
    return test


def _expression_test(section: Section) -> ExpressionTest:
    expected = []
    for one in section.sections("exp_samples"):
        if one.take("histogram") is not None:
            raise one.error("native histograms are not served in unit tests of rules", "histogram")
        try:
            expected.append((parse_labels(one.text("labels")), float(one.text("value", "0"))))
        except (ValueError, SyntaxError) as error:
            raise one.error(str(error)) from None
        one.finish()
    test = ExpressionTest(section.duration_ms("eval_time"), section.required("expr"), expected)
    section.finish()
    return test


def _sorted(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, text) for name, text in labels.items() if text))


def failures(path: Path) -> Iterator[str]:
    """The failures, in words. Raises ConfigError for a file that cannot be used."""
    file = parse(yaml_fields.read(path, "the test file"), path)
    groups = rule_files.read_all(file.rule_files, Defaults(file.interval_ms))
    groups = [replace(group, interval_ms=file.interval_ms) for group in groups]
    order = {name: number for number, name in enumerate(file.group_order)}
    groups.sort(key=lambda group: order.get(group.name, len(order)))
    for number, test in enumerate(file.tests, 1):
        head = f"{test.name or f'test {number}'}: "
        for text in asyncio.run(_run(test, groups, file)):
            yield head + text


async def _run(test: RuleTest, definitions: Sequence[GroupDefinition], file: TestFile) -> list[str]:
    storage = MemoryStorage()
    for labels, points in test.series:
        for number, value in enumerate(points):
            if value is not None:
                storage.add(labels, number * test.interval_ms, value)
    slots = asyncio.Semaphore(1)
    groups = [
        Group(
            definition,
            storage,
            lambda rule, alerts: None,
            slots,
            external_labels=test.external_labels,
            external_url=test.external_url,
        )
        for definition in definitions
    ]
    times = [one.time_ms for one in test.alerts] + [one.time_ms for one in test.expressions]
    last_ms = max(times, default=0)
    if last_ms // file.interval_ms > EVALUATIONS_MAX:
        raise ConfigError(f"eval_time {format_duration(last_ms)} needs more than {EVALUATIONS_MAX} evaluations")
    texts: list[str] = []
    for time_ms in range(0, last_ms + 1, file.interval_ms):
        for group in groups:
            await group.evaluate(time_ms)
            for rule in group.rules:
                if rule.error:
                    texts.append(f"rule {rule.definition.name!r} at {format_duration(time_ms)}: {rule.error}")
        for alert_test in test.alerts:
            if time_ms <= alert_test.time_ms < time_ms + file.interval_ms:
                texts += _compared_alerts(alert_test, groups)
    for expression in test.expressions:
        texts += _compared(expression, storage, is_fuzzy=file.is_fuzzy)
    return texts


def _compared_alerts(test: AlertTest, groups: Sequence[Group]) -> list[str]:
    firing = [
        ExpectedAlert(alert.labels, tuple(sorted(alert.annotations.items())))
        for group in groups
        for rule in group.rules
        if rule.definition.kind == "alert" and rule.definition.name == test.name
        for alert in rule.alerts.active()
        if alert.state == "firing"
    ]
    if sorted(firing, key=_order) == sorted(test.expected, key=_order):
        return []
    return [
        f"alertname {test.name}, time {format_duration(test.time_ms)}:\n"
        f"        exp: {_alerts_shown(test.expected)}\n        got: {_alerts_shown(firing)}"
    ]


def _order(alert: ExpectedAlert) -> tuple[Labels, tuple[tuple[str, str], ...]]:
    return alert.labels, alert.annotations


def _alerts_shown(alerts: Sequence[ExpectedAlert]) -> str:
    if not alerts:
        return "no alert"
    return "; ".join(
        f"labels {_shown(one.labels)} annotations {_shown(one.annotations)}" for one in sorted(alerts, key=_order)
    )


def _shown(labels: Sequence[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name}={text!r}" for name, text in labels) + "}"


def _compared(test: ExpressionTest, storage: MemoryStorage, *, is_fuzzy: bool) -> list[str]:
    head = f"expr {test.expr!r}, time {format_duration(test.time_ms)}: "
    try:
        value = storage.value(test.expr, test.time_ms)
        vector = [] if isinstance(value, String) else vector_of(value)
    except TriptychError as error:
        return [head + str(error)]
    got, expected = sorted(vector), sorted(test.expected)
    is_equal = len(got) == len(expected) and all(
        mine[0] == theirs[0] and _equal(mine[1], theirs[1], is_fuzzy=is_fuzzy)
        for mine, theirs in zip(got, expected, strict=True)
    )
    return [] if is_equal else [f"{head}\n        exp: {_vector_shown(expected)}\n        got: {_vector_shown(got)}"]


def _equal(first: float, second: float, *, is_fuzzy: bool) -> bool:
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    return first == second or (is_fuzzy and math.isclose(first, second, rel_tol=FUZZY_SHARE))


def _vector_shown(vector: Vector) -> str:
    return ", ".join(f"{_shown(labels)} {value!r}" for labels, value in vector) or "nothing"
