"""Inputs that fail, as files: one for each way of failing."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.fuzz.target import Failure

KINDS_MAX = 20
"""Ways of failing that are kept for one target."""


class Findings:
    """A directory with a file for each failing input and a text beside it that says how it fails."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._kinds: set[str] = set()

    def is_new(self, failure: Failure) -> bool:
        return failure.kind not in self._kinds and len(self._kinds) < KINDS_MAX and not self._path(failure).exists()

    def keep(self, failure: Failure, data: bytes) -> Path:
        """Keep the input; later ones that fail in the same way are not new."""
        self._kinds.add(failure.kind)
        path = self._path(failure)
        path.write_bytes(data)
        command = f"python -m tests.fuzz --replay {self._directory.name} {path}"
        path.with_suffix(".txt").write_text(f"{failure.text}\n{len(data)} bytes: {data[:400]!r}\nreplay: {command}\n")
        return path

    def paths(self) -> list[Path]:
        return sorted(self._directory.glob("*.input"))

    def _path(self, failure: Failure) -> Path:
        return self._directory / f"{hashlib.sha1(failure.kind.encode()).hexdigest()[:12]}.input"
