"""`triptych rules check FILE…` and `triptych rules test FILE…`: like promtool, without a running service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coordinator.plurals import counted
from shared.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.prometheus_config.yaml_fields import Section

OK, FAILED = 0, 1
CONFIGURATION_FIELDS = {"global", "rule_files", "alerting", "scrape_configs", "remote_write", "remote_read", "storage"}
"""Fields of Prometheus's configuration file. A rule file has none of them."""


def check(paths: Sequence[Path], write: Callable[[str], object]) -> int:
    """Check rule files. Returns the exit code."""
    from coordinator.prometheus_config import yaml_fields
    from coordinator.rules import rule_files

    code = OK
    for path in paths:
        write(f"Checking {path}\n")
        try:
            content = yaml_fields.read(path, "the rule file")
            _refuse_other_files(yaml_fields.parse(content, path))
            groups = rule_files.parse(content, path)
        except ConfigError as error:
            code = FAILED
            write(f"  FAILED: {error}\n\n")
            continue
        rules = sum(len(group.rules) for group in groups)
        write(f"  SUCCESS: {counted(rules, 'rules')} in {counted(len(groups), 'groups')}\n")
        for rule, count in rule_files.duplicates(groups):
            write(f"  {count} rules are named {rule.name!r} and have the same labels {dict(rule.labels)}; the samples ")
            write("of one may replace those of another\n")
        write("\n")
    return code


def _refuse_other_files(content: Section) -> None:
    """Raises ConfigError for a file of another kind that is easily taken for a rule file; it names the command to use
    instead."""
    if "groups" in content:
        return
    if "tests" in content:
        raise ConfigError(f"{content.path} has unit tests, not rules; run: triptych rules test {content.path}")
    if CONFIGURATION_FIELDS & content.fields.keys():
        raise ConfigError(
            f"{content.path} is a Prometheus configuration, not a rule file; check the files that its rule_files names "
            f"instead, or all of them with the configuration: TRIPTYCH_PROMETHEUS_CONFIG={content.path} triptych doctor"
        )


def test(paths: Sequence[Path], write: Callable[[str], object]) -> int:
    """Run unit tests of rules. Returns the exit code."""
    from coordinator.rules import unit_tests

    code = OK
    for path in paths:
        write(f"Unit testing {path}\n")
        try:
            texts = list(unit_tests.failures(path))
        except ConfigError as error:
            texts = [str(error)]
        if texts:
            code = FAILED
            write("  FAILED:\n" + "".join(f"    {text}\n" for text in texts) + "\n")
        else:
            write("  SUCCESS\n\n")
    return code


test.__test__ = False  # type: ignore[attr-defined]  # not a test for pytest

_FILES = click.argument(
    "files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE..."
)


@click.group()
def rules() -> None:
    """Check and test files with recording and alerting rules.

    \b
    triptych rules check rules/*.yml
    triptych rules test tests/*.yml
    """


@rules.command("check")
@_FILES
def check_command(files: tuple[Path, ...]) -> None:
    """Check rule files: every field, expression and template.

    The exit code is 0 if all files are valid, and 1 otherwise.
    """
    sys.exit(check(files, sys.stdout.write))


@rules.command("test")
@_FILES
def test_command(files: tuple[Path, ...]) -> None:
    """Run unit tests of rules, in promtool's format, on series that the test files define.

    The exit code is 0 if all tests pass, and 1 otherwise.
    """
    sys.exit(test(files, sys.stdout.write))
