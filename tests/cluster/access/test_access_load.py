"""Access under load: files of users and tokens that change, and a flood of wrong passwords."""

from __future__ import annotations

import http.client
import threading
import time
from base64 import b64encode
from collections import Counter

from loadtest.harness.cluster import Cluster
from tests.cluster.secured import (
    ALICE,
    QUERY,
    TOKENS,
    Files,
    ask,
    bearer,
    wait_until,
)


def test_files_change_under_load(server: Cluster, files: Files) -> None:
    """A token that stays is never refused; a new one gets in, a removed one is out, also on its open connection; a file
    that cannot be used changes nothing."""
    statuses: Counter[int] = Counter()
    stop = threading.Event()

    def load() -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)
        while not stop.is_set():
            connection.request("GET", QUERY, headers={"Authorization": bearer("reader")})
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1

    thread = threading.Thread(target=load)
    thread.start()
    removed = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)

    def of_removed() -> int:
        removed.request("GET", QUERY, headers={"Authorization": bearer("writer")})
        answer = removed.getresponse()
        answer.read()
        return answer.status

    def is_valid() -> bool:
        return b"triptych_access_files_valid 1.0" in ask(server, "/metrics", ALICE).body

    try:
        assert of_removed() == 200
        files.write_tokens({"reader": TOKENS["reader"], "new": 'metrics = "read"'})
        wait_until(lambda: ask(server, QUERY, bearer("new")).status == 200)
        assert of_removed() == 401
        (files.directory / "tokens.toml").write_text("[new")
        wait_until(lambda: not is_valid())
        assert ask(server, QUERY, bearer("new")).status == 200
        files.write_tokens(TOKENS)
        web = (files.directory / "web.yml").read_text()
        (files.directory / "web.yml").write_text("")  # neither TLS nor users
        wait_until(lambda: "TLS would be off; that needs a restart" in server.log("coordinator"))
        (files.directory / "web.yml").write_text(web)
        wait_until(is_valid)
        assert of_removed() == 200
    finally:
        stop.set()
        thread.join()
        removed.close()
    assert set(statuses) == {200}


def test_a_flood_of_wrong_passwords_does_not_reach_those_who_are_known(server: Cluster) -> None:
    stop = threading.Event()
    statuses: Counter[int] = Counter()

    def guess(number: int) -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)
        for attempt in range(100_000):
            if stop.is_set():
                break
            guessed = b64encode(f"alice:{number}-{attempt}".encode()).decode()
            connection.request("GET", QUERY, headers={"Authorization": f"Basic {guessed}"})
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        connection.close()

    assert ask(server, QUERY, bearer("reader")).status == 200
    threads = [threading.Thread(target=guess, args=(number,)) for number in range(6)]
    victim = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)
    for thread in threads:
        thread.start()
    try:
        took = []
        for _ in range(100):
            started = time.perf_counter()
            victim.request("GET", QUERY, headers={"Authorization": bearer("reader")})
            answer = victim.getresponse()
            assert (answer.status, answer.read()) and answer.status == 200
            took.append(time.perf_counter() - started)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        victim.close()
    assert set(statuses) == {401, 503}
    assert sorted(took)[50] < 0.1
