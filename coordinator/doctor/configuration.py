"""Checks of the file that TRIPTYCH_PROMETHEUS_CONFIG names, and of the rule files that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coordinator.doctor.finding import REFUSED, Finding, ok, problem
from coordinator.plurals import counted
from coordinator.prometheus_config import config_file
from coordinator.rules import schedule
from coordinator.scraping import jobs
from shared.errors import ConfigError
from shared.settings import Settings

SETTINGS = "settings"
NAME = "TRIPTYCH_PROMETHEUS_CONFIG"


def look(settings: Settings) -> Iterator[Finding]:
    if not settings.prometheus_config:
        return
    path = Path(settings.prometheus_config)
    try:
        configuration = config_file.read(path)
        rule_groups = schedule.prepare(configuration).groups
        scrape_jobs = jobs.read(configuration)
    except ConfigError as error:
        yield problem(SETTINGS, NAME, str(error), REFUSED)
        return
    contents = f"{counted(len(rule_groups), 'groups of rules')}, {counted(len(scrape_jobs), 'jobs to scrape')}"
    yield ok(SETTINGS, NAME, f"{path} is valid: {contents}")
