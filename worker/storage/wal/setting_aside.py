"""Keeps a copy of what a survey found damaged, before anything is written."""

from __future__ import annotations

from pathlib import Path

from shared import durable
from worker.storage.wal import losses, register
from worker.storage.wal.reading import Content, Survey


def set_aside(survey: Survey, directory: Path, prefix: str = "") -> None:
    """Remember in `directory` what is damaged or missing, with the damaged bytes; files that are unknown as a whole are
    renamed. On the disk when this returns. Raises OSError."""
    for loss in survey.losses:
        name = Path(loss.file).name
        listed = survey.directory / register.NAME
        data = [listed.read_bytes()] if name == register.NAME and listed.exists() else []
        losses.remember(directory / (prefix + name), [loss], data)
    for content in survey.used:
        if content.losses:
            losses.remember(directory / (prefix + content.path.name), content.losses, _damaged_bytes(content))
    for path in survey.unknown:
        durable.set_aside(path)


def _damaged_bytes(content: Content) -> list[memoryview]:
    return [content.data[loss.offset : loss.end] for loss in content.losses]
