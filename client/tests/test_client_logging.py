"""The handler of `logging`: it never blocks, sends each record once, and counts what it drops."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from client_server import FakeServer, reply
from proto import log_pb2

from triptych.logging import LogHandler

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
APPENDED = {"status": "success", "recordsAppended": 1, "startSequence": 0}


def logger_with(handler):
    logger = logging.Logger("some.part")
    logger.addHandler(handler)
    return logger


def run_apart(program):
    """In a process of its own, which finds the modules of these tests."""
    path = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=environment, check=True, timeout=60)


def sent(server):
    requests = [log_pb2.AppendRequest.FromString(request.content) for request in server.requests]
    return [record for request in requests for record in request.records]


def with_one_under_way(exit_timeout):
    """(server, handler, logger, going): the server has got a record, and answers when `going` is set."""
    going = threading.Event()

    def answer(request):
        going.wait(30)
        return reply(200, APPENDED)

    server = FakeServer(answer)
    handler = LogHandler(server.client(), exit_timeout=exit_timeout)
    logger = logger_with(handler)
    logger.info("under way")
    handler.drain(0)
    while not server.requests:
        time.sleep(0.001)
    return server, handler, logger, going


def test_records_are_json_with_what_the_program_adds():
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client(), key="service")
    logger = logger_with(handler)
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("failed %s", "here", extra={"user": 7, "what": object})
    assert handler.drain(5)
    [record] = sent(server)
    content = json.loads(record.value)
    assert record.key.value == b"service"
    assert (content["level"], content["logger"], content["message"]) == ("ERROR", "some.part", "failed here")
    assert content["exception"].endswith("KeyError: 'x'")
    assert (content["user"], content["what"]) == (7, "<class 'object'>")
    assert abs(content["time"] - time.time()) < 5
    handler.close()


def test_what_the_program_adds_takes_the_place_of_nothing():
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client())
    added = {"level": 3, "time": "noon", "exception": None, "extra_level": 4, "logger": "x"}
    logger_with(handler).warning("text", extra=added)
    handler.close()
    [record] = sent(server)
    content = json.loads(record.value)
    assert abs(content.pop("time") - time.time()) < 5
    assert content == {
        "level": "WARNING",
        "logger": "some.part",
        "message": "text",
        "extra_time": "noon",
        "exception": None,
        "extra_level": 4,
        "extra_extra_level": 3,
        "extra_logger": "x",
    }


def test_names_that_json_does_not_have_are_text():
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client())
    logger_with(handler).warning("text", extra={"counts": {(1, 2): [{b"k": 5, 7: None}], None: math.inf, 1.5: "x"}})
    handler.close()
    [record] = sent(server)
    expected = {"(1, 2)": [{"b'k'": 5, "7": None}], "null": "Infinity", "1.5": "x"}
    assert json.loads(record.value)["counts"] == expected
    assert handler.dropped == 0


def test_a_formatter_decides_what_the_value_is():
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client())
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger_with(handler).warning("ü")
    handler.close()
    assert [record.value.decode() for record in sent(server)] == ["WARNING ü"]


def test_a_full_queue_drops_and_counts_and_the_program_goes_on():
    going = threading.Event()

    def answer(request):
        going.wait(10)
        return reply(200, APPENDED)

    server = FakeServer(answer)
    handler = LogHandler(server.client(), queued_max=5, exit_timeout=0.05)
    logger = logger_with(handler)
    logger.info("first")
    handler.drain(0)
    began = time.monotonic()
    for i in range(5000):
        logger.info("%s", i)
    assert time.monotonic() - began < 2
    assert handler.dropped >= 3000
    assert not handler.drain(0.05)
    going.set()
    assert handler.drain(5)
    assert handler.dropped + len(sent(server)) == 5001
    handler.close()


def test_long_records_are_bounded_by_their_bytes_and_sent_in_small_batches(monkeypatch):
    monkeypatch.setattr("triptych.logging.QUEUED_BYTES_MAX", 1000)
    monkeypatch.setattr("triptych.logging.BATCH_BYTES_MAX", 300)
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client())
    handler.setFormatter(logging.Formatter("%(message)s"))
    for text in ("x" * 1001, *("y" * 200,) * 4):
        logger_with(handler).info(text)
    handler.close()
    assert handler.dropped == 1
    assert [record.value for record in sent(server)] == [b"y" * 200] * 4
    assert len(server.requests) >= 2


def test_what_the_server_refuses_is_dropped_alone():
    def answer(request):
        message = log_pb2.AppendRequest.FromString(request.content)
        bad = any(b"bad" in record.value for record in message.records)
        return reply(413, {"message": "too large"}) if bad else reply(200, APPENDED)

    server = FakeServer(answer)
    handler = LogHandler(server.client())
    logger = logger_with(handler)
    for text in ("a", "b", "bad", "c"):
        logger.info(text)
    handler.close()
    assert handler.dropped == 1
    stored = [
        json.loads(record.value)["message"]
        for record in sent(server)
        if len(sent(server)) and b"bad" not in record.value
    ]
    assert {"a", "b", "c"} <= set(stored)


def test_an_answer_that_nobody_expects_costs_only_its_records():
    server = FakeServer(reply(200, {"welcome": "to this network"}), reply(200, APPENDED))
    handler = LogHandler(server.client())
    logger = logger_with(handler)
    logger.warning("lost")
    assert handler.drain(5)
    logger.warning("sent")
    assert handler.drain(5)
    assert (len(server.requests), handler.dropped) == (2, 1)
    handler.close()


def test_what_the_client_logs_about_its_own_requests_is_not_sent():
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client())
    record = logging.LogRecord("httpx", logging.INFO, "", 1, "HTTP Request", (), None)
    handler.handle(record)
    handler.close()
    assert server.requests == []


def test_a_server_that_is_away_costs_only_the_records():
    server = FakeServer(reply(503, {"message": "down"}, Retry_After="9"))
    handler = LogHandler(server.client(timeout=1))
    logger_with(handler).info("x")
    assert handler.drain(5)
    assert handler.dropped == 1
    handler.close()


LOGGING_SIGNALS = """
import logging, signal, time
from client_server import FakeServer, reply
from test_client_logging import APPENDED, logger_with, sent
from triptych.logging import LogHandler

