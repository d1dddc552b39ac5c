"""`triptych rules check` and `triptych rules test`: what passes, what fails and how that is said, as in promtool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from coordinator.commands.rules import check
from coordinator.commands.rules import test as run_tests

RULES = """
groups:
  - name: g
    rules:
      - record: job:m:sum
        expr: sum by (job) (m)
      - alert: High
        expr: job:m:sum > 10
        for: 2m
        labels: {severity: page}
        annotations: {summary: "{{ $labels.job }} has {{ $value }} in {{ $externalLabels.region }}"}
"""
TESTS = """
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - name: rising
    interval: 1m
    external_labels: {region: eu}
    input_series:
      - series: 'm{job="a", i="1"}'
        values: '0+3x10'
      - series: 'm{job="a", i="2"}'
        values: '1 _ 1x7 stale'
    alert_rule_test:
      - eval_time: 5m
        alertname: High
        exp_alerts: []
      - eval_time: 6m
        alertname: High
        exp_alerts:
          - exp_labels: {severity: page, job: a}
            exp_annotations: {summary: a has 19 in eu}
    promql_expr_test:
      - expr: job:m:sum
        eval_time: 4m
        exp_samples: [{labels: 'job:m:sum{job="a"}', value: 13}]
      - expr: count(m)
        eval_time: 10m
        exp_samples: [{labels: '{}', value: 1}]
      - expr: ALERTS{alertstate="firing"}
        eval_time: 6m
        exp_samples:
          - labels: 'ALERTS{alertname="High", alertstate="firing", job="a", severity="page"}'
            value: 1
      - expr: vector(2) * 3
        eval_time: 1m
        exp_samples: [{value: 6}]
"""


def run(directory: Path, rules: str = RULES, tests: str = TESTS) -> tuple[int, str]:
    (directory / "rules.yml").write_text(rules)
    (directory / "tests.yml").write_text(tests)
    lines: list[str] = []
    return run_tests([directory / "tests.yml"], lines.append), "".join(lines)


def test_a_file_of_tests_passes(tmp_path: Path) -> None:
    assert run(tmp_path) == (0, f"Unit testing {tmp_path}/tests.yml\n  SUCCESS\n\n")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_says_the_same_of_it(tmp_path: Path) -> None:
    run(tmp_path)
    for path, wrong in (("tests.yml", ""), ("wrong.yml", "19 in eu")):
        (tmp_path / path).write_text(TESTS.replace(wrong, "20 in eu") if wrong else TESTS)
        done = subprocess.run(
            ["promtool", "test", "rules", str(tmp_path / path)], capture_output=True, timeout=60, check=False
        )
        assert bool(done.returncode) == bool(wrong) == bool(run_tests([tmp_path / path], lambda text: None))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("19 in eu", "20 in eu", "rising: alertname High, time 6m:"),
        ("value: 13", "value: 14", "{__name__='job:m:sum', job='a'} 13.0"),
        ("exp_alerts: []", "exp_alerts: [{}]", "got: no alert"),
        ("expr: count(m)", "expr: count(m", "parse error"),
        ("values: '0+3x10'", "values: '0+3y10'", "'0+3y10' is not a point"),
        ("values: '0+3x10'", "values: '{{schema:1}}'", "native histogram"),
        ("values: '0+3x10'", "values: '0x999999999'", "more than"),
        ('series: \'m{job="a", i="1"}\'', "series: 'm{job}'", "is not a series"),
        ("alertname: High", "alertnam: High", "alertname is missing"),
        ("eval_time: 10m", "eval_time: 9000y", "needs more than"),
        ("rule_files: [rules.yml]", "rule_files: [none.yml]", "cannot be read"),
    ],
)
def test_what_fails_is_said(tmp_path: Path, old: str, new: str, named: str) -> None:
    code, text = run(tmp_path, tests=TESTS.replace(old, new, 1))
    assert code == 1 and named in text


def test_rules_that_fail_are_said(tmp_path: Path) -> None:
    code, text = run(tmp_path, rules=RULES.replace("sum by (job) (m)", "label_replace(m, 'i', '', '', '')"))
    assert code == 1 and "rule 'job:m:sum' at 0s:" in text


@pytest.mark.parametrize(
    ("content", "instead"),
    [
        ("global: {}\nscrape_configs: []\n", "TRIPTYCH_PROMETHEUS_CONFIG={path} triptych doctor"),
        ("rule_files: [rules.yml]\n", "is a Prometheus configuration, not a rule file"),
        (TESTS, "run: triptych rules test {path}"),
    ],
)
def test_a_file_of_another_kind_is_told_which_command_checks_it(tmp_path: Path, content: str, instead: str) -> None:
    path = tmp_path / "other.yml"
    path.write_text(content)
    lines: list[str] = []
    assert check([path], lines.append) == 1
    assert f"FAILED: {path} " in "".join(lines) and instead.format(path=path) in "".join(lines)


def test_rule_files_are_checked(tmp_path: Path) -> None:
    good, bad, double = (tmp_path / name for name in ("good.yml", "bad.yml", "double.yml"))
    good.write_text(RULES)
    bad.write_text(RULES.replace("sum by", "sumby"))
    double.write_text("groups: [{name: g, rules: [{record: r, expr: '1'}, {record: r, expr: '2'}]}]")
    lines: list[str] = []
    assert check([good, bad], lines.append) == 1
    text = "".join(lines)
    assert f"Checking {good}\n  SUCCESS: 2 rules in 1 group" in text
    assert f"FAILED: {bad}: line 6: group 'g', rule 1, 'job:m:sum'.expr: could not parse" in text
    lines.clear()
    assert check([double], lines.append) == 0 and "2 rules are named 'r'" in "".join(lines)
