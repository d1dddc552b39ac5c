"""The oracle's info(): labels from info series of the same job and instance, as the conformance scripts show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from shared.labels import METRIC_NAME, Labels
from shared.promql import ast
from tests.oracle_values import OracleError, Sample, as_labels

IDENTIFYING = ("instance", "job")
TARGET_INFO = ast.Matcher(METRIC_NAME, "=", "target_info")
ANY_INFO = ast.Matcher(METRIC_NAME, "=~", ".+_info")

Matches = Callable[[ast.Matcher, str], bool]


def complete(matchers: tuple[ast.Matcher, ...]) -> tuple[ast.Matcher, ...]:
    """With the metrics that are meant where no matcher says which: target_info, or all but those that are excluded."""
    of_name = [matcher for matcher in matchers if matcher.name == METRIC_NAME]
    if not of_name:
        return (*matchers, TARGET_INFO)
    return matchers if any(matcher.op in ("=", "=~") for matcher in of_name) else (*matchers, ANY_INFO)


def enriched(base: list[Sample], info: list[Sample], matchers: Iterable[ast.Matcher], matches: Matches) -> list[Sample]:
    """`info`: what `matchers` select at the time of the base samples."""
    of_name = [matcher for matcher in matchers if matcher.name == METRIC_NAME]
    of_data = [matcher for matcher in matchers if matcher.name != METRIC_NAME]
    found = []
    for sample in base:
        name = sample.labels.get(METRIC_NAME, "")
        if all(matches(matcher, name) for matcher in of_name):
            found.append(sample)
            continue
        key = as_labels(sample.labels, only=IDENTIFYING)
        belonging = [one for one in info if key and as_labels(one.labels, only=IDENTIFYING) == key]
        if any(not isinstance(one.value, float) for one in belonging):
            raise OracleError("info metrics must be floats")
        if belonging:
            wanted = {matcher.name for matcher in of_data}
            found.append(replace(sample, labels={**_data_labels(belonging, wanted), **sample.labels}))
        elif all(matches(matcher, "") for matcher in of_data):
            found.append(sample)
    return found


def _data_labels(info: list[Sample], wanted: set[str]) -> dict[str, str]:
    """Of each info metric the series with the newest sample; two metrics must not disagree."""
    labels: dict[str, str] = {}
    for name in {sample.labels[METRIC_NAME] for sample in info}:
        newest = max((sample for sample in info if sample.labels[METRIC_NAME] == name), key=lambda one: one.at_ms)
        for label, value in _to_add(newest, wanted):
            if labels.setdefault(label, value) != value:
                raise OracleError(f"conflicting label {label}")
    return labels


def _to_add(sample: Sample, wanted: set[str]) -> Labels:
    labels = as_labels(sample.labels, without=(METRIC_NAME, *IDENTIFYING))
    return tuple((name, value) for name, value in labels if not wanted or name in wanted)


def path_to_selector(expr: ast.Expr) -> tuple[ast.VectorSelector | ast.Subquery, ...]:
    """The first selector in an expression, after the subqueries around it, from the outermost on; () if there is
    none."""
    if isinstance(expr, ast.VectorSelector):
        return (expr,)
    for child in ast.children(expr):
        if path := path_to_selector(child):
            return (expr, *path) if isinstance(expr, ast.Subquery) else path
    return ()
