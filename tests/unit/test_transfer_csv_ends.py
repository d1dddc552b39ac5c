"""Where files of CSV are cut: at the ends of the rows that the server's reader finds."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.transfer.csv_ends import rows_end
from coordinator.transfer.sample_files import sources_of


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@settings(deadline=None)  # the first call may compile the kernel
@given(st.text('a",\n', max_size=30), st.integers(0, 30))
@example('5" pipe,1\nb,2\n', 11)
@example('"a""\n",1\nb', 9)
@example('"a"b"\nc', 7)
def test_rows_are_the_same_when_a_text_is_cut_where_they_end(text: str, size: int) -> None:
    part = text[:size]
    end = rows_end(part.encode())
    assert not end or part[end - 1] == "\n"
    assert rows_of(part[:end]) + rows_of(text[end:]) == rows_of(text)
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
