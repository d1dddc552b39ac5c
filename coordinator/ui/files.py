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
_LEVEL = 9


@dataclass(frozen=True, slots=True)
class File:
    """`gzipped`: the content as a gzip member, which is all that is kept of it."""

    content_type: str
    gzipped: bytes
    etag: str

    def content(self) -> bytes:
        return gzip.decompress(self.gzipped)


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
        _file(_page(page, base, list(contents)).encode(), "text/html"),
        {name: _file(content, TYPES[Path(name).suffix]) for name, content in contents.items()},
    )


def _paths() -> list[Path]:
    found = (path for path in DIRECTORY.rglob("*") if path.suffix in TYPES and path.is_file())
    return sorted(path for path in found if path.relative_to(DIRECTORY).parts[0] != NOT_SERVED)


def _file(content: bytes, content_type: str) -> File:
    etag = hashlib.sha256(content).hexdigest()[:24]
    return File(content_type, gzip.compress(content, _LEVEL, mtime=0), f'"{etag}"')


def _page(template: str, base: str, names: list[str]) -> str:
    """All modules are named in the head, so that the browser asks for them at once and not one after the other."""

    def links(relation: str, suffix: str) -> str:
        chosen = (name for name in names if name.endswith(suffix))
        return "\n    ".join(f'<link rel="{relation}" href="{html.escape(base)}/{name}">' for name in chosen)

    return (
        template.replace("<!-- {{styles}} -->", links("stylesheet", ".css"))
        .replace("<!-- {{modules}} -->", links("modulepreload", ".js"))
        .replace("{{base}}", base)
    )
