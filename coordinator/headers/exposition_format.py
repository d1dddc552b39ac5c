"""Negotiates the exposition format with a scraper: Prometheus's text format or OpenMetrics, and how names that are not
plain are escaped.

Source: https://prometheus.io/docs/instrumenting/content_negotiation/.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.openmetrics.exposition import ALLOWUTF8, DOTS, UNDERSCORES, VALUES

TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
VERSION = "1.0.0"
"""The version of OpenMetrics, and of the text format that allows UTF-8 names."""
TEXT_VERSION = "0.0.4"
_SCHEMES = (ALLOWUTF8, DOTS, UNDERSCORES, VALUES)
_ANY_TEXT = (TEXT, "text/*", "*/*")


@dataclass(frozen=True, slots=True)
class ExpositionFormat:
    """`escaping`: the escaping scheme for names that are not plain."""

    is_openmetrics: bool
    version: str
    escaping: str

    @property
    def content_type(self) -> str:
        base = f"{OPENMETRICS if self.is_openmetrics else TEXT}; version={self.version}; charset=utf-8"
        return f"{base}; escaping={self.escaping}" if self.version == VERSION else base


PLAIN = ExpositionFormat(False, TEXT_VERSION, VALUES)


def format_for(accept: str) -> ExpositionFormat:
    """The supported format with the highest quality in an Accept header, the first among equals; PLAIN if the header
    names none. Names are escaped as `U__…`, which is reversible, unless the header names another scheme."""
    best, best_quality = PLAIN, 0.0
    for element in accept.split(","):
        media_type, *parameters = (text.strip() for text in element.split(";"))
        values = {name.strip(): text.strip() for name, _, text in (one.partition("=") for one in parameters)}
        quality = _quality(values.get("q", "1"))
        if quality <= best_quality:
            continue
        version = values.get("version", "")
        escaping = values.get("escaping", "")
        escaping = escaping if escaping in _SCHEMES else VALUES
        if media_type.lower() == OPENMETRICS and version in ("", VERSION):
            best, best_quality = ExpositionFormat(True, VERSION, escaping), quality
        elif media_type.lower() == TEXT and version == VERSION:
            best, best_quality = ExpositionFormat(False, VERSION, escaping), quality
        elif media_type.lower() in _ANY_TEXT:
            best, best_quality = PLAIN, quality
    return best


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
