"""Relabelling: what each action makes of a label set, and which rules are refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from coordinator.prometheus_config import relabelling, yaml_fields
from coordinator.prometheus_config.relabelling import VALUE_CHARS_MAX
from shared.errors import BadData, ConfigError

LABELS = {"a": "foo", "b": "bar", "c": "baz", "__meta_x": "1"}


def rules(*mappings: dict[str, Any]) -> tuple[relabelling.Rule, ...]:
    content = b"rules: " + orjson.dumps(mappings)
    return relabelling.read(yaml_fields.parse(content, "a.yml").sections("rules"))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"source_labels": ["a"], "regex": "f(.*)", "target_label": "d", "replacement": "ch${1}-$1"}, {"d": "choo-oo"}),
        ({"source_labels": ["a", "b"], "target_label": "d"}, {"d": "foo;bar"}),
        ({"source_labels": ["a", "b"], "separator": "", "target_label": "d"}, {"d": "foobar"}),
        ({"source_labels": ["a"], "regex": "oo", "target_label": "d", "replacement": "x"}, {}),
        ({"source_labels": ["a"], "regex": "(?P<n>.).*", "target_label": "x_$n", "replacement": "$$1"}, {"x_f": "$1"}),
        ({"source_labels": ["a"], "target_label": "d", "replacement": "$0,${1},$01,${01},$00,"}, {"d": "foo,foo,,,,"}),
        ({"source_labels": ["a"], "regex": "(?P<01>.).*", "target_label": "d", "replacement": "$01"}, {"d": "f"}),
        ({"target_label": "a", "replacement": ""}, {"a": None}),
        ({"source_labels": ["nothing"], "target_label": "d", "regex": "", "replacement": "empty"}, {"d": "empty"}),
        ({"action": "hashmod", "source_labels": ["c"], "target_label": "d", "modulus": 1000}, {"d": "976"}),
        ({"action": "labelmap", "regex": "__meta_(.*)", "replacement": "m_$1"}, {"m_x": "1"}),
        ({"action": "labeldrop", "regex": "a|b"}, {"a": None, "b": None}),
        ({"action": "labelkeep", "regex": "a|b"}, {"c": None, "__meta_x": None}),
        ({"action": "Uppercase", "source_labels": ["a"], "target_label": "a"}, {"a": "FOO"}),
        ({"action": "lowercase", "source_labels": ["a"], "target_label": "d"}, {"d": "foo"}),
        ({"action": "keep", "source_labels": ["a"], "regex": "f.*"}, {}),
        ({"action": "drop", "source_labels": ["a"], "regex": "f"}, {}),
        ({"action": "keepequal", "source_labels": ["a"], "target_label": "a"}, {}),
        ({"action": "dropequal", "source_labels": ["a"], "target_label": "b"}, {}),
    ],
)
def test_a_rule_changes_labels(rule: dict[str, Any], expected: dict[str, str | None]) -> None:
    changed = {name: value for name, value in {**LABELS, **expected}.items() if value is not None}
    assert relabelling.apply(LABELS, rules(rule)) == changed


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "keep", "source_labels": ["a"], "regex": "o+"},
        {"action": "drop", "source_labels": ["a", "b"], "regex": "foo;bar"},
        {"action": "keepequal", "source_labels": ["a"], "target_label": "b"},
        {"action": "dropequal", "source_labels": ["a"], "target_label": "a"},
    ],
)
def test_a_rule_drops_a_label_set(rule: dict[str, Any]) -> None:
    assert relabelling.apply(LABELS, rules(rule)) is None


def test_each_character_has_one_of_the_other_case() -> None:
    changed = rules(
        {"action": "uppercase", "source_labels": ["a"], "target_label": "a"},
        {"action": "lowercase", "source_labels": ["b"], "target_label": "b"},
    )
    assert relabelling.apply({"a": "Große", "b": "ΟΔΟΣ"}, changed) == {"a": "GROßE", "b": "οδοσ"}


def test_a_name_that_is_not_plain_is_not_set_where_only_plain_ones_may_be() -> None:
    both = rules(
        {"source_labels": ["a"], "target_label": "my.$1", "replacement": "x"},
        {"source_labels": ["a"], "target_label": "my_$1", "replacement": "y"},
    )
    assert relabelling.apply({"a": "b"}, both) == {"a": "b", "my.b": "x", "my_b": "y"}
    assert relabelling.apply({"a": "b"}, both, only_plain_names=True) == {"a": "b", "my_b": "y"}


def test_rules_follow_one_another_and_empty_values_are_no_labels() -> None:
    both = rules(
        {"source_labels": ["a"], "target_label": "t"},
        {"action": "keep", "source_labels": ["t"], "regex": "foo"},
        {"action": "labeldrop", "regex": "t"},
    )
    assert relabelling.apply({"a": "foo", "empty": ""}, both) == {"a": "foo"}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"action": "kep"}, "must be one of"),
        ({"action": "replace"}, "needs target_label"),
        ({"action": "hashmod", "target_label": "a"}, "needs modulus"),
        ({"regex": "(", "target_label": "a"}, "regex: is '('"),
        ({"action": "labeldrop", "regex": "a", "target_label": "b"}, "takes regex and nothing else"),
        ({"action": "keepequal", "source_labels": ["a"], "target_label": "b", "regex": "x"}, "nothing else"),
        ({"action": "lowercase", "target_label": "b", "replacement": "x"}, "takes no replacement"),
        ({"sourcelabels": ["a"], "target_label": "b"}, "did you mean source_labels?"),
    ],
)
def test_wrong_rules_are_named(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.yml: line 1: ") as refused:
        rules(rule)
    assert why in str(refused.value)


def test_what_a_rule_makes_is_bounded() -> None:
    doubled = rules(*[{"source_labels": ["a"], "target_label": "a", "replacement": "$1$1"}] * 40)
    with pytest.raises(BadData, match=f"at most {VALUE_CHARS_MAX}"):
        relabelling.apply({"a": "x"}, doubled)
