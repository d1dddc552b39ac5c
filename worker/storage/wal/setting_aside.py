"""Sets aside what a survey has found damaged, before anything is written to the log."""

from __future__ import annotations

from pathlib import Path

from shared import durable
from worker.storage.wal import losses, register
from worker.storage.wal.reading import FileContent, Survey


def set_aside(survey: Survey, directory: Path, prefix: str = "") -> None:
    """Write to `directory` what is damaged or missing, with the damaged bytes, in files whose names begin with
    `prefix`. Files that do not belong to the log are renamed in place. All of this is on the disk when this returns.
    Raises OSError."""
    for loss in survey.losses:
        name = Path(loss.file).name
        list_path = survey.directory / register.NAME
        data = [list_path.read_bytes()] if name == register.NAME and list_path.exists() else []
        losses.remember(directory / (prefix + name), [loss], data)
    for content in survey.used:
        if content.losses:
            losses.remember(directory / (prefix + content.path.name), content.losses, _damaged_bytes(content))
    for path in survey.unknown:
        durable.set_aside(path)


def _damaged_bytes(content: FileContent) -> list[memoryview]:
    return [content.data[loss.offset : loss.end] for loss in content.losses]
