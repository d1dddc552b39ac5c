"""Rule files: what they may say, and how mistakes are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordinator.rules import rule_files
from coordinator.rules.rule_files import Defaults, duplicates, parse
from shared.errors import ConfigError

WHOLE = b"""
groups:
  - name: node
    interval: 30s
    limit: 10
    query_offset: 5s
    labels: {team: infra}
    rules:
      - record: job:up:sum
        expr: sum by (job) (up)
        labels: {severity: 1}
      - alert: Down
        expr: up == 0 and on (job) some_metric
        for: 5m
        keep_firing_for: 1m
        labels: {team: web, severity: page}
        annotations: {summary: "{{ $labels.instance }} is down"}
  - name: other
    rules: []
"""


def test_a_file_has_groups_of_rules() -> None:
    node, other = parse(WHOLE, "r.yml", Defaults(60_000, 2_000))
    assert (node.name, node.interval_ms, node.limit, node.query_offset_ms) == ("node", 30_000, 10, 5_000)
    assert (other.interval_ms, other.query_offset_ms, other.rules) == (60_000, 2_000, ())
    recorded, alert = node.rules
    assert (recorded.kind, recorded.name, recorded.labels) == (
        "record",
        "job:up:sum",
        {"team": "infra", "severity": "1"},
    )
    assert (alert.kind, alert.for_ms, alert.keep_firing_for_ms) == ("alert", 300_000, 60_000)
    assert alert.labels == {"team": "web", "severity": "page"}
    assert alert.shown == "up == 0 and on (job) some_metric"
    assert recorded.reads == {"up"} and alert.reads == {"up", "some_metric"}


@pytest.mark.parametrize("expr", ['{job="a"}', "info(up)", '{__name__=~"a.*"}'])
def test_an_expression_that_may_read_anything_says_so(expr: str) -> None:
    text = f"groups: [{{name: g, rules: [{{record: a, expr: '{expr}'}}]}}]"
    assert parse(text.encode(), "r.yml")[0].rules[0].reads is None


def rule(text: str) -> str:
    return f"groups:\n- name: g\n  rules:\n  - {text}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("groups: [{rules: []}]", "groups[0]: name is missing"),
        ("groups: [{name: a}, {name: a}]", "the group name 'a' is repeated"),
        ("group: []", "did you mean groups?"),
        ("groups: [{name: a, intervall: 1m}]", "did you mean interval?"),
        ("groups: [{name: a, interval: x}]", "it must be a duration"),
        ("groups: [{name: a, limit: -1}]", "it must be a whole number"),
        (rule("{expr: up}"), "r.yml: line 4: group 'g', rule 1: neither record nor alert is set"),
        (rule("{alert: a, record: b, expr: up}"), "both record and alert are set"),
        (rule("{alert: a}"), "group 'g', rule 1, 'a': expr is missing"),
        (rule("{alert: a, expr: up ==}"), "group 'g', rule 1, 'a'.expr: could not parse the expression: 1:"),
        (rule("{record: a, expr: up, for: 1m}"), "for: is for alerts"),
        (rule("{record: a, expr: up, keep_firing_for: 1m}"), "keep_firing_for: is for alerts"),
        (rule("{record: a, expr: up, annotations: {a: b}}"), "annotations: is for alerts"),
        (rule("{record: 'a{b}', expr: up}"), "which has braces; should it be in expr?"),
        (rule("{alert: a, expr: up, labels: {__name__: b}}"), "'__name__' is not a label"),
        (rule("{alert: a, expr: up, labels: {'': b}}"), "'' is not a name"),
        (rule("{alert: a, expr: up, labels: {a: '{{ $x }}'}}"), "labels: 'a' is not a template: variable '$x'"),
        (rule("{alert: a, expr: up, annotations: {a: '{{ x }}'}}"), "'a' is not a template: function 'x'"),
        (rule("{alert: a, expr: up, fore: 1m}"), "did you mean for?"),
        (rule("{alert: a, expr: " + "(" * 3000 + "up}"), "could not parse"),
    ],
)
def test_a_mistake_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text.encode(), "r.yml")
    assert named in str(refused.value)


def test_patterns_match_files_once(tmp_path: Path) -> None:
    for name in ("a.yml", "b.yml"):
        (tmp_path / name).write_text("groups: [{name: g, rules: [{record: r, expr: '1'}]}]")
    patterns = [str(tmp_path / "*.yml"), str(tmp_path / "a.yml"), str(tmp_path / "none*.yml")]
    groups = rule_files.read_all(patterns, Defaults())
    assert [Path(group.file).name for group in groups] == ["a.yml", "b.yml"]
    assert [(one.name, count) for one, count in duplicates(groups)] == [("r", 2)]
    with pytest.raises(ConfigError, match=r"none\.yml cannot be read"):
        rule_files.read_all([str(tmp_path / "none.yml")], Defaults())


def test_too_many_rules_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_files, "RULES_MAX", 1)
    (tmp_path / "a.yml").write_text("groups: [{name: g, rules: [{record: r, expr: '1'}, {record: s, expr: '1'}]}]")
    with pytest.raises(ConfigError, match="2 rules; the limits are"):
        rule_files.read_all([str(tmp_path / "a.yml")], Defaults())


def test_a_file_whose_name_is_no_utf8_is_shown_with_its_bytes_escaped(tmp_path: Path) -> None:
    for name in (b"caf\xe9.yml", b"caf\xe8.yml"):
        (tmp_path / os.fsdecode(name)).write_text("groups: [{name: g, rules: [{record: r, expr: '1'}]}]")
    groups = rule_files.read_all([str(tmp_path / "*.yml")], Defaults())
    assert [group.file for group in groups] == [str(tmp_path / "caf\\xe8.yml"), str(tmp_path / "caf\\xe9.yml")]
    (tmp_path / os.fsdecode(b"caf\xe9.yml")).write_text("groups: 1")
    with pytest.raises(ConfigError) as refused:
        rule_files.read_all([str(tmp_path / "*.yml")], Defaults())
    assert "caf\\xe9.yml: " in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        rule_files.read_all([str(tmp_path / os.fsdecode(b"none\xe9.yml"))], Defaults())
    assert "none\\xe9.yml cannot be read" in str(refused.value)
