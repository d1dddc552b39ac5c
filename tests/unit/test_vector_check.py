"""What the check of a data directory says of the list of collections."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared import catalogue_file
from shared.catalogue_file import DIRECTORY, NAMES, CatalogueContent, Lost
from shared.messages.vectors import Collection
from worker.vectors.check import check

CONTENT = CatalogueContent(3, [Collection(1, "a", 4, "cosine"), Collection(2, "b", 4, "dot")], generation=5)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    catalogue_file.write(tmp_path / DIRECTORY, CONTENT)
    return tmp_path


def test_two_whole_copies_and_none_at_all_are_well(listed: Path, tmp_path: Path) -> None:
    assert check(listed) == []
    for name in NAMES:
        (listed / DIRECTORY / name).unlink()
    assert check(listed) == []


@pytest.mark.parametrize("name", NAMES)
def test_one_copy_that_is_lost_costs_nothing(listed: Path, name: str) -> None:
    path = listed / DIRECTORY / name
    path.write_bytes(b"{")
    [finding] = check(listed)
    assert (finding.path, finding.costs_data) == (path, False)
    assert "the other copy is whole" in finding.depends
    path.unlink()
    [finding] = check(listed)
    assert (finding.path, finding.what, finding.costs_data) == (path, "it is missing", False)


def test_a_damaged_copy_is_told_from_a_missing_one(listed: Path) -> None:
    first, second = (listed / DIRECTORY / name for name in NAMES)
    first.unlink()
    second.write_bytes(b"{")
    copies = catalogue_file.copies_in(listed / DIRECTORY)
    assert [isinstance(copy, Lost) and copy.is_there for copy in copies.values()] == [False, True]


def test_both_copies_lost_may_cost_collections(listed: Path) -> None:
    for name in NAMES:
        (listed / DIRECTORY / name).write_bytes(b"{")
    findings = check(listed)
    assert [(finding.path.name, finding.costs_data) for finding in findings] == [(name, True) for name in NAMES]
    assert "collections without a vector" in findings[0].depends


def test_what_was_set_aside_is_said(listed: Path) -> None:
    aside = listed / DIRECTORY / f"{NAMES[0]}.damaged"
    aside.write_bytes(b"x")
    [finding] = check(listed)
    assert (finding.path, finding.costs_data) == (aside, True)


# The list itself


def test_a_list_is_the_same_when_it_is_read_again() -> None:
    read = catalogue_file.decode(CONTENT.encode())
    assert (read.next_id, read.collections, read.dropped, read.generation) == (3, CONTENT.collections, [], 5)


@pytest.mark.parametrize(
    "content",
    [
        CatalogueContent(2, CONTENT.collections),
        CatalogueContent(3, [CONTENT.collections[0]], [CONTENT.collections[0]]),
        CatalogueContent(2, [], [CONTENT.collections[1]]),
    ],
)
def test_ids_given_twice_or_not_below_the_next_one_are_refused(content: CatalogueContent) -> None:
    with pytest.raises(ValueError, match="it has the ids"):
        catalogue_file.decode(content.encode())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"next_id":1,"collections":[],"format":3}', "format 3; this program reads formats up to 2"),
        ('{"next_id":1,"collections":[],"generation":1}', "which format 1 had not"),
        ('{"next_id":1,"collections":[],"checksum":"x"}', "which format 1 had not"),
        ('{"next_id":1,"collections":[],"format":2,"checksum":"x"}', "checksum does not match"),
    ],
)
def test_a_list_in_another_form_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        catalogue_file.decode(text.encode())
    assert catalogue_file.decode(b'{"next_id":1,"collections":[]}') == CatalogueContent(1, [])


def test_the_copy_of_the_later_change_counts(tmp_path: Path) -> None:
    older, newer = CatalogueContent(3, [], generation=4), CONTENT
    assert catalogue_file.newest({tmp_path / "a": older, tmp_path / "b": newer}) == newer
    assert catalogue_file.newest({tmp_path / "a": newer, tmp_path / "b": older}) == newer
    assert catalogue_file.newest({tmp_path / "a": Lost("", is_there=True), tmp_path / "b": older}) == older
    assert catalogue_file.newest({tmp_path / "a": Lost("", is_there=True)}) is None
