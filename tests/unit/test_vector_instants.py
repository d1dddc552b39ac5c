"""Instants of RFC 3339 datetimes, beside those of Python's own calendar."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.vectors import instants
from worker.vectors.attribute_column import AttributeColumn
from worker.vectors.instants import parsed

OFFSETS = st.integers(-23 * 60 - 59, 23 * 60 + 59)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.datetimes(), OFFSETS, st.integers(0, 10**9 - 1), st.sampled_from("Tt "))
def test_a_datetime_is_its_seconds_and_nanoseconds(
    moment: datetime, offset: int, nanoseconds: int, between: str
) -> None:
    moment = moment.replace(microsecond=0)
    sign, (hours, minutes) = "-" if offset < 0 else "+", divmod(abs(offset), 60)
    text = f"{moment:%m-%d}{between}{moment:%H:%M:%S}.{nanoseconds:09d}{sign}{hours:02d}:{minutes:02d}"
    [instant] = parsed([f"{moment.year:04d}-{text}"])
    seconds = (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(seconds=1) - 60 * offset
    assert (instant.real, instant.imag) == (seconds, nanoseconds)


@pytest.mark.parametrize("year", [1, 4, 100, 1900, 1972, 2000, 2023, 2024, 9999])
def test_the_days_of_a_year_are_those_of_the_calendar(year: int) -> None:
    texts = [f"{year:04d}-{month:02d}-{day:02d}T00:00:00z" for month in range(14) for day in range(33)]
    found = dict(zip(texts, parsed(texts).real.tolist(), strict=True))
    assert sum(not np.isnan(seconds) for seconds in found.values()) == (date(year, 12, 31) - date(year, 1, 1)).days + 1
    for text, seconds in found.items():
        if not np.isnan(seconds):
            assert seconds == (date.fromisoformat(text[:10]) - date(1970, 1, 1)).days * 86_400


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500-00:00"),
        ("2026-01-01T00:00:00.1234567899Z", "2026-01-01T00:00:00.123456789Z"),
        ("0000-01-01T00:00:00Z", "0000-01-01T01:00:00+01:00"),
    ],
)
def test_an_instant_has_several_texts(text: str, same: str) -> None:
    assert parsed([text]) == parsed([same])


def test_the_first_and_the_last_instant_are_in_order() -> None:
    first, last = parsed(["0000-01-01T00:00:00+23:59", "9999-12-31T23:59:60.999999999-23:59"]).tolist()
    assert datetime(1, 1, 1, tzinfo=timezone(timedelta(0))).timestamp() - first.real == 366 * 86_400 + 86_340
    assert last == complex(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() + 1 + 86_340, 999_999_999)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00:00.5", "20260101T000000Z", "+026-01-01T00:00:00Z"),
        *("2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-01-01T00:00:61Z", "2026-01-01T00:00:00.Z"),
        *("2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00+00:60", "2026-01-01T00:00:00+0200"),
        *("2026-01-01T00:00:00+02:0", "2026-01-01T00:00:00+02:000", "2026-01-01T00:00:00+02"),
        *(
            "2026-01-01X00:00:00Z",
            "2026-01-01T00-00:00Z",
            "2026-01-01T00:00-00Z",
            "2026-01-01T00:00:00Zx",
            " 2026-01-01T00:00:00Z",
        ),
        *("2026/01-01T00:00:00Z", "2026-01/01T00:00:00Z", "2026-01-01T00:00:00,5Z", "２026-01-01T00:00:00Z"),
        "2026-01-01T00:00:00." + "1" * instants.TEXT_CHARS_MAX + "Z",
    ],
)
def test_another_text_is_no_instant(text: str) -> None:
    assert np.isnan(parsed([text])).all()


def test_texts_are_parsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instants, "PARSED_TEXTS", 2)
    texts = ["2026-01-01T00:00:00Z", "x", "2026-01-01T00:00:01Z", "", "2026-01-01T00:00:02Z"]
    assert (parsed(texts).real - 1767225600).tolist()[::2] == [0, 1, 2]
    assert np.isnan(parsed(texts)[[1, 3]]).all()


def test_instants_of_new_strings_join_those_of_the_others() -> None:
    column = AttributeColumn()
    for row in range(30):
        column.put([row], [f"2026-01-01T00:00:{row:02d}Z"])
        assert column.compare("gte", "2026-01-01T02:00:10+02:00", slice(0, row + 1)).sum() == max(0, row - 9)
