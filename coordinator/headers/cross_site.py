"""Protection against web pages of other sites that are open in a user's browser.

Such a page may not reach this server by a name that is not the server's (DNS rebinding), and may not change anything (a
form or script with a foreign `Origin`). Every request, reads included, needs a known `Host`: to a page whose own name
has been rebound to this server's address, every response seems to come from the page's own site. `Origin` and
`Sec-Fetch-Site` matter only for requests that change something. A page can only read responses of another site that
have an `Access-Control-Allow-Origin`, and they have it only for pages that a setting names
(coordinator/headers/cors.py).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import time
from functools import lru_cache

from aiohttp import hdrs, web
from multidict import istr

from shared.errors import Forbidden
from shared.settings import Settings
from shared.telemetry import event

READING_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
READING_PATHS = frozenset(
    (
        "/api/v1/query",
        "/api/v1/query_range",
        "/api/v1/query_exemplars",
        "/api/v1/format_query",
        "/api/v1/parse_query",
        "/api/v1/series",
        "/api/v1/labels",
        "/api/v1/read",
        "/api/v1/vector/search",
        "/api/v1/vector/get",
        "/api/v1/vector/scroll",
        "/api/v1/vector/count",
        "/api/v1/vector/facets",
        "/api/v1/vector/map",
    )
)
"""Requests to these paths change nothing, whatever their method. Paths that are not listed are protected."""
CHANGING_PREFIXES = ("/api/v1/admin/", "/api/v1/debug/")
"""Requests to these count as changes, whatever their method."""
HOST_BYTES_MAX = 262
"""A domain name of 253 characters, a dot, a colon and a port, with some room."""
HOSTS_CACHED = 256
TEXT_CHARS_MAX = 80
LOG_INTERVAL_S = 10.0
"""A limit, since a page, or a client that uses an unknown name, may be refused again and again."""

_FETCH_SITE = istr("Sec-Fetch-Site")
_OWN_SITES = ("same-origin", "none")
"""`none`: the user caused the request directly, for example with a bookmark."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(?::\d{0,5})?")


class CrossSite:
    """Refuses requests that a browser may have sent for a page of another site. A check takes less than 1 µs."""

    def __init__(self, settings: Settings) -> None:
        self._origins = frozenset(name.lower() for name in settings.allowed_origins)
        own_names = {"localhost", settings.address()[0].lower(), *machine_names()}
        patterns = [name.lower().rstrip(".") for name in settings.allowed_hosts]
        self._names = own_names | {name for name in patterns if not name.startswith("*")}
        self._suffixes = tuple(name[1:] for name in patterns if name.startswith("*"))
        self._is_known = lru_cache(HOSTS_CACHED)(self._is_known_host)
        self._logged_at = -LOG_INTERVAL_S

    def require(self, request: web.BaseRequest) -> None:
        """Raises Forbidden, which names the setting that would admit the request."""
        headers = request.headers
        host = headers.get(hdrs.HOST)
        # Every browser sends a Host, so a request without one does not come from a browser.
        if host and not self.knows(host):
            raise Forbidden(
                f"the request's Host is {_shown(host)}, which is not a known name of this server; if clients use this "
                "name, add it, without the port, to TRIPTYCH_ALLOWED_HOSTS"
            )
        path = request.path
        if path in READING_PATHS or (request.method in READING_METHODS and not path.startswith(CHANGING_PREFIXES)):
            return
        origin, site = headers.get(hdrs.ORIGIN), headers.get(_FETCH_SITE)
        if origin is not None or site is not None:
            self._require_own_site(origin, site, host or "")

    def knows(self, host: str) -> bool:
        """Whether a `Host` is a name of this server."""
        return len(host) <= HOST_BYTES_MAX and self._is_known(host)

    def log(self, request: web.BaseRequest, why: Forbidden) -> None:
        """Log that the request was refused, at most once every LOG_INTERVAL_S. Senders of remote write drop data that
        is refused with 403, so their users look for the reason in this log."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            event(logging.WARNING, "request refused", remote=request.remote, path=request.path, why=why)

    def _require_own_site(self, origin: str | None, site: str | None, host: str) -> None:
        if origin is not None and origin.lower() in self._origins:
            return
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            raise Forbidden(
                f"the request's Origin is {_shown(origin)}: a page of another site may not change anything here, whose "
                f"Host is {_shown(host)}; if this page may, add its origin to TRIPTYCH_ALLOWED_ORIGINS"
            )
        if site is not None and site.lower() not in _OWN_SITES:
            raise Forbidden(
                f"the request's Sec-Fetch-Site is {_shown(site)}: a page of another site may not change anything here; "
                "if this page may, add its origin to TRIPTYCH_ALLOWED_ORIGINS"
            )

    def _is_known_host(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().rstrip(".")
        return name in self._names or name.endswith((".localhost", *self._suffixes)) or _is_address(name.strip("[]"))


def machine_names() -> set[str]:
    """The host name that the kernel reports, and its first label. Other names would need a name server, which may not
    answer."""
    name = os.uname().nodename.lower().rstrip(".")
    return {name, name.partition(".")[0]} - {""}


def _is_address(name: str) -> bool:
    """Whether the name is an IP address. Addresses cannot be rebound."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    return repr(text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + "…")
