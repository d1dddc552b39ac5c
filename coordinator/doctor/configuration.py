"""Checks of the file that TRIPTYCH_PROMETHEUS_CONFIG names, and of the rule files that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coordinator.doctor.finding import Finding, ok, problem
from coordinator.prometheus_config import config_file
from coordinator.rules import schedule
from coordinator.scraping import jobs
from shared.config import Settings
from shared.errors import ConfigError

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
        yield problem(SETTINGS, NAME, str(error), "what the message says; a start is refused")
        return
    yield ok(
        SETTINGS, NAME, f"{path} can be used: groups of rules: {len(rule_groups)}, scrape jobs: {len(scrape_jobs)}"
    )
