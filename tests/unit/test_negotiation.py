"""What requests say of formats: media types and encodings with their qualities, and booleans."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from coordinator.headers.negotiation import (
    EVENTS,
    JSON,
    PROTOBUF,
    accepts_gzip,
    boolean,
    content_type,
    preferred,
    wants_protobuf,
)
from shared.errors import BadData


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/protobuf", True),
        ("APPLICATION/Protobuf", True),
        ("application/protobuf; version=1", True),
        ("application/json, application/protobuf", True),
        ("application/protobuf;q=0.9, */*;q=0.8", True),
        ("application/protobuf;q=0, application/protobuf;version=1;q=0.5", True),
        ("application/protobuf ; Q = 1.000 , application/* ; q=1", True),
        ("application/protobuf;q=0.8, application/json;q=0.5, */*", True),
        ("application/protobuf+json", False),
        ("application/protobuf+json, application/protobuf2", False),
        ("text/application/protobuf", False),
        ("application/x;a=application/protobuf", False),
        ("application/json", False),
        ("application/*", False),
        ("*/*", False),
        ("", False),
        ("application/protobuf;q=0", False),
        ("application/protobuf;q=2", False),
        ("application/protobuf;q=nan", False),
        ("application/protobuf;q=much", False),
        ("application/protobuf;q=0.5, application/json", False),
        ("application/protobuf;q=0.5, application/*;q=0.6", False),
        ("application/protobuf;q=0.5, */*", False),
    ],
)
def test_protobuf_is_for_those_who_name_it_and_want_json_no_more(accept: str, expected: bool) -> None:
    assert wants_protobuf(make_mocked_request("GET", "/", {"Accept": accept})) is expected


def test_without_accept_the_answer_has_the_default_type() -> None:
    assert preferred(make_mocked_request("GET", "/"), EVENTS, PROTOBUF, JSON) == JSON


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("text/event-stream", EVENTS),
        ("text/event-stream, application/protobuf", EVENTS),
        ("application/protobuf, text/event-stream", EVENTS),
        ("application/protobuf, text/event-stream;q=0.9", PROTOBUF),
        ("text/event-stream;q=0, application/protobuf;q=0", JSON),
        ("text/event-stream-of-mine", JSON),
        ("text/*", JSON),
    ],
)
def test_of_several_types_the_one_of_the_highest_quality_is_sent_of_equals_the_first(
    accept: str, expected: str
) -> None:
    assert preferred(make_mocked_request("GET", "/", {"Accept": accept}), EVENTS, PROTOBUF, JSON) == expected


def test_a_header_that_comes_twice_is_one_list() -> None:
    headers = CIMultiDict([("Accept", "application/json;q=0.2"), ("Accept", "application/protobuf")])
    assert wants_protobuf(make_mocked_request("GET", "/", headers))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("gzip", True),
        ("gzip, br", True),
        ("br;q=1, GZIP;q=0.1", True),
        ("br", False),
        ("", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, br", False),
        ("notgzip", False),
    ],
)
def test_gzip_is_for_those_who_name_it(value: str, expected: bool) -> None:
    assert accepts_gzip(make_mocked_request("GET", "/", {"Accept-Encoding": value})) is expected
    assert not accepts_gzip(make_mocked_request("GET", "/"))


def test_the_type_of_a_body_is_compared_without_its_parameters() -> None:
    headers = {"Content-Type": " Application/JSON ; charset=utf-8"}
    assert content_type(make_mocked_request("POST", "/", headers)) == JSON
    assert content_type(make_mocked_request("POST", "/")) == ""


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_a_boolean_is_true_or_false(text: str, value: bool) -> None:
    assert boolean({"f": text}, "f", not value) is value
    for default in (True, False):
        assert boolean({}, "f", default) is default
        assert boolean({"f": ""}, "f", default) is default
    with pytest.raises(BadData, match="'yes'; it must be true or false"):
        boolean({"f": "yes"}, "f", value)
