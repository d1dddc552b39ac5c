"""Refuses query parameters that an endpoint of the log or of the vectors does not know.

A misspelled parameter would otherwise be ignored, and the answer would be to another question. The endpoints of the
Prometheus interface ignore unknown parameters: Grafana and vmalert send parameters of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps

from aiohttp import web

from shared.errors import BadData

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

NAME_LENGTH_MAX = 64
"""An unknown name that is longer than this resembles no known one, and messages show it cut to this length."""
_KNOWN = "known"


def known_parameters(*names: str) -> Callable[[Handler], Handler]:
    """Declare all query parameters of a handler. A request with another one is answered 400."""
    known = frozenset(names)

    def declared(handler: Handler) -> Handler:
        @wraps(handler)
        async def strict(request: web.Request) -> web.StreamResponse:
            if request.query_string:
                require_known(request.query, known)
            return await handler(request)

        setattr(strict, _KNOWN, known)
        return strict

    return declared


def known_to(handler: object) -> frozenset[str] | None:
    """The query parameters that a handler has declared; None if it has not declared any."""
    return getattr(handler, _KNOWN, None)


def require_known(given: Iterable[str], known: Collection[str]) -> None:
    """Raises BadData that names the first of the names `given` that is not known, and the nearest known one."""
    for name in given:
        if name not in known:
            raise BadData(f"parameter {name[:NAME_LENGTH_MAX]!r} is unknown here; {_suggestion(name, known)}")


def _suggestion(name: str, known: Collection[str]) -> str:
    if not known:
        return "this endpoint has no parameters"
    nearest = get_close_matches(name, sorted(known), 1) if len(name) <= NAME_LENGTH_MAX else []
    return f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(sorted(known))}"
