"""`triptych rules check FILE…` and `triptych rules test FILE…`: what promtool does, without a running service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from shared.errors import ConfigError

OK, FAILED = 0, 1


def check(paths: Sequence[Path], write: Callable[[str], object]) -> int:
    """Check rule files. Returns the exit code."""
    from coordinator.prometheus_config import yaml_fields
    from coordinator.rules import rule_files

    code = OK
    for path in paths:
        write(f"Checking {path}\n")
        try:
            groups = rule_files.parse(yaml_fields.read(path, "the rule file"), path)
        except ConfigError as error:
            code = FAILED
            write(f"  FAILED: {error}\n\n")
            continue
        rules = sum(len(group.rules) for group in groups)
        write(f"  SUCCESS: {rules} rules in {len(groups)} groups\n")
        for rule, count in rule_files.duplicates(groups):
            write(f"  {count} rules are named {rule.name!r} and have the same labels {dict(rule.labels)}; the samples ")
            write("of one may replace those of another\n")
        write("\n")
    return code


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


test.__test__ = False  # type: ignore[attr-defined]  # it is none of pytest's

_FILES = click.argument(
    "files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE..."
)


@click.group()
def rules() -> None:
    """Check and test files of recording and alerting rules.

    \b
    triptych rules check rules/*.yml
    triptych rules test tests/*.yml
    """


@rules.command("check")
@_FILES
def check_command(files: tuple[Path, ...]) -> None:
    """Check rule files: every field, expression and template.

    Exit code 0: all are right, 1: some are not.
    """
    sys.exit(check(files, sys.stdout.write))


@rules.command("test")
@_FILES
def test_command(files: tuple[Path, ...]) -> None:
    """Run unit tests of rules, in promtool's format, over series that the tests name.

    Exit code 0: all pass, 1: some fail.
    """
    sys.exit(test(files, sys.stdout.write))
