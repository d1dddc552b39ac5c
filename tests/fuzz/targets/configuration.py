"""The configuration file, rule files, unit tests of rules, and templates of alerts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coordinator.prometheus_config import config_file
from coordinator.rules import alertmanager_config, rule_files, unit_tests
from coordinator.rules.templates import Sample, Surroundings, Template, TemplateError
from shared.errors import ConfigError
from tests.fuzz.target import Target

LABELS = {"job": "a", "instance": "host:9100"}
AROUND = Surroundings(lambda expr: [Sample(dict(LABELS), 2.0)] * 3, {"region": "eu"}, "http://here", 1.7e9)


def _configuration(data: bytes) -> None:
    read = config_file.parse(data, Path("prometheus.yml"))
    read.shown()
    if b"_file" not in data:  # of credentials and certificates, which are read
        alertmanager_config.read(read.alerting, read.global_.external_labels)


def _rules(data: bytes) -> None:
    rule_files.parse(data, "rules.yml")


def _unit_tests(data: bytes) -> None:
    if data.count(b"x") < 3:  # each may stand for a million points
        unit_tests.parse(data, Path("tests.yml"))


def _template(data: bytes) -> None:
    Template.of(data.decode(errors="surrogateescape")).expand(LABELS, 1234.5, AROUND)


def _configurations() -> Iterator[bytes]:
    yield b"global: {scrape_interval: 15s, external_labels: {a: b}}\nrule_files: [a, b*]\nscrape_configs: [{job: j}]"
    yield b"""alerting:
  alert_relabel_configs: [{source_labels: [a], regex: '(.*)', target_label: b, replacement: $1}]
  alertmanagers:
    - &m {scheme: https, path_prefix: /a, timeout: 5s, static_configs: [{targets: ['h:1'], labels: {a: b}}]}
    - {<<: *m, basic_auth: {username: u, password: p}}
"""


def _rule_files() -> Iterator[bytes]:
    yield b"""groups:
- name: g
  interval: 1m
  limit: 5
  rules:
  - {record: a, expr: 'sum by (x) (rate(m[5m]))', labels: {b: c}}
  - {alert: B, expr: up == 0, for: 1m, labels: {s: '{{ $value }}'}, annotations: {t: '{{ $labels.a | toUpper }}'}}
"""


def _tests() -> Iterator[bytes]:
    yield b"""rule_files: [r.yml]
tests:
- interval: 1m
  input_series: [{series: 'm{a="b"}', values: '0+1x5 _ stale'}]
  alert_rule_test: [{eval_time: 1m, alertname: A, exp_alerts: [{exp_labels: {a: b}}]}]
  promql_expr_test: [{expr: m, eval_time: 1m, exp_samples: [{labels: 'm{a="b"}', value: 1}]}]
"""


def _templates() -> Iterator[bytes]:
    yield b"{{ if gt $value 5.0 }}{{ $labels.job | printf `%-8s` }}{{ else }}{{ humanize .Value }}{{ end }}"
    yield b'{{ range $i, $s := query "m" | sortByLabel "a" }}{{ $i }}={{ $s.Value }}{{ end }}{{- /* c */ -}}'
    yield b'{{ with $x := reReplaceAll "(.)" "${1}$1" "ab" }}{{ $x }}{{ end }}{{ ($value | toTime).Format "2006" }}'


_WORDS = ("groups", "rules", "record", "alert", "expr", "for", "labels", "annotations", "&a", "*a", "<<", "{{", "}}")

TARGETS = [
    Target("configuration-file", _configuration, _configurations, refusals=(ConfigError,), tokens=_WORDS),
    Target("rule-file", _rules, _rule_files, refusals=(ConfigError,), tokens=_WORDS),
    Target("rule-tests", _unit_tests, _tests, refusals=(ConfigError,), tokens=("x", "_", "stale", "+", "inf")),
    Target(
        "rule-template",
        _template,
        _templates,
        refusals=(TemplateError,),
        tokens=("{{", "}}", "|", "$x", ":=", "range", "else", "end", "printf", "%s", "slice", "index", "query", "1e30"),
    ),
]
