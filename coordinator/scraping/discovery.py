"""Discovers the targets of a job: in the configuration, in files that are watched, or behind a URL.

A file or an answer that cannot be used changes nothing: the earlier targets stay. Formats: https:

prometheus.io/docs/prometheus/latest/http_sd/ and …/configuration/configuration/#file_sd_config.
"""

from __future__ import annotations

import asyncio
import glob
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from coordinator import regular_files
from coordinator.outgoing import blocking
from coordinator.prometheus_config import yaml_fields
from coordinator.scraping.fetching import Client, Fetches, FetchFailed, inflated
from coordinator.scraping.jobs import FileDiscovery, Group, HttpDiscovery, group_of
from shared.errors import ConfigError
from shared.telemetry import event

LOOK_S = 5.0
"""How often files of targets are checked for changes."""
FILES_MAX = 1_000
"""The limit on the files of one discovery that match its patterns."""
URL_BYTES_MAX = 8 << 20
URL_TIMEOUT_S = 30.0
"""An answer must come within this time."""
READ_TIMEOUT_S = 30.0
"""The time limit for reading files, because a network file system may answer late or never."""

Groups = tuple[Group, ...]
FILE_PATH, URL = "__meta_filepath", "__meta_url"

Stamp = tuple[int, int, int]


class Discovery:
    """One source of groups. `tried`: set after the first attempt, whether it succeeded or failed."""

    def __init__(self, job: str, changed: Callable[[], None]) -> None:
        self.groups: Groups = ()
        self.tried = asyncio.Event()
        self.failures = 0
        self._job = job
        self._changed = changed
        self._why = ""

    def _found(self, groups: Groups) -> None:
        if groups != self.groups:
            self.groups = groups
            self._changed()

    def _failed(self, what: str, why: object) -> None:
        """Count a failure, and log it unless it is the same as the last one that was logged."""
        self.failures += 1
        text = f"{what}: {why}"
        if text != self._why:
            self._why = text
            event(logging.WARNING, "targets could not be discovered; those of before stay", job=self._job, why=text)


class Files(Discovery):
    """Files of groups, checked every LOOK_S."""

    def __init__(self, config: FileDiscovery, job: str, changed: Callable[[], None]) -> None:
        super().__init__(job, changed)
        self._config = config
        self._read: dict[Path, tuple[Stamp, Groups]] = {}

    async def run(self) -> None:
        looking: asyncio.Task[None] | None = None
        while True:
            if looking is None:
                looking = asyncio.create_task(blocking(self._look))
            done, _ = await asyncio.wait([looking], timeout=READ_TIMEOUT_S)
            if not done:  # it goes on, so that a file system that hangs takes one thread and not one for each look
                self._failed("files", f"they were not read within {READ_TIMEOUT_S:g} s")
            else:
                error = looking.exception()
                looking = None
                if error is None:
                    self._why = ""
                else:
                    self._failed("files", error)
                self._found(tuple(group for _, groups in self._read.values() for group in groups))
            self.tried.set()
            await asyncio.sleep(min(LOOK_S, self._config.refresh_ms / 1000))

    def _look(self) -> None:
        """Read the files that have changed. Raises ConfigError for the first that cannot be used."""
        paths = sorted({Path(name) for pattern in self._config.patterns for name in glob.glob(str(pattern))})
        if len(paths) > FILES_MAX:
            raise ConfigError(f"{len(paths)} files match; the limit is {FILES_MAX}")
        read: dict[Path, tuple[Stamp, Groups]] = {}
        problem: ConfigError | None = None
        for path in paths:
            before = self._read.get(path)
            try:
                status = os.stat(path)
                stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
                read[path] = before if before is not None and before[0] == stamp else (stamp, groups_of_file(path))
            except (OSError, ConfigError) as error:
                problem = problem or (
                    error if isinstance(error, ConfigError) else ConfigError(f"{regular_files.shown(path)}: {error}")
                )
                if before is not None:
                    read[path] = before
        self._read = read
        if problem is not None:
            raise problem


def groups_of_file(path: Path) -> Groups:
    """Raises ConfigError, which names the file."""
    content = yaml_fields.read(path, "the file of targets")
    file = regular_files.shown(path)
    if path.suffix == ".json":
        return _groups_of_json(content, file, {FILE_PATH: file})
    found = []
    for section in yaml_fields.parse_list(content, file):
        addresses, labels = tuple(section.texts("targets")), section.mapping("labels")
        section.finish()
        found.append(Group(addresses, {**labels, FILE_PATH: file}))
    return tuple(found)


def _groups_of_json(content: bytes, what: str, meta: dict[str, str]) -> Groups:
    try:
        items: Any = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{what} is not JSON: {error}") from None
    if not isinstance(items, list):
        raise ConfigError(f"{what} is {str(items)[:50]}; it must be a list of groups of targets")
    try:
        groups = [group_of(item) for item in items]
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    return tuple(Group(group.addresses, {**group.labels, **meta}) for group in groups)


class Url(Discovery):
    """A URL that answers with groups."""

    def __init__(self, config: HttpDiscovery, job: str, changed: Callable[[], None], fetches: Fetches) -> None:
        super().__init__(job, changed)
        self._config = config
        self._fetches = fetches

    async def run(self) -> None:
        interval_s = self._config.refresh_ms / 1000
        client = Client(self._config.http, 2 * interval_s)
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            "X-Prometheus-Refresh-Interval-Seconds": f"{interval_s:g}",
        }
        try:
            while True:
                try:
                    self._found(await self._ask(client, headers))
                    self._why = ""
                except (FetchFailed, ConfigError) as error:
                    self._failed(self._config.url, error)
                self.tried.set()
                await asyncio.sleep(interval_s)
        finally:
            await client.close()

    async def _ask(self, client: Client, headers: dict[str, str]) -> Groups:
        url = self._config.url
        answer = await self._fetches.get(client, url, headers, URL_TIMEOUT_S, URL_BYTES_MAX, keeps=True)
        try:
            kind = answer.content_type.partition(";")[0].strip().lower()
            if kind != "application/json":
                raise FetchFailed(f"its Content-Type is {kind[:50]!r}; it must be application/json")
            return await blocking(lambda: _groups_of_json(inflated(answer, URL_BYTES_MAX), "the answer", {URL: url}))
        finally:
            self._fetches.release(answer.held)


def ordered(static: Sequence[Group], sources: Sequence[Discovery]) -> Groups:
    """All groups of a job."""
    return (*static, *(group for source in sources for group in source.groups))
