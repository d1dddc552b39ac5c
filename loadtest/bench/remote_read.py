"""`python -m loadtest.bench.remote_read [--series N] [--samples N] [--sealed] [--only NAME]`: remote read of Triptych
and of Prometheus in turn, with the same counters, as samples and as streamed chunks. The client reads the bytes and
does not decode them. The samples are in memory, and with `--sealed`, in Triptych, in blocks."""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from collections.abc import Sequence

import snappy

from loadtest.bench.metrics.payloads import STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import send
from loadtest.bench.metrics.servers import Prometheus, Server, Triptych
from proto import remote_read_pb2

CONNECTIONS = 4
FORMS = {"samples": (0,), "chunks": (1,)}
WARM_UPS, TIMES = 3, 9
BEHIND_NOW_MS, SEALED_BEHIND_NOW_MS = 60_000, 5 * 3_600_000
"""How old the newest sample is. Samples of windows that are past can be sealed."""
READ_BYTES = 1 << 20
KINDS: tuple[type[Server], ...] = (Triptych, Prometheus)
HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}


def body_of(work: Workload, accepted: Sequence[int], job: str = "") -> bytes:
    query = remote_read_pb2.Query(start_timestamp_ms=work.start_ms, end_timestamp_ms=work.end_ms)
    query.matchers.add(name="__name__", value=work.metric)
    if job:
        query.matchers.add(name="job", value=job)
    request = remote_read_pb2.ReadRequest(queries=[query], accepted_response_types=accepted)  # type: ignore[arg-type]
    return snappy.compress(request.SerializeToString())


def read(port: int, body: bytes) -> tuple[float, int]:
    """(seconds, bytes of the answer)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    started = time.perf_counter()
    connection.request("POST", "/api/v1/read", body, HEADERS)
    answer = connection.getresponse()
    size = 0
    first = b""
    while piece := answer.read(READ_BYTES):
        first = first or piece[:300]
        size += len(piece)
    seconds = time.perf_counter() - started
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"/api/v1/read gave {answer.status}: {first!r}")
    return seconds, size


def measure(server: Server, work: Workload) -> None:
    for form, accepted in FORMS.items():
        for job, series in (("", work.series), ("job-0", work.series // 10)):
            body, samples = body_of(work, accepted, job), series * work.samples
            for _ in range(WARM_UPS):
                read(server.port, body)
            before = server.cpu_s()
            taken = [read(server.port, body) for _ in range(TIMES)]
            processor_s = (server.cpu_s() - before) / TIMES
            seconds, size = min(taken)
            sys.stdout.write(
                f"{server.name:12} {form:8} {samples:>10,} samples  {samples / seconds / 1e6:6.1f} M/s  "
                f"{samples / processor_s / 1e6:6.1f} M/s of a core  {size / samples:5.2f} bytes each\n"
            )
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--sealed", action="store_true")
    parser.add_argument("--only", choices=[kind.name for kind in KINDS])
    options = parser.parse_args()
    behind_ms = SEALED_BEHIND_NOW_MS if options.sealed else BEHIND_NOW_MS
    end_ms = (int(time.time() * 1000) - behind_ms) // STEP_MS * STEP_MS
    work = Workload("m", options.series, options.samples, end_ms - (options.samples - 1) * STEP_MS)
    streams = requests(work, CONNECTIONS)
    for server in [kind() for kind in KINDS if options.only in (None, kind.name)]:
        try:
            server.start()
            server.wait_quiet()
            send(server.port, streams)
            if options.sealed and isinstance(server, Triptych):
                server.seal()
            server.wait_quiet()
            measure(server, work)
        finally:
            server.stop()
            server.remove()


if __name__ == "__main__":
    main()