server = FakeServer(reply(200, APPENDED))
handler = LogHandler(server.client(), queued_max=1_000_000)
logger = logger_with(handler)
signals = logged = 0

def interrupt(number, frame):
    global signals
    signals += 1
    logger.warning("from the signal")

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
until = time.monotonic() + 0.4
while time.monotonic() < until:
    logger.warning("from the program")
    logged += 1
signal.setitimer(signal.ITIMER_REAL, 0)
handler.close()
assert signals and len(sent(server)) == logged + signals and not handler.dropped
"""


def test_a_signal_handler_may_log_while_the_program_logs():
    """Python runs it between any two instructions, also where the handler holds a lock."""
    run_apart(LOGGING_SIGNALS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_sends_its_own_records_and_the_end_of_a_program_what_is_queued():
    program = """
import logging, os, sys
import httpx
from triptych import Client
from triptych.logging import LogHandler

def answer(request):
    os.write(1, b"%d;" % (os.getpid() == parent))
    return httpx.Response(200, json={"recordsAppended": 1, "startSequence": 0})

parent = os.getpid()
handler = LogHandler(Client(http=httpx.Client(transport=httpx.MockTransport(answer))))
logging.getLogger().addHandler(handler)
logging.warning("parent")
handler.flush()
child = os.fork()
logging.warning("both")
if child:
    os.waitpid(child, 0)
"""
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert sorted(made.stdout.split(";")) == ["", "0", "1", "1"]


FORKING = """
import os
from test_client_logging import sent, with_one_under_way

server, handler, logger, going = with_one_under_way(exit_timeout=30)
for i in range(3):
    logger.info("%s", i)
child = os.fork()
if not child:
    handler.close()
    os._exit(handler.dropped)
