"""The bystander: one client whose requests are light, in a process of its own.

`python -m loadtest.attacks.bystander PORT END_S` prints a line when it is at work. A line on its standard input starts
the measurement; the end of the input ends it, and a report in JSON is printed: `Waits` by kind of request.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from loadtest.attacks import target as names
from loadtest.attacks.priority import prefer
from loadtest.attacks.target import HOST, Target, base64_text

INTERVAL_S = 1 / 20
CONNECT_INTERVAL_S = 1.0
TIMEOUT_S = 30.0
"""A request without an answer after this time is an error, and a wait of this length."""
NICENESS = -10
"""So that the bystander's own work does not wait for a processor, not even behind the cluster."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one kind of request: how many were sent, their waits in ms, and errors by what was wrong."""

    sent: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    errors: Mapping[str, int]


Send = Callable[[http.client.HTTPConnection], None]


class Repeated:
    """One kind of request, sent at fixed times over one kept-alive connection, or each over a fresh one."""

    def __init__(self, target: Target, send: Send, interval_s: float, *, fresh: bool = False) -> None:
        self._target = target
        self._send = send
        self._interval_s = interval_s
        self._fresh = fresh
        self._waits_s: list[float] = []
        self._errors: Counter[str] = Counter()
        self._connection = self._connect()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, self._target.port, timeout=TIMEOUT_S)

    def begin(self) -> None:
        """Forget what was measured so far."""
        self._waits_s, self._errors = [], Counter()

    def stop(self) -> None:
        self._stop.set()

    def result(self) -> Waits:
        """Once it is stopped; a request that is under way counts."""
        self._thread.join(TIMEOUT_S + 1)
        waits_ms = np.array(self._waits_s or [0.0]) * 1000
        p50, p99 = np.percentile(waits_ms, [50, 99])
        return Waits(len(self._waits_s), float(p50), float(p99), float(waits_ms.max()), dict(self._errors))

    def _run(self) -> None:
        due = time.perf_counter()
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            error = self._ask()
            waited_s = time.perf_counter() - due
            self._waits_s.append(waited_s)
            if error:
                self._errors[error] += 1
            due += self._interval_s
            if waited_s >= TIMEOUT_S:
                due = time.perf_counter()  # the requests due meanwhile would only repeat the error

    def _ask(self) -> str:
        """What was wrong, or an empty text."""
        try:
            self._send(self._connection)
            answer = self._connection.getresponse()
            answer.read()
            error = "" if answer.status < 300 else f"status {answer.status}"
        except (OSError, http.client.HTTPException) as failure:
            error = type(failure).__name__
        if error or self._fresh:
            self._connection.close()  # the next request opens it again
        return error


class Bystander:
    """Asks as long as it lives; `begin` starts a measurement, `end` ends it and gives its report."""

    def __init__(self, target: Target) -> None:
        parameters = {"query": names.LIGHT_QUERY, "time": target.end_s}
        query = "/api/v1/query?" + urllib.parse.urlencode(parameters)
        scan = f"/api/v1/log/scan?key={names.BYSTANDER_KEY}&limit=10"
        record = {"key": base64_text(b"bystander-appends"), "value": base64_text(b"value" * 10)}
        append = json.dumps({"records": [record]}).encode()
        kind = {"Content-Type": "application/json"}
        self._kinds = {
            "query": Repeated(target, lambda c: c.request("GET", query), INTERVAL_S),
            "scan": Repeated(target, lambda c: c.request("GET", scan), INTERVAL_S),
            "append": Repeated(target, lambda c: c.request("POST", "/api/v1/log/append", append, kind), INTERVAL_S),
            "connect": Repeated(target, lambda c: c.request("GET", query), CONNECT_INTERVAL_S, fresh=True),
        }

    def begin(self) -> None:
        for kind in self._kinds.values():
            kind.begin()

    def end(self) -> dict[str, Waits]:
        for kind in self._kinds.values():
            kind.stop()
        return {name: kind.result() for name, kind in self._kinds.items()}


def main() -> None:
    prefer(NICENESS)
    bystander = Bystander(Target(int(sys.argv[1]), int(sys.argv[2])))
    print("at work", flush=True)
    if sys.stdin.readline():
        bystander.begin()
    sys.stdin.read()
    print(json.dumps({name: asdict(waits) for name, waits in bystander.end().items()}), flush=True)


if __name__ == "__main__":
    main()
