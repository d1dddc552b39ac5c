"""Links between the documents, and paths of documents in the code, lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
CODE_FOLDERS = ("client", "coordinator", "loadtest", "proto", "shared", "tests", "worker")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NAMED = re.compile(r"(?<![\w./-])docs/[\w./-]*\w(?:#[\w-]+)?")
"""A path in a comment, a text or a command; not the part of an address on the web that looks like one."""
JOINED = re.compile(r'"docs"((?: / "[^"]+")+)')
"""A path that is put together with pathlib."""


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names by which links reach the headings of a page, as GitHub makes them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file of a link on that page exists, and its heading where it names one."""
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not heading or heading in anchors(target))


def paths_in_code() -> Iterator[tuple[Path, str]]:
    """(file, path of a document that it names), paths as links from the root."""
    sources = (path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
    for source in (ROOT / "Makefile", ROOT / "pyproject.toml", *sorted(sources)):
        text = source.read_text()
        for path in NAMED.findall(text):
            yield source, path
        for parts in JOINED.findall(text):
            yield source, "/".join(["docs", *re.findall(r'"([^"]+)"', parts)])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    links = [link for link in LINK.findall(FENCED.sub("", page.read_text())) if "://" not in link]
    assert [link for link in links if not leads_somewhere(page, link)] == []


def test_documents_named_in_code_exist() -> None:
    named = set(paths_in_code())
    assert (ROOT / "tests" / "unit" / "test_settings.py", "docs/operations.md") in named
    assert [(str(source), path) for source, path in named if not leads_somewhere(ROOT / "README.md", path)] == []


def test_every_page_is_reached_from_the_list_of_pages() -> None:
    first = ROOT / "docs" / "README.md"
    links = LINK.findall(first.read_text())
    reached = {(first.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link}
    assert set(PAGES) - reached - {first, ROOT / "README.md"} == set()
