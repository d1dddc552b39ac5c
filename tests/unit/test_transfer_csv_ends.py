"""Where files of CSV are cut: at the ends of the rows that the server's reader finds."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.transfer.csv_ends import first_row_end, rows_end
from coordinator.transfer.sample_files import sources_of


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@settings(deadline=None)  # the first call may compile the kernel
@given(st.text('a",\n\r', max_size=30), st.integers(0, 30))
@example('5" pipe,1\nb,2\n', 11)
@example('"a""\n",1\nb', 9)
@example('"a"b"\nc', 7)
@example('a\r"\n', 2)
@example("a\r\nb", 2)
def test_rows_are_the_same_when_a_text_is_cut_where_they_end(text: str, size: int) -> None:
    part = text[:size]
    end, first = rows_end(part.encode()), first_row_end(part.encode())
    assert not end or part[end - 1] in "\r\n"
    assert rows_of(part[:end]) + rows_of(text[end:]) == rows_of(text)
    assert not first or rows_of(part[:first]) == rows_of(part)[:1]
    assert bool(first) == bool(end)
    further = [at + 1 for at in range(end, len(part)) if part[at] == "\n"]
    assert all(rows_of(part[:at] + "z,\n") != [*rows_of(part[:at]), ["z", ""]] for at in further)


def test_a_quote_within_a_plain_field_does_not_shift_the_cuts_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.transfer.sample_files.SLICE_BYTES", 64)
    monkeypatch.setattr("coordinator.transfer.sample_files.LINE_BYTES_MAX", 256)
    path = tmp_path / "a.csv"
    header = "what,__timestamp__,__value__\n"
    path.write_text(header + '5" pipe,1,2\n' + '"two\nlines",1,2\n' * 40, newline="")
    bodies = [batch.body.decode().removeprefix(header) for batch in sources_of(path)[0].batches(0)]
    assert len(bodies) > 5
    rows = [row for body in bodies for row in rows_of(body)]
    assert rows == [['5" pipe', "1", "2"], *[["two\nlines", "1", "2"]] * 40]


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_a_header_may_have_line_breaks_within_quotes(
    line_break: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.transfer.sample_files.SLICE_BYTES", 64)
    path = tmp_path / "a.csv"
    header, row = f'"two\nlines",__timestamp__,__value__{line_break}', f"a,1,2{line_break}"
    path.write_text(header + row * 100, newline="")
    (source,) = sources_of(path)
    batches = list(source.batches(0))
    assert len(batches) > 5
    assert all(batch.body.startswith((header + row).encode()) for batch in batches)
    assert b"".join(batch.body.removeprefix(header.encode()) for batch in batches) == row.encode() * 100
    assert [batch.body for batch in source.batches(batches[2].position)] == [batch.body for batch in batches[3:]]


@pytest.mark.parametrize("text", ["a,__timestamp__,__value__", '"a,b\n', ""])
def test_a_header_that_does_not_end_has_no_rows(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert list(sources_of(path)[0].batches(0)) == []
