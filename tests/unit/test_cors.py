"""The setting TRIPTYCH_CORS_ORIGIN: what it matches, and how a malformed one is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict

from coordinator.headers.cors import Cors
from shared.errors import ConfigError
from shared.settings import Settings


def allowed(pattern: str, origin: str, vary: str = "") -> dict[str, str]:
    cors = Cors(Settings(cors_origin=pattern))
    request: Any = SimpleNamespace(method="GET", headers=CIMultiDict({"Origin": origin} if origin else {}))
    headers: CIMultiDict[str] = CIMultiDict({"Vary": vary} if vary else {})
    for _ in range(2):
        cors.allow(request, headers)
    return dict(headers)


def test_it_is_off_by_default() -> None:
    assert not Cors(Settings()).is_on


@pytest.mark.parametrize(
    ("pattern", "origin", "is_allowed"),
    [
        (".*", "https://a.example", True),
        (".*", "", False),
        (".*", "null", True),
        ("https://a|https://b", "https://b", True),
        ("https://a|https://b", "https://a.evil", False),
        ("https://a|https://b", "evil://https://b", False),
        ("a", "A", False),
        (".*", "https://" + "a" * 300, False),
    ],
)
def test_an_origin_matches_as_a_whole(pattern: str, origin: str, is_allowed: bool) -> None:
    assert allowed(pattern, origin).get("Access-Control-Allow-Origin") == (origin if is_allowed else None)


def test_vary_is_kept() -> None:
    assert allowed(".*", "a", "Accept-Encoding")["Vary"] == "Accept-Encoding, Origin"


def test_a_malformed_expression_is_refused_by_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"TRIPTYCH_CORS_ORIGIN is '\('; it must be a regular expression"):
        Cors(Settings(cors_origin="("))
