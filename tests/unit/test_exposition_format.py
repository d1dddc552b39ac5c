"""The format of metrics that an Accept header asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.exposition import ALLOWUTF8, DOTS, VALUES

from coordinator.headers.exposition_format import PLAIN, ExpositionFormat, format_for

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/html,application/xhtml+xml,*/*;q=0.8", PLAIN),
        (PROMETHEUS_2, ExpositionFormat(True, "1.0.0", VALUES)),
        (PROMETHEUS_3, ExpositionFormat(True, "1.0.0", ALLOWUTF8)),
        ("text/plain;version=1.0.0 ; escaping=dots", ExpositionFormat(False, "1.0.0", DOTS)),
        ("text/plain;version=0.0.4;escaping=allow-utf-8", PLAIN),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.5", PLAIN),
        ("application/openmetrics-text;q=0", PLAIN),
        ("application/openmetrics-text;version=abc", PLAIN),
        ("application/openmetrics-text;version=2.0.0,text/plain", PLAIN),
        ("application/openmetrics-text;version=1.0.0;escaping=nonsense", ExpositionFormat(True, "1.0.0", VALUES)),
    ],
)
def test_what_scrapers_send(accept: str, wanted: ExpositionFormat) -> None:
    assert format_for(accept) == wanted


@given(
    st.lists(
        st.sampled_from(
            [
                *";,=",
                "application/openmetrics-text",
                "text/plain",
                "*/*",
                "version",
                "1.0.0",
                "escaping",
                "q",
                "nan",
                "x",
            ]
        )
    ).map("".join)
    | st.text()
)
def test_any_header_has_a_format(accept: str) -> None:
    assert format_for(accept).content_type.isascii()
