"""`triptych query`: PromQL from a shell."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from typing import Any

import click

from coordinator.command_client import Client
from coordinator.commands.connection import with_client
from coordinator.commands.output import json_option, tell
from shared.durations import parse_duration_ms

TIMEOUT = "2m"
"""The server's default for the longest timeout of a query."""
GRACE_S = 10.0
"""How long after its timeout the response to a query may arrive, in seconds."""
POINTS = 100
"""The maximum number of points of a range without --step."""
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
DAY_S = 86_400


class Moment(click.ParamType):
    """A time, as Unix seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return moment(value, time.time())
        except ValueError:
            self.fail(
                f"{value!r} is not a time; it must be RFC 3339, Unix seconds, now, or relative to now, such as -1h30m"
            )


def moment(text: str, now_s: float) -> float:
    """Unix seconds of RFC 3339 text, Unix seconds, `now` or a duration with a minus sign. Raises ValueError."""
    if text == "now":
        return now_s
    if re.match(r"-\d+[a-z]", text):
        return now_s - parse_duration_ms(text[1:]) / 1000
    if re.fullmatch(r"-?\d+(\.\d*)?", text):
        return float(text)
    date = datetime.fromisoformat(text)
    if date.tzinfo is None:
        raise ValueError("a time without an offset from UTC")
    return date.timestamp()


class Duration(click.ParamType):
    """A duration in Prometheus's format: text such as 5m, or seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(value) if re.fullmatch(r"\d+(\.\d*)?", value) else parse_duration_ms(value) / 1000
        except ValueError as error:
            self.fail(str(error))


@click.command()
@click.argument("expression", metavar="EXPR")
@click.option("--time", "at", type=Moment(), help="The time of the evaluation (default: now).")
@click.option("--start", type=Moment(), help="Evaluate over a range that starts at this time.")
@click.option("--end", type=Moment(), help="The end of the range (default: now).")
@click.option("--step", type=Duration(), help=f"Time between two points (default: one that yields up to {POINTS}).")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Return at most N series; 0: all.")
@click.option("--timeout", type=Duration(), default=TIMEOUT, help=f"Timeout of the query (default: {TIMEOUT}).")
@click.option(
    "--explain",
    is_flag=True,
    help="Print, instead of the result, which process evaluated which part, and how long it took.",
)
@json_option
@with_client
def query(
    client: Client,
    expression: str,
    at: float | None,
    start: float | None,
    end: float | None,
    step: float | None,
    limit: int | None,
    timeout: float,
    explain: bool,
    as_json: bool,
) -> int:
    """Evaluate the PromQL expression EXPR, at one time or, with --start, over a range.

    A time is RFC 3339, Unix seconds, `now`, or relative to now, such as -1h30m. On a terminal, the result is a table,
    which has a sparkline for each series of a range. Elsewhere it is tab-separated lines: series and value, or, for
    each sample of a range, series, time and value.

    \b
    triptych query up
    triptych query 'sum by (job) (rate(http_requests_total[5m]))' --start -1h
    triptych query 'max_over_time(temperature[1d])' --time 2026-01-01T00:00:00Z --json
    """
    path, fields = _request(at, start, end, step)
    fields |= {"query": expression, "timeout": seconds(timeout)}
    if limit is not None:
        fields["limit"] = str(limit)
    if explain:
        fields["explain"] = "true"
    answer = client.form(path, fields, timeout + GRACE_S)
    content = client.content(answer)
    if as_json:
        sys.stdout.buffer.write(answer.body.rstrip(b"\n") + b"\n")
    else:
        from coordinator.commands import query_output

        (query_output.write_plan if explain else query_output.write_result)(content["data"])
    return tell(content)


def _request(
    at: float | None, start: float | None, end: float | None, step: float | None
) -> tuple[str, dict[str, str]]:
    """Returns (path, parameters for the times). Raises click.UsageError."""
    if start is None:
        if end is not None or step is not None:
            raise click.UsageError("--end and --step need --start")
        return "/api/v1/query", {} if at is None else {"time": f"{at:.3f}"}
    if at is not None:
        raise click.UsageError("--time is for one time, --start for a range; give one of them")
    end = time.time() if end is None else end
    if end < start:
        raise click.UsageError(f"the range ends {start - end:.3f} s before it begins")
    step = step_of(end - start) if step is None else step
    times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": seconds(step)}
    return "/api/v1/query_range", times


def seconds(duration_s: float) -> str:
    """A duration for a request, with all its digits."""
    return f"{duration_s:.15g}"


def step_of(range_s: float) -> int:
    """A round step in whole seconds, with which a range has at most POINTS points."""
    least_s = range_s / POINTS
    days = DAY_S * -int(-least_s // DAY_S)
    return next((step for step in STEPS_S if step >= least_s), days)
