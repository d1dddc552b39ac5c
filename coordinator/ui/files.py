"""The files of the page as they are sent: typed, compressed, and named by what is in them.

All of them lie under one path that has a digest of their contents in it. What such a path gives never changes, so that
a browser keeps it for ever, and modules of two versions are never mixed in one page.
"""

from __future__ import annotations

import gzip
import hashlib
import html
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DIRECTORY = Path(__file__).parent
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
INDEX = "index.html"
NOT_SERVED = "vendor"
"""The folder in which vendor.js is made."""
PREFIX = "ui"
LATER = ("log/", "vectors/", "alerts/", "cluster/")
_LEVEL = 9


@dataclass(frozen=True, slots=True)
class File:
    """`gzipped`: the content as a gzip member. Both are kept: if the content were made of it for each request, slow
    readers would hold a copy each."""

    content_type: str
    content: bytes
    gzipped: bytes
    etag: str
    """A weak one, which stands for both forms (RFC 9110, section 8.8.3.3)."""


@dataclass(frozen=True, slots=True)
class Files:
    """`index`: the page itself; `files` by path under `base`, which is relative to the page."""

    base: str
    version: str
    index: File
    files: dict[str, File]


@cache
def load() -> Files:
    """Read and compress all of it, which takes some 100 ms: not for the event loop. Once in a process."""
    contents = {path.relative_to(DIRECTORY).as_posix(): path.read_bytes() for path in _paths()}
    page = (DIRECTORY / INDEX).read_text()
    digest = hashlib.sha256(page.encode())
    for name, content in contents.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    version = digest.hexdigest()[:16]
    base = f"{PREFIX}/{version}"
    return Files(
        base,
        version,
        file_of(_page(page, base, list(contents)).encode(), "text/html"),
        {name: file_of(content, TYPES[Path(name).suffix]) for name, content in contents.items()},
    )


def _paths() -> list[Path]:
    """Files that are served, in the order in which the page names them. Those of others are first: vendor.js is the
    largest, and our styles have the last word."""
    folders = [path for path in DIRECTORY.iterdir() if path.is_dir() and path.name != NOT_SERVED]
    paths = [*DIRECTORY.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    served = [path for path in paths if path.suffix in TYPES and path.is_file()]
    return sorted(served, key=lambda path: (not path.name.startswith(NOT_SERVED), path))


def file_of(content: bytes, content_type: str) -> File:
    """The content as it is sent."""
    etag = hashlib.sha256(content).hexdigest()[:24]
    return File(content_type, content, gzip.compress(content, _LEVEL, mtime=0), f'W/"{etag}"')


def _page(template: str, base: str, names: list[str]) -> str:
    """All modules are named in the head, so that the browser asks for them at once and not one after the other."""

    def links(relation: str, suffix: str) -> str:
        chosen = (name for name in names if name.endswith(suffix))
        lines = (f'<link rel="{relation}" href="{html.escape(base)}/{name}"{_urgency(name)}>' for name in chosen)
        return "\n    ".join(lines)

    return (
        template.replace("<!-- {{styles}} -->", links("stylesheet", ".css"))
        .replace("<!-- {{modules}} -->", links("modulepreload", ".js"))
        .replace("{{base}}", base)
    )


def _urgency(name: str) -> str:
    """The first area is shown first; those that a person goes to later leave it the connections."""
    return ' fetchpriority="low"' if name.startswith(LATER) else ""
