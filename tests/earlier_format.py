"""A data directory put back into an earlier format, as far as its manifest says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shared.control import LocalControl
from shared.manifest import NAME, SHARDS, Manifest


def put_back(data: Path, number: int = 1, *, has_copy: bool = True) -> Manifest:
    """The manifest and, unless `has_copy` is False, its copy say this format. Survives a loss of power."""
    control = LocalControl(data)
    earlier = replace(Manifest.decode(control.read(NAME)), format=number)
    for documents in [control, control.within(SHARDS)][: 1 + has_copy]:
        documents.replace(NAME, earlier.encode())
    return earlier


def formats_of(data: Path) -> tuple[int, int]:
    """What the manifest and its copy say."""
    first, second = (Manifest.decode((directory / NAME).read_bytes()).format for directory in (data, data / SHARDS))
    return first, second
