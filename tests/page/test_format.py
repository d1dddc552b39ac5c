"""Times as text, and back."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.page.modules import run

TIMES = """
  const { parseTime, time, utc } = await use("base/format.js");
  utc.value = true;
"""


@pytest.mark.parametrize("text", ["0033-04-03 15:00:00", "0000-01-01 00:00:00", "9999-12-31 23:59:59.999"])
def test_a_time_of_any_year_with_four_digits_is_read_as_it_is_written(page: Page, text: str) -> None:
    assert run(page, f"{TIMES} return time(parseTime(given));", text) == text


@pytest.mark.parametrize("text", ["99999999999999", "-62167219201", "253402300800", "9999-12-31T23:30:00-01:00"])
def test_a_time_in_a_year_that_has_not_four_digits_is_none(page: Page, text: str) -> None:
    assert run(page, f"{TIMES} return parseTime(given);", text) is None
