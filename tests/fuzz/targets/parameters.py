"""What stands in URLs, forms and headers, as the handlers read it."""

from __future__ import annotations

from multidict import MultiDict

from coordinator.api import parameters
from coordinator.api.log import log_parameters
from coordinator.headers import negotiation
from coordinator.http.bodies import check_escapes
from shared.durations import format_duration, parse_duration_ms
from shared.errors import BadData
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.log_search.filter import Filter
from shared.messages.log import Search
from tests.fuzz.target import Target


def _fields(data: bytes) -> None:
    """A form with the parameters of every endpoint."""
    found: MultiDict[str] = MultiDict(parameters.pairs(data))
    parameters.required(found, "query")
    for name in ("time", "start", "end"):
        time_ms = parameters.optional(found, name, parameters.timestamp_ms, 0)
        assert TIME_MS_MIN <= time_ms <= TIME_MS_MAX, f"{name} is {time_ms}"
    for name in ("step", "timeout", "lookback_delta"):
        parameters.optional(found, name, parameters.duration_ms, 0)
    parameters.optional(found, "limit", parameters.limit, 0)
    parameters.partial_response(found)
    log_parameters.sequences(found)
    parameters.seconds(found, "timeout", 1, 60)
    log_parameters.whole(found, ("limit",), 1, 1, 100)
    log_parameters.selection(found)


def _search(data: bytes) -> None:
    """A pattern and a condition, and what they find."""
    text = data.decode(errors="replace")
    for search in (Search(grep=text), Search(grep_not=text), Search(where=text)):
        try:
            chosen = Filter(search)
        except BadData:
            continue
        found = chosen.matching(_VALUES, lambda: None, set())
        alone = [bool(chosen.matching([value], lambda: None, set())[0]) for value in _VALUES]
        assert found.tolist() == alone, f"{search} finds {found.tolist()} together, and {alone} one by one"


_VALUES = [b"", b'{"a":{"b":[1,"x"]},"level":"error"}', b"a line\nand b", b"\xff", b"12"]


def _duration(data: bytes) -> None:
    """A duration that is read and written anew is the same."""
    text = data.decode(errors="replace")
    check_escapes(text, "the URL")
    parameters.timestamp_ms(text, "time") if text[:1] == "-" else parameters.duration_ms(text, "step")
    try:
        duration_ms = parse_duration_ms(text)
    except ValueError:
        return
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


def _accept(data: bytes) -> None:
    for quality in negotiation._qualities(data.decode("latin-1")).values():
        assert 0 <= quality <= 1, f"a quality of {quality}"


_FORM = (
    b"query=up%7Ba%3D%22b%22%7D&time=1735689600.5&start=2025-01-01T00:00:00.5%2B01:00&end=1e9&step=1h30m&timeout=30s&"
    b"limit=10&partial_response=true&key_base64=aw&start_seq=5"
)

TARGETS = [
    Target("parameters-form", _fields, lambda: [_FORM], tokens=("key=", "prefix=", "%ff", "%", "&", "T", "Z", "inf")),
    Target(
        "parameters-search",
        _search,
        lambda: [b'$.level = "error" and not ($.a.b[0] >= 1 or exists $["x y"])', rb"(?i)^a.*\bb$", rb"\A\d+\z"],
        tokens=("$.", "exists", " and ", " or ", "not ", "(?-m)", "\\A", "\\C", "[^", "{2,", "|", "null"),
        bytes_max=256,
    ),
    Target("parameters-duration", _duration, lambda: [b"1h30m", b"-5.5e3", b"0"], bytes_max=128),
    Target("parameters-accept", _accept, lambda: [b"application/json;q=0.5, text/*;q=1, */*"], refusals=()),
]
