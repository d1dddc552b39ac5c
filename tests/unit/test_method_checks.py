"""What a worker's method asks about its request while it works: is there time left, and is it still a light one?"""

from __future__ import annotations

import time

import pytest

from shared.errors import DeadlineExceeded, TooHeavy
from shared.telemetry import REQUEST_ID
from shared.wire import Request
from worker.methods.method import Method, begin, check


def request(left_s: float = 10.0, processor_s: float = 0.0) -> Request:
    return Request("series.list", (0,), time.monotonic() + left_s, processor_s=processor_s)


def work(processor_s: float) -> None:
    end = time.thread_time() + processor_s
    while time.thread_time() < end:
        pass


def test_a_request_has_until_its_deadline() -> None:
    check(request(), "late")
    with pytest.raises(DeadlineExceeded, match="too late"):
        check(request(left_s=0), "too late")


def test_a_cancelled_request_is_late() -> None:
    cancelled = request()
    cancelled.cancelled = True
    with pytest.raises(DeadlineExceeded):
        check(cancelled, "late")


def test_a_light_request_stops_when_its_processor_time_is_used_up() -> None:
    light = request(processor_s=0.005)
    begin(light)
    check(light, "late")
    time.sleep(0.02)  # other threads' time does not count
    check(light, "late")
    work(0.002)
    check(light, "late")
    work(0.004)
    with pytest.raises(TooHeavy):
        check(light, "late")


def test_a_heavy_request_has_as_much_as_it_needs() -> None:
    heavy = request()
    begin(heavy)
    work(0.02)
    check(heavy, "late")


def test_queries_are_light_or_heavy_and_other_methods_have_lanes_of_their_own() -> None:
    def run(shards: object, _: Request) -> None:
        raise AssertionError

    assert Method(run, "query").lane(request(processor_s=0.01)) == "light"  # type: ignore[arg-type]
    assert Method(run, "query").lane(request()) == "heavy"  # type: ignore[arg-type]
    assert Method(run, "write").lane(request(processor_s=0.01)) == "write"  # type: ignore[arg-type]


def test_what_a_thread_logs_names_the_request_it_works_for() -> None:
    one = request()
    one.http_request = "a-1"
    begin(one)
    assert REQUEST_ID.get() == "a-1"
    begin(request())
    assert REQUEST_ID.get() == ""
