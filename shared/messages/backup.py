"""Messages of the worker methods backup.prepare, backup.freeze and backup.finish, in this order for one view."""

from __future__ import annotations

import re

import msgspec

VIEWS = "backup.staging"
"""The directory of the data directory in which views are made."""
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")


class ViewBody(msgspec.Struct):
    """`view`: the name of the view's directory in `VIEWS`. `skip_head`: leave out samples that are not in blocks yet.
    Raises ValueError for a name that is a path."""

    view: str
    skip_head: bool = False

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.view):
            raise ValueError(f"{self.view!r} is no name of a view")
