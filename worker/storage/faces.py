"""The faces of storage: what the areas of a worker may ask of whatever keeps their data, and what it promises.

Everything durable that the areas touch, they touch through these protocols. They say nothing of files, so that other
kinds of storage can stand behind them. The fourth face, of small documents, is needed by the coordinator as well:
`shared.control`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar

from shared.wire import Frame

T = TypeVar("T")

_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
"""Why an object may not open though there is nothing wrong with it."""


class NotOpened(OSError):
    """An object that cannot be opened, as another OSError says that an open one cannot be read."""

    @property
    def is_passing(self) -> bool:
        """Whether the reason is the state of this process or machine, not of the object: a later try may succeed."""
        return self.errno in _PASSING


class State(Enum):
    """Of what lies in a place of objects."""

    WHOLE = "whole"
    DRAFT = "draft"
    SET_ASIDE = "set aside"


@dataclass(frozen=True, slots=True)
class Listed:
    """A name and what bears it: an object (or a place within this one), what a crash left of a draft, or what was set
    aside. A draft is listed under a name of its own, which `delete` takes."""

    name: str
    state: State


class Draft(Protocol):
    """An object that is being written. No object has its name before `publish`. What a crash leaves of a draft is
    listed as `State.DRAFT` at the next start, and is not read by anybody."""

    def write(self, data: Frame) -> None:
        """Append. Raises OSError."""

    def finish(self) -> None:
        """The content is complete; when this returns, it is on the disk. Raises OSError."""

    def publish(self) -> None:
        """Give the object its name, after `finish`. Readers see all of it from now on. A loss of power before
        `Objects.sync_names` leaves the object under its name, or the draft, or nothing. Raises OSError."""

    def abandon(self) -> None:
        """Leave nothing behind, published or not; may be called at any point, and again. Raises OSError."""


class Objects(Protocol):
    """Immutable objects by name, in one place that one process writes to. Any thread may call any method.

    An object is written once, as a `draft` or by `put`, and then only read, deleted or set aside. The exception is the
    object that is written by `replace`: the list by which others count.
    """

    def prepare(self) -> None:
        """Have the place there; when this returns, it still is after a loss of power. Raises OSError."""

    def within(self, name: str) -> Objects:
        """The place of that name in this one. It may not be there yet: see `prepare`."""

    def location(self, name: str = "") -> str:
        """Where the object is, or this place: for messages to whoever runs the service, and for nothing else."""

    def list(self) -> list[Listed]:
        """All there is in this place, by ascending name; nothing if there is no such place. Raises OSError."""

    def exists(self, name: str) -> bool:
        """Raises OSError where that cannot be told."""

    def size(self, name: str) -> int:
        """Bytes. Raises FileNotFoundError, OSError."""

    def read(self, name: str, at: int, size: int) -> bytes:
        """`size` bytes from `at` on; fewer if the object ends before. They are not verified: whoever wrote them has
        their checksum. Raises NotOpened; OSError where an open object cannot be read."""

    def get(self, name: str) -> bytes:
        """All of the object, unverified. Raises FileNotFoundError, OSError."""

    def draft(self, name: str) -> Draft:
        """Begin an object of a name that was never used before. Raises OSError."""

    def put(self, name: str, content: bytes) -> None:
        """Write an object whole: when this returns, its content is on the disk, and its name after `sync_names` or
        the next `replace`. Until then a crash may leave any part of the content under the name, so that only a list
        with its checksum makes it count. Raises OSError, which leaves what a crash leaves."""

    def put_by_path(self, name: str, write: Callable[[Path], object]) -> None:
        """As `put`, for libraries that write files only: `write` fills the file of the path that it is lent for the
        time of the call. Raises OSError, or what `write` raises."""

    def get_by_path(self, name: str, read: Callable[[Path], T]) -> T:
        """What `read` makes of a file with the object's content, whose path it is lent for the time of the call; the
        file may not be changed. Raises OSError, or what `read` raises."""

    def replace(self, name: str, content: bytes) -> None:
        """Write the object whole, in place of the one there was. When this returns, the new content is on the disk
        under its name, and so is everything `put` or published in this place before. After a crash it has the old
        content or the new one. Raises OSError, and then it has either as well."""

    def sync_names(self) -> None:
        """When this returns, every `publish`, `put` and `delete` before it survives a loss of power. Raises OSError,
        and then any of them may come undone."""

    def delete(self, name: str) -> None:
        """There is no such object any more, or there was none. A loss of power before `sync_names` may bring it back
        whole. Raises OSError."""

    def remove(self) -> None:
        """Delete this place with everything in it, as far as that is possible; what is left, or comes back with a loss
        of power, is any part of it. Raises nothing."""

    def set_aside(self, name: str) -> str:
        """Give a damaged or unknown object a new name, listed as `State.SET_ASIDE`, which no object ever had; returns
        the location. When this returns, that survives a loss of power. Raises OSError, and it has one of both names."""