assert os.waitpid(child, 0)[1] == 0, "it has dropped what its parent sends"
going.set()
handler.close()
assert (len(sent(server)), handler.dropped) == (4, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_that_closes_the_handler_does_not_count_what_its_parent_sends():
    run_apart(FORKING)


def test_a_record_that_cannot_be_written_is_counted(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client())
    logger_with(handler).info("%d", "no number")
    handler.close()
    assert (server.requests, handler.dropped) == ([], 1)


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_a_shutdown_waits_for_the_queue_though_requests_are_logged_to_the_handler_whose_lock_it_holds(level):
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client(), exit_timeout=5)
    logger_with(handler).error("x")
    of_requests = logging.getLogger("httpx")
    of_requests.setLevel(level)
    of_requests.addHandler(handler)
    began = time.monotonic()
    try:
        logging.shutdown([weakref.ref(handler)])
    finally:
        of_requests.removeHandler(handler)
        of_requests.setLevel(logging.NOTSET)
    assert time.monotonic() - began < 4, "it has waited for the thread that waited for it"
    assert (len(sent(server)), handler.dropped) == (1, 0)


CONFIGURING = """
import logging, logging.config, time
from test_client_logging import APPENDED, FakeServer, LogHandler, reply, sent

server = FakeServer(reply(200, APPENDED))
handler = LogHandler(server.client(), exit_timeout=5)
root = logging.getLogger()
root.addHandler(handler)
root.error("x")
root.setLevel("INFO")  # from here on, every logger has to look up its level
began = time.monotonic()
logging.config.dictConfig({"version": 1})
assert time.monotonic() - began < 4, "it has waited for the thread that waited for it"
assert (len(sent(server)), handler.dropped) == (1, 0)
"""


def test_a_new_configuration_waits_for_the_queue_though_it_holds_the_lock_of_all_loggers():
    """It closes all handlers, so the test has a process of its own."""
    run_apart(CONFIGURING)


def test_what_is_left_at_the_end_is_counted_and_so_is_what_comes_later():
    server, handler, logger, going = with_one_under_way(exit_timeout=0.05)
    for i in range(7):
        logger.info("%s", i)
    handler.close()
    assert handler.dropped == 7
    logger.info("later")
    assert handler.dropped == 8
    going.set()
    handler._thread.join(5)
    assert (len(sent(server)), handler.dropped) == (1, 8)


def test_what_is_no_json_is_appended_as_text():
    server = FakeServer(reply(200, APPENDED))
    handler = LogHandler(server.client())
    loss = {"loss": [float("nan"), 1.5], float("inf"): (-float("inf"),)}
    for found in (loss, 7):
        logger_with(handler).info("no file %s", os.fsdecode(b"caf\xe9"), extra={"found": found, "name_of_it": "\udcff"})
    handler.close()
    first, second = (json.loads(record.value, parse_constant=pytest.fail) for record in sent(server))
    assert (first["found"], second["found"]) == ({"loss": ["NaN", 1.5], "Infinity": ["-Infinity"]}, 7)
    for content in (first, second):
        assert (content["message"], content["name_of_it"]) == ("no file caf?", "?")


def test_who_waits_for_the_queue_while_the_handler_is_closed_goes_on():
    _, handler, _, going = with_one_under_way(exit_timeout=0.05)
    waiting = threading.Thread(target=handler.drain, args=(60,))
    waiting.start()
    while not handler._queue.qsize():
        time.sleep(0.001)
    handler.close()
    waiting.join(10)
    is_over = not waiting.is_alive() and handler.drain(5)
    going.set()
    assert is_over


def test_a_handler_that_could_not_be_made_is_not_flushed_at_the_end():
    with pytest.raises(ValueError, match="url is 'ftp://nowhere'") as raised:
        LogHandler("ftp://nowhere")
    assert raised.value.__traceback__ is not None, "it holds what has been made of the handler"
    registered = [reference() for reference in logging._handlerList]
    assert all(hasattr(handler, "_thread") for handler in registered if isinstance(handler, LogHandler))
