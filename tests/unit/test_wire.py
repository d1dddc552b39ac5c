from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from shared import wire
from shared.durations import format_duration, parse_duration_ms
from shared.wire import Reply, Request


def test_a_request_survives_the_wire_with_its_frames_in_place():
    sent = Request(
        "series.write",
        (1, 5),
        time.monotonic() + 3,
        b"body",
        [b"common"],
        {1: [b"one", memoryview(b"two")], 5: [b"three"]},
        http_request="a-1",
        trace_parent="00-1-2-01",
    )
    request_id, got = wire.decode_request(wire.encode_request(b"8 bytes.", sent))
    assert request_id == b"8 bytes."
    assert (got.http_request, got.trace_parent) == ("a-1", "00-1-2-01")
    assert (got.method, got.shards, got.body, list(got.frames)) == ("series.write", (1, 5), b"body", [b"common"])
    assert {shard: [bytes(f) for f in frames] for shard, frames in got.parts.items()} == {
        1: [b"one", b"two"],
        5: [b"three"],
    }
    assert got.time_left == pytest.approx(3, abs=0.1)


def test_a_request_that_waited_in_the_socket_of_a_stopped_process_is_past_its_deadline():
    message = wire.encode_request(b"8 bytes.", Request("m", (), time.monotonic() + 0.05))
    time.sleep(0.1)
    _, got = wire.decode_request(message)
    assert got.time_left == 0


def test_a_deadline_of_another_clock_is_told_by_the_time_left(monkeypatch):
    for sent_by, heard_by in ((1, 2), (0, 0)):
        monkeypatch.setattr(wire, "CLOCK", sent_by)
        message = wire.encode_request(b"8 bytes.", Request("m", (), time.monotonic() + 0.05))
        monkeypatch.setattr(wire, "CLOCK", heard_by)
        time.sleep(0.1)
        _, got = wire.decode_request(message)
        assert got.time_left == pytest.approx(0.05, abs=0.02)


def test_processes_of_one_host_know_that_they_have_one_clock():
    program = "import time; from shared import wire; print(wire.CLOCK, time.monotonic())"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    clock, now = answer.stdout.split()
    assert int(clock) == wire.CLOCK != 0
    assert float(now) == pytest.approx(time.monotonic(), abs=5)


def test_a_cancelled_request_has_no_time_left():
    request = Request("m", (), time.monotonic() + 3)
    request.cancelled = True
    assert request.time_left == 0


def test_a_reply_survives_the_wire():
    values = np.arange(3.0)
    sent = Reply(b"body", [memoryview(values).cast("B")], {3: "down"}, {"total": 1.5}, "BadData", "no")
    _, got = wire.decode_reply(wire.encode_reply(b"8 bytes.", sent))
    assert np.frombuffer(got.frames[0]).tolist() == [0.0, 1.0, 2.0]
    assert (got.body, got.shard_errors, got.timings_ms) == (b"body", {3: "down"}, {"total": 1.5})
    assert (got.error_class, got.error) == ("BadData", "no")


SIZES = [0, 1, 7, 8, 9, wire.INLINE_BYTES_MAX, wire.INLINE_BYTES_MAX + 1, 100_000]


def frames_of(sizes):
    return [np.random.default_rng(size).bytes(size) for size in sizes]


def test_frames_of_any_size_keep_their_order_and_content():
    sizes = [*SIZES, *reversed(SIZES)]
    body, *frames = frames_of(sizes)
    message = wire.encode_reply(b"8 bytes.", Reply(body, frames))
    assert len(message) == 1 + sum(size > wire.INLINE_BYTES_MAX for size in sizes)
    _, got = wire.decode_reply(message)
    assert [bytes(frame) for frame in (got.body, *got.frames)] == [body, *frames]


def test_small_frames_can_be_written_to_and_lie_where_numbers_may():
    frames = [b"x", np.arange(3.0).tobytes(), b"yyy", np.arange(4.0).tobytes()]
    message = wire.encode_request(b"8 bytes.", Request("m", (0,), time.monotonic() + 3, b"b", frames))
    _, got = wire.decode_request(message)
    for at in (1, 3):
        numbers = np.frombuffer(got.frames[at])
        assert numbers.flags.aligned
        assert numbers.flags.writeable


def test_arrays_of_any_type_are_frames():
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    _, got = wire.decode_reply(wire.encode_reply(b"8 bytes.", Reply(b"", [memoryview(values), bytearray(b"ab")])))
    assert np.frombuffer(got.frames[0], dtype=np.int32).tolist() == [0, 1, 2, 3, 4, 5]
    assert bytes(got.frames[1]) == b"ab"


def test_a_message_with_a_frame_too_many_is_refused():
    message = wire.encode_reply(b"8 bytes.", Reply(bytes(wire.INLINE_BYTES_MAX + 1)))
    with pytest.raises(AssertionError, match="announces 2 parts and has 3"):
        wire.decode_reply([*message, b"more"])


@pytest.mark.parametrize(
    ("text", "ms"), [("1h30m", 5_400_000), ("5m", 300_000), ("1y", 31_536_000_000), ("250ms", 250), ("0", 0)]
)
def test_durations_parse(text, ms):
    assert parse_duration_ms(text) == ms
    assert parse_duration_ms(format_duration(ms)) == ms


@pytest.mark.parametrize("text", ["", "5", "m", "5m1h", "1.5h", "-5m", "5 m", "5x", "1m1m"])
def test_what_is_not_a_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(text)
