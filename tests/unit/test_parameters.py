"""Timestamps, durations and limits as the interface writes them."""

from __future__ import annotations

import sys
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.api import parameters
from coordinator.api.parameters import duration_ms, limit, timestamp_ms
from coordinator.http import bodies
from loadtest.bench.decoders import Ticker
from shared.errors import BadData
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.process.interpreter import switch_often


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1700000000", 1_700_000_000_000),
        ("1700000000.1235", 1_700_000_000_124),
        ("1.7e9", 1_700_000_000_000),
        ("-1.5", -1500),
        (".5", 500),
        ("1970-01-01T00:00:01Z", 1000),
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
        ("2023-11-14t17:43:20-04:30", 1_700_000_000_000),
        ("1969-12-31T23:59:59.5Z", -500),
        ("0001-01-01T00:00:00Z", TIME_MS_MIN),
        ("9999-12-31T23:59:59.999Z", TIME_MS_MAX),
        ("-292273086-05-16T16:47:06Z", TIME_MS_MIN),
        ("292277025-08-18T07:12:54.999999999Z", TIME_MS_MAX),
    ],
)
def test_a_timestamp_is_seconds_or_rfc_3339(text: str, expected: int) -> None:
    assert timestamp_ms(text, "time") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        "inf",
        "1e300",
        "9999999999999",
        "1_000",
        "0x10",
        " 1",
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-02-30T00:00:00Z",
        "2023-11-14T22:13:20+25:00",
        "0001-01-01T00:00:00+01:00",
        "٣",
    ],
)
def test_what_is_no_timestamp_is_named(text: str) -> None:
    with pytest.raises(BadData, match="parameter 'time' is"):
        timestamp_ms(text, "time")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15", 15_000), ("0.25", 250), ("1h30m", 5_400_000), ("100ms", 100), ("-5", -5000), ("1e-9", 0)],
)
def test_a_duration_is_seconds_or_units(text: str, expected: int) -> None:
    assert duration_ms(text, "step") == expected


@pytest.mark.parametrize("text", ["", "1x", "NaN", "Inf", "5m5m", "1e30", "1h 30m", "99999999999y"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(BadData, match="parameter 'step' is"):
        duration_ms(text, "step")


def test_a_limit_is_a_whole_number() -> None:
    assert limit("0") == 0
    assert limit("007") == 7
    for text in ("", "-1", "1.0", "x", "9" * 5000, "٣"):
        with pytest.raises(BadData, match="parameter 'limit' is"):
            limit(text)


# Forms

_FORM = st.text(st.sampled_from("ab&=+%é"), max_size=60).map(lambda text: text.replace("%", "%C3%A9%2B"))


@given(_FORM)
def test_a_form_is_read_as_the_library_reads_it_however_it_is_sliced(text: str) -> None:
    expected = parse_qsl(text, keep_blank_values=True)
    assert parameters.pairs(text.encode()) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "SLICE_CHARACTERS", 5)
        assert parameters.pairs(text.encode()) == expected


def test_a_form_has_a_bounded_number_of_fields() -> None:
    most = parameters.FORM_FIELDS_MAX
    assert len(parameters.pairs(b"&".join([b"a=1"] * most))) == most
    with pytest.raises(BadData, match=f"has {most + 1} fields; it may have at most {most}"):
        parameters.pairs(b"&".join([b"a=1"] * (most + 1)))


@pytest.mark.parametrize("body", [b"a=\xff", b"a=%FF", b"a=%2", b"a=" + b"%41" * 30_000 + b"%C3"])
def test_a_form_that_is_not_utf_8_or_has_a_broken_escape_is_refused(body: bytes) -> None:
    with pytest.raises(BadData):
        parameters.pairs(body)


def test_a_long_form_does_not_hold_the_interpreter_lock() -> None:
    body = b"query=" + b"%C3%A9" * (parameters.FORM_BYTES_MAX // 6 - 1)

    def longest_s() -> float:
        ticker = Ticker()
        ticker.start()
        parameters.pairs(body)
        ticker.stop()
        return ticker.longest

    usual = sys.getswitchinterval()
    switch_often()
    try:
        assert min(longest_s() for _ in range(5)) < 0.05
    finally:
        sys.setswitchinterval(usual)
