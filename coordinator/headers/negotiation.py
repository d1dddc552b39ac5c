"""Content negotiation: the media types of a request's body and of the requested response; boolean parameters.

Media types and quality values: RFC 9110, sections 8.3.1, 12.4.2, 12.5.1 and 12.5.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import hdrs, web

from shared.errors import BadData

JSON = "application/json"
PROTOBUF = "application/protobuf"
PROTOBUF_JSON = "application/protobuf+json"
REMOTE_WRITE = "application/x-protobuf"
FORM = "application/x-www-form-urlencoded"
EVENTS = "text/event-stream"
ARROW = "application/vnd.apache.arrow.stream"

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def content_type(request: web.Request) -> str:
    """The media type of the body, in lower case and without parameters; "" if the header is missing."""
    return request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()


def content_type_parameter(request: web.Request, name: str, default: str) -> str:
    """The first parameter of the body's media type with this name, which must be in lower case."""
    _, *parameters = request.headers.get(hdrs.CONTENT_TYPE, "").split(";")
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == name:
            return value.strip().strip('"')
    return default


def preferred(request: web.Request, *media_types: str) -> str:
    """The media type of the response: the one of `media_types` with the highest quality in `Accept`, the first among
    equals.

    The last one is the default. Another one is chosen only if `Accept` names it, so `*/*` selects the default.
    """
    accept = ",".join(request.headers.getall(hdrs.ACCEPT, ())).lower()
    if accept in media_types:
        return accept
    default = media_types[-1]
    if not any(media_type in accept for media_type in media_types[:-1]):
        return default
    qualities = _qualities(accept)
    best = max(media_types[:-1], key=lambda media_type: qualities.get(media_type, 0.0))
    ranges = (default, f"{default.partition('/')[0]}/*", "*/*")
    default_quality = next((qualities[name] for name in ranges if name in qualities), 0.0)
    best_quality = qualities.get(best, 0.0)
    return best if best_quality > 0 and best_quality >= default_quality else default


def wants_protobuf(request: web.Request) -> bool:
    """Whether the response should be binary protobuf instead of JSON."""
    return preferred(request, PROTOBUF, JSON) == PROTOBUF


def accepts_gzip(request: web.Request) -> bool:
    """Whether the body of the response may be compressed."""
    return takes_gzip(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())))


def takes_gzip(encodings: str) -> bool:
    """As `accepts_gzip`, for the value of an `Accept-Encoding` header."""
    encodings = encodings.lower()
    return "gzip" in encodings and _qualities(encodings).get("gzip", 0.0) > 0


def names_etag(request: web.Request, etag: str) -> bool:
    """Whether `If-None-Match` contains this entity tag, by weak comparison (RFC 9110, sections 8.8.3.2 and 13.1.2)."""
    texts = ",".join(request.headers.getall(hdrs.IF_NONE_MATCH, ())).split(",")
    tags = {text.strip().removeprefix("W/") for text in texts}
    return etag.removeprefix("W/") in tags or "*" in tags


def boolean(parameters: Mapping[str, str], name: str, default: bool) -> bool:
    """The parameter as a boolean; the default if it is missing or empty. Raises BadData for other text."""
    text = parameters.get(name, "")
    if not text:
        return default
    value = _BOOLEANS.get(text)
    if value is None:
        raise BadData(f"parameter {name!r} is {text!r}; it must be true or false")
    return value


def _qualities(header: str) -> dict[str, float]:
    """The quality of every element of a header such as `Accept`, which must be in lower case: 1 if none is given, 0 if
    it is not a number from 0 to 1. If an element appears twice with other parameters, the higher quality counts."""
    qualities: dict[str, float] = {}
    for element in header.split(","):
        name, *parameters = (text.strip() for text in element.split(";"))
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                quality = _quality(value.strip())
        qualities[name] = max(quality, qualities.get(name, 0.0))
    return qualities


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
