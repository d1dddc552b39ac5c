"""Parameters of reads of the log, at their bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.api.log.log_parameters import octets, resumed, selection, sequences, whole
from coordinator.api.parameters import seconds
from coordinator.log.reads import KeySelection
from shared.errors import BadData
from shared.messages.log import KEY_BYTES_MAX, SEQUENCE_MAX


def test_a_whole_number_is_taken_within_its_bounds() -> None:
    for text, value in (("3", 3), ("9", 9), ("007", 7)):
        assert whole({"n": text}, ("n",), 5, 3, 9) == value
    for text in ("2", "10", "", "-3", "3.0", "+3", "٣", "x", "0" * 20 + "3"):
        with pytest.raises(BadData, match=r"parameter 'n' is .*; it must be a whole number from 3 to 9"):
            whole({"n": text}, ("n",), 5, 3, 9)
    assert whole({"n": "0" * 19 + "3"}, ("n",), 5, 3, 9) == 3
    assert whole({}, ("n",), 5, 3, 9) == 5
    assert whole({"b": "4"}, ("a", "b"), 5, 3, 9) == 4
    assert whole({"a": "3", "b": "4"}, ("a", "b"), 5, 3, 9) == 3


def test_sequence_numbers_are_everything_unless_said_otherwise() -> None:
    assert sequences({}) == (0, SEQUENCE_MAX)
    assert sequences({"start_seq": "3", "endSeq": str(SEQUENCE_MAX)}) == (3, SEQUENCE_MAX)
    assert sequences({"startSeq": "0", "end_seq": "0"}) == (0, 0)
    for name in ("start_seq", "end_seq"):
        with pytest.raises(BadData, match=f"'{name}'"):
            sequences({name: str(SEQUENCE_MAX + 1)})


def test_a_duration_is_capped_and_not_negative() -> None:
    assert seconds({}, "t", 7.0, 60.0) == 7.0
    assert seconds({"t": "30s"}, "t", 7.0, 60.0) == 30.0
    assert seconds({"t": "1.5"}, "t", 7.0, 60.0) == 1.5
    assert seconds({"t": "2m"}, "t", 7.0, 60.0) == 60.0
    assert seconds({"t": "0"}, "t", 7.0, 60.0) == 0.0
    with pytest.raises(BadData, match="must not be negative"):
        seconds({"t": "-1"}, "t", 7.0, 60.0)


def test_bytes_come_as_text_or_in_either_alphabet_of_base64() -> None:
    assert octets({}, "key") is None
    assert octets({"key": "é"}, "key") == "é".encode()
    assert octets({"key": ""}, "key") == b""
    for text in ("-_-_", "+/+/", " / /"):
        assert octets({"key_base64": text}, "key") == bytes.fromhex("fbffbf")
    for text, value in (("aw==", b"k"), ("aw", b"k"), ("", b""), ("a2s", b"kk")):
        assert octets({"key_base64": text}, "key") == value
    for text in ("a", "a*==", "é"):
        with pytest.raises(BadData, match=r"parameter 'key_base64' is .*, which is not base64"):
            octets({"key_base64": text}, "key")
    with pytest.raises(BadData, match="exclude each other"):
        octets({"key": "a", "key_base64": "aw"}, "key")


def test_a_key_has_so_many_bytes_and_no_more() -> None:
    assert octets({"key": "x" * KEY_BYTES_MAX}, "key") == b"x" * KEY_BYTES_MAX
    with pytest.raises(BadData, match=f"has {KEY_BYTES_MAX + 1} bytes"):
        octets({"key": "x" * (KEY_BYTES_MAX + 1)}, "key")


def test_a_selection_is_of_a_key_or_a_prefix() -> None:
    assert selection({"key": "k"}) == KeySelection(b"k")
    assert selection({"key_base64": ""}) == KeySelection(b"")
    assert selection({"prefix": ""}) == KeySelection(None, b"")
    assert selection({"prefix_base64": "aw"}) == KeySelection(None, b"k")
    with pytest.raises(BadData, match="exclude each other"):
        selection({"key": "k", "prefix": ""})
    with pytest.raises(BadData, match="'key' is missing"):
        selection({})


def test_an_event_stream_goes_on_after_the_last_event_of_its_reader() -> None:
    """The id -1 is given out before the first record."""

    def request(**headers: str) -> Any:
        return SimpleNamespace(headers=headers)

    for text, start in (("", 7), ("-1", 0), ("0", 1), ("12", 13), (str(SEQUENCE_MAX - 1), SEQUENCE_MAX)):
        assert resumed(request(**{"Last-Event-ID": text}), 7) == start
    assert resumed(request(), 7) == 7
    for text in ("-2", "x", str(SEQUENCE_MAX), "٣"):
        with pytest.raises(BadData, match=r"Last-Event-ID is .*; it must be a sequence number"):
            resumed(request(**{"Last-Event-ID": text}), 7)
