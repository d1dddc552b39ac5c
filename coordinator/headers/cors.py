"""Which pages of other sites may read responses: those whose origin matches TRIPTYCH_CORS_ORIGIN, which works like
Prometheus's `--web.cors.origin`. By default there are none.

Such a page can read what its user's browser can reach and what it has a credential for. Responses never allow cookies
or credentials that the browser has stored. coordinator/headers/cross_site.py decides which requests may change
something; a matching origin alone is not enough for that. Source: https://fetch.spec.whatwg.org/#http-cors-protocol.
"""

from __future__ import annotations

import re
from functools import lru_cache

from aiohttp import hdrs, web
from multidict import CIMultiDict

from coordinator.headers.request_ids import head_of
from shared.errors import ConfigError
from shared.promql import regex
from shared.settings import Settings

ORIGIN_CHARS_MAX = 300
"""A scheme, a domain name of 253 characters and a port, with some room. A longer origin matches nothing."""
ORIGINS_CACHED = 256
PREFLIGHT_MAX_AGE_S = 600
METHODS, CHANGING_METHODS = "GET, POST, OPTIONS", "GET, POST, PUT, DELETE, OPTIONS"
REQUEST_HEADERS = "Accept, Authorization, Content-Type, Origin"
"""The request headers that a page may send."""
ANSWER_HEADERS = "Date, Retry-After, X-Request-ID"
"""The response headers that a page may read, besides those that every page may read."""
_IN_HEAD = re.compile(rb"\r\norigin:[ \t]*([!-~]+)[ \t]*\r\n", re.IGNORECASE)


class Cors:
    """Has no cost while the setting is empty. Raises ConfigError for a malformed expression."""

    def __init__(self, settings: Settings) -> None:
        self.is_on = bool(settings.cors_origin)
        self._changing = frozenset(name.lower() for name in settings.allowed_origins)
        try:
            pattern = regex.compiled(settings.cors_origin)
        except ValueError as error:
            raise ConfigError(
                f"TRIPTYCH_CORS_ORIGIN is {settings.cors_origin!r}; it must be a regular expression of RE2 such as "
                rf"https?://(a|b)\.example\.org: {error}"
            ) from None
        self._matches = lru_cache(ORIGINS_CACHED)(lambda origin: pattern.fullmatch(origin) is not None)

    def allow(self, request: web.BaseRequest, headers: CIMultiDict[str]) -> None:
        """Add the headers that allow the page which sent the request to read the response, if it may. Only called while
        `is_on`. A second call changes nothing."""
        vary = headers.get(hdrs.VARY, "")
        if hdrs.ORIGIN not in vary:
            headers[hdrs.VARY] = f"{vary}, {hdrs.ORIGIN}" if vary else hdrs.ORIGIN
        origin = self._allowed(request.headers.get(hdrs.ORIGIN, ""))
        if origin:
            headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = ANSWER_HEADERS

    def header_lines(self, data: bytes) -> bytes:
        """The same headers as lines of a response head, for a request that aiohttp has not read. `data`: the beginning
        of the request. Empty unless `is_on`."""
        if not self.is_on:
            return b""
        match = _IN_HEAD.search(head_of(data))
        origin = self._allowed("" if match is None else match[1].decode("ascii"))
        lines = f"{hdrs.VARY}: {hdrs.ORIGIN}\r\n"
        if origin:
            lines += f"{hdrs.ACCESS_CONTROL_ALLOW_ORIGIN}: {origin}\r\n"
            lines += f"{hdrs.ACCESS_CONTROL_EXPOSE_HEADERS}: {ANSWER_HEADERS}\r\n"
        return lines.encode()

    def preflight(self, request: web.BaseRequest) -> web.Response | None:
        """The response to a preflight request, with which a browser asks what a page may send; None for any other
        request. Preflight requests carry no credentials."""
        is_preflight = request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        if not is_preflight:
            return None
        origin = self._allowed(request.headers.get(hdrs.ORIGIN, ""))
        if not origin:
            return None
        response = web.Response(status=204)
        self.allow(request, response.headers)
        methods = CHANGING_METHODS if origin.lower() in self._changing else METHODS
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = methods
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = REQUEST_HEADERS
        response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = str(PREFLIGHT_MAX_AGE_S)
        return response

    def _allowed(self, origin: str) -> str:
        """The origin of a request if it matches, or ""."""
        return origin if 0 < len(origin) <= ORIGIN_CHARS_MAX and self._matches(origin) else ""
