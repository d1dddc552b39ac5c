"""Progress of long work on standard error: a bar on a terminal, nothing in a pipe or a file."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import rich.progress

_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


def bytes_text(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def size_of(stream: BinaryIO) -> int | None:
    """The number of bytes left to read in a file; None for a pipe or a terminal."""
    try:
        status = os.fstat(stream.fileno())
        return status.st_size - stream.tell() if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None


class Counting:
    """Counts items and shows `{count} {what}`, with a bar if the size of the input is known.

    Use it with `with`, so that the bar is always closed. `beside_output`: show nothing if the output goes to a terminal
    too, where the bar would be in its way.
    """

    def __init__(self, what: str, size_bytes: int | None = None, *, beside_output: bool = False) -> None:
        self._what = what
        self._size_bytes = size_bytes
        self._is_shown = sys.stderr.isatty() and not (beside_output and sys.stdout.isatty())
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self.count = 0

    def __enter__(self) -> Counting:
        if self._is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

            columns: list[ProgressColumn] = [TextColumn("{task.description}")]
            if self._size_bytes:
                columns.append(BarColumn())
            self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task(f"0 {self._what}", total=self._size_bytes)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, items: int, size_bytes: int = 0) -> None:
        self.count += items
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=size_bytes, description=f"{self.count:,} {self._what}")


@contextmanager
def amounts(title: str, total: int, unit: str) -> Iterator[Callable[[int, str], None]]:
    """Shows a bar on standard error if that is a terminal. Yields a function that takes the amount of new work done and
    a text."""
    if not sys.stderr.isatty():
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total or None, text=unit)

        def tell(done: int, text: str) -> None:
            bar.update(task, advance=done, text=text)

        yield tell
