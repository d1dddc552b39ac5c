"""Producers: numbers of batches that failed, and what a forked process does with a producer of its parent."""

from __future__ import annotations

import os
import threading

import httpx
import pytest
from client_server import FakeServer, forking, in_a_fork, is_soon_over, reply
from proto import log_pb2

import triptych

APPENDED = reply(200, {"status": "success", "recordsAppended": 1, "startSequence": 7})


def sent(server):
    requests = [log_pb2.AppendRequest.FromString(request.content) for request in server.requests]
    return [(request.records[0].value.decode(), request.producer_id, request.producer_seq) for request in requests]


class Failing:
    """A server that refuses the batches with these values, as long as they are in the set."""

    def __init__(self, *values):
        self.values = set(values)
        self.server = FakeServer(self._answer)
        self.producer = self.server.client().log.producer("p")

    def append(self, value):
        self.producer.append([("k", value)])

    def fail(self, value):
        with pytest.raises(triptych.BadRequest):
            self.append(value)

    def numbers(self, value):
        return [number for sent_value, _, number in sent(self.server) if sent_value == value]

    def _answer(self, request):
        [record] = log_pb2.AppendRequest.FromString(request.content).records
        return reply(400, {"message": "no"}) if record.value.decode() in self.values else APPENDED


def test_a_batch_that_failed_keeps_its_number_while_others_come_between():
    failing = Failing("a", "b")
    failing.fail("a")
    failing.fail("b")
    failing.append("c")
    failing.values.clear()
    for value in "abab":
        failing.append(value)
    assert [failing.numbers(value) for value in "abc"] == [[0, 0, 3], [1, 1, 4], [2]]
    assert failing.producer.numbers.next_sequence == 5


@pytest.mark.parametrize(("later", "number"), [(7, 0), (8, 9)])
def test_a_batch_that_failed_keeps_its_number_as_long_as_the_server_remembers_it(later, number):
    failing = Failing("a")
    failing.fail("a")
    for i in range(later):
        failing.append(f"later {i}")
    failing.values.clear()
    failing.append("a")
    assert failing.numbers("a") == [0, number]


def test_a_batch_that_never_reached_the_server_is_appended_after_others_were():
    """The server refuses a number below all that it remembers."""
    is_up, remembered = False, []

    def answer(request):
        if not is_up:
            raise httpx.ConnectError("nobody listens")
        number = log_pb2.AppendRequest.FromString(request.content).producer_seq
        if remembered and number < min(remembered):
            return reply(
                400, {"message": f"`producerSeq` is {number}, and the producer is at {max(remembered)} already"}
            )
        remembered.append(number)
        return APPENDED

    producer = FakeServer(answer).client(timeout=0.01).log.producer("p")
    for value in "ab":
        with pytest.raises(triptych.ConnectionFailed):
            producer.append([("k", value)])
    is_up, producer._client.timeout = True, 60.0
    for value in "cba":
        producer.append([("k", value)])
    assert remembered == [2, 3, 4]


def test_a_batch_that_is_not_valid_is_refused_in_the_end_whatever_its_number_is():
    failing = Failing("a")
    failing.fail("a")
    failing.append("b")
    failing.fail("a")
    failing.fail("a")
    assert failing.numbers("a") == [0, 0, 2, 2]


@forking
def test_a_forked_process_makes_up_a_name_of_its_own():
    server = FakeServer(APPENDED)
    producer = server.client().log.producer()
    producer.append([("k", "parent")])

    def append():
        producer.append([("k", "child")])
        [(_, parent_name, _), (_, child_name, number)] = sent(server)
        return parent_name != child_name, number

    assert in_a_fork(append) == "(True, 0)"
    producer.append([("k", "parent")])
    [first, second] = sent(server)
    assert (first[1], second[2]) == (second[1], 1)


@forking
def test_a_forked_process_keeps_a_name_that_was_given():
    server = FakeServer(APPENDED)
    producer = server.client().log.producer("p", sequence=3)
    assert in_a_fork(lambda: producer.append([("k", "child")]) and sent(server)) == "[('child', 'p', 3)]"


@forking
def test_a_process_that_is_forked_during_an_append_can_append():
    producer = FakeServer(APPENDED).client().log.producer()
    begun, forked = threading.Event(), threading.Event()

    def records():
        begun.set()
        forked.wait(10)
        yield "k", "parent"

    appending = threading.Thread(target=producer.append, args=(records(),))
    appending.start()
    begun.wait(10)
    try:
        assert in_a_fork(lambda: is_soon_over(producer.append, [("k", "child")])) == "True"
    finally:
        forked.set()
        appending.join()


@forking
def test_no_thread_of_a_forked_process_uses_its_parents_connections(monkeypatch):
    """A thread that comes while another one makes the new connections waits for none, and makes some as well."""
    client = triptych.Client("http://127.0.0.1:1")
    transport = client._transport
    parents = transport._http
    used = []

    def made(**options):
        used.append(transport._pid == os.getpid() and transport._http is parents)
        return parents

    def connect():
        monkeypatch.setattr("triptych.transport.httpx.Client", made)
        transport._connect()
        return used

    assert in_a_fork(connect) == "[False]"
    client.close()
