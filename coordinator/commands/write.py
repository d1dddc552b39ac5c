"""`triptych write`: samples from a shell, sent by remote write."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from coordinator.command_client import Answer, Client, CommandError
from coordinator.commands.connection import with_client
from coordinator.commands.lines import Lines, read_lines, standard_input
from coordinator.commands.output import INCOMPLETE, printable, write_json
from coordinator.commands.progress import Counting, size_of
from coordinator.commands.repeating import PATIENCE_S, until_answered
from coordinator.plurals import counted

if TYPE_CHECKING:
    from coordinator.commands.sample_lines import Family, Samples

PATH = "/api/v1/write"
HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
WRITTEN = "x-prometheus-remote-write-samples-written"
REQUEST_SAMPLES = 10_000
PROBLEMS_SHOWN = 10


class LabelPair(click.ParamType):
    """A label: NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not a label; it must be such as job=backup")
        return name, text


@click.command()
@click.option(
    "--label", "labels", type=LabelPair(), multiple=True, help="Add this label to every series; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
@with_client
def write(client: Client, labels: tuple[tuple[str, str], ...], as_json: bool) -> int:
    """Store samples from standard input as they arrive.

    Each line is a sample in Prometheus's text format, with or without a time in Unix milliseconds, or JSON: the samples
    of a series in VictoriaMetrics's export format, or a single sample. Invalid lines are reported on standard error,
    and the others are stored. While the cluster is down, samples are retried for a minute; none is stored twice.

    \b
    echo 'backup_seconds{host="a"} 12.5' | triptych write --label job=backup
    echo '{"metric": {"__name__": "backup_seconds"}, "value": 12.5}' | triptych write
    curl -s http://127.0.0.1:9100/metrics | triptych write --label job=node
    """
    lines = standard_input()
    with Counting("samples written", size_of(lines)) as progress:
        sending = Sending(client, dict(labels), progress)
        for numbered in read_lines(lines):
            sending.send(numbered)
    sending.tell_the_rest()
    if as_json:
        write_json({"samplesWritten": progress.count, "problems": sending.problems})
    else:
        click.echo(counted(progress.count, "samples written"))
    if sending.problems:
        return INCOMPLETE if progress.count else 1
    return 0


class Sending:
    """Sends the samples of lines. `problems`: the number of lines and requests of which something was refused."""

    def __init__(self, client: Client, labels: dict[str, str], progress: Counting) -> None:
        self._client = client
        self._labels = labels
        self._progress = progress
        self._known: dict[str, Family] = {}
        self.problems = 0

    def send(self, lines: Lines) -> None:
        """Raises CommandError if the cluster refuses everything, or is down for too long."""
        from coordinator.commands.sample_lines import Samples

        now_ms = int(time.time() * 1000)
        samples, size_bytes = Samples(self._known), 0
        for number, line in lines:
            try:
                samples.read(line, now_ms, self._labels)
            except ValueError as error:  # also a UnicodeDecodeError
                self._tell(f"line {number}: {error}")
            size_bytes += len(line) + 1
            if samples.count + len(samples.families) >= REQUEST_SAMPLES:
                self._post_all(samples, size_bytes)
                samples, size_bytes = Samples(self._known), 0
        self._post_all(samples, size_bytes)

    def _post_all(self, samples: Samples, size_bytes: int) -> None:
        for request, count in requests(samples):
            self._post(request, count)
        self._progress.add(0, size_bytes)

    def _post(self, request: bytes, count: int) -> None:
        import snappy

        answer = until_answered(partial(self._answered, snappy.compress(request)), patience_s=PATIENCE_S)
        if answer.status == 400:
            self._tell(str(self._error_of(answer)))
        written = answer.headers.get(WRITTEN, "")
        self._progress.add(int(written) if written.isdigit() else count)

    def _answered(self, body: bytes) -> Answer:
        """The response to a request that was stored, all of it or in part. Raises CommandError, Away."""
        answer = self._client.send("POST", PATH, body, HEADERS)
        if answer.status != 204 and (answer.status != 400 or WRITTEN not in answer.headers):
            self._client.content(answer)
        return answer

    def _error_of(self, answer: Answer) -> CommandError:
        try:
            self._client.content(answer)
        except CommandError as error:
            return error
        raise AssertionError("an answer of status 400 is an error")

    def _tell(self, problem: str) -> None:
        self.problems += 1
        if self.problems <= PROBLEMS_SHOWN:
            sys.stderr.write(f"triptych: {printable(problem)}\n")

    def tell_the_rest(self) -> None:
        if self.problems > PROBLEMS_SHOWN:
            sys.stderr.write(f"triptych: {self.problems - PROBLEMS_SHOWN} more lines were refused\n")


def requests(samples: Samples) -> Iterator[tuple[bytes, int]]:
    """Yields (message of remote write 1.0, number of its samples), at most REQUEST_SAMPLES in each."""
    from proto import remote_write_pb2

    request, count = remote_write_pb2.WriteRequest(), 0
    for name, family in samples.families.items():
        request.metadata.add(metric_family_name=name, help=family.help, type=family.type)  # type: ignore[arg-type]
    for labels, points in samples.series.items():
        while points:
            request_points, points = points[: REQUEST_SAMPLES - count], points[REQUEST_SAMPLES - count :]
            series = request.timeseries.add()
            for name, value in labels:
                series.labels.add(name=name, value=value)
            for time_ms, number in request_points:
                series.samples.add(timestamp=time_ms, value=number)
            count += len(request_points)
            if count == REQUEST_SAMPLES:
                yield request.SerializeToString(), count
                request, count = remote_write_pb2.WriteRequest(), 0
    if count or request.metadata:
        yield request.SerializeToString(), count
