"""A query from its plan to its conclusion: what workers are asked, how long is waited for them, and what is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.fanout.links import Links
from coordinator.queries import evaluation
from coordinator.queries.cost import Estimate
from coordinator.queries.evaluation import (
    INLINE_TEXT_MAX,
    SHARDS_SHARE,
    Conclusion,
    Query,
    ask,
    in_thread,
    made,
    merge,
    planned,
    remark_texts,
)
from coordinator.queries.explain import explain, stats
from coordinator.queries.gate import HEAVY, Place
from coordinator.queries.joining import SeriesBecameEqual
from coordinator.queries.planner import plan
from loadtest.harness.memory_source import MemorySource
from shared.errors import DeadlineExceeded, Unavailable
from shared.labels import Symbols
from shared.messages.sub_queries import EvaluateBody
from shared.process.processor_time import ProcessorTime
from shared.promql.engine.context import TIMED_OUT
from shared.promql.model import Annotations, Grid, Matrix, Source
from shared.wire import Reply, pack, unpack
from worker.queries.evaluation import answer

MINUTE_MS = 60_000
INSTANT = Grid(MINUTE_MS, MINUTE_MS)
RANGE = Grid(0, 2 * MINUTE_MS, MINUTE_MS)


def of(*names: str) -> MemorySource:
    return MemorySource.of({name: ([0, MINUTE_MS], [1.0, 2.0]) for name in names})


class Workers:
    """Each source is a worker with one shard. `delay_s` passes before the answers, `refusal` is raised instead."""

    def __init__(self, *sources: Source) -> None:
        self.sources = sources
        self.missing: dict[int, str] = {}
        self.delay_s = 0.0
        self.refusal: Exception | None = None
        self.asked: list[tuple[EvaluateBody, float]] = []

    def worker_count(self) -> int:
        return len(self.sources)

    async def fan_out(
        self, method: str, *, body: bytes, timeout_s: float, processor_s: float, shards: None = None
    ) -> FanOut:
        assert method == "query.evaluate"
        asked = unpack(body, EvaluateBody)
        self.asked.append((asked, timeout_s))
        await asyncio.sleep(self.delay_s)
        if self.refusal is not None:
            raise self.refusal
        answers = []
        for number, source in enumerate(self.sources):
            evaluated, frames = answer(
                asked,
                source,
                Symbols(),
                deadline=time.monotonic() + 60,
                cancelled=lambda: False,
                processor=ProcessorTime(processor_s),
            )
            reply = Reply(pack(evaluated), [bytes(frame) for frame in frames])
            reply.timings_ms = {"evaluate": 2.5}
            answers.append(WorkerReply(f"worker-{number}", (number,), reply, 1500.0))
        return FanOut(answers, self.missing)


def query(text: str, grid: Grid = INSTANT, **options: Any) -> Query:
    defaults = {"limit": 0, "lookback_ms": 300_000, "samples_max": 1000, "timeout_ms": 10_000}
    return Query(text, grid, grid is not INSTANT, **{**defaults, **options})


def concluded(asked: Query, workers: Workers) -> Conclusion:
    async def run() -> Conclusion:
        replies = await ask(asked, await planned(asked), cast(Links, workers), HEAVY)
        conclusion, _ = await made(lambda: merge(asked, replies), asked, replies)
        return conclusion

    return asyncio.run(run())


# What is asked


@pytest.mark.parametrize(
    ("text", "grid", "limit", "form"),
    [
        ("m", INSTANT, 0, "vector"),
        ("m", RANGE, 0, "matrix"),
        ("m[5m]", INSTANT, 0, "matrix"),
        ("m", INSTANT, 1, "arrays"),
        ("m", RANGE, 1, "arrays"),
        ("sort(m)", INSTANT, 0, "arrays"),
        ("sort(m)", RANGE, 0, "matrix"),
    ],
)
def test_series_are_rendered_by_the_workers_where_none_is_moved_or_left_out(
    text: str, grid: Grid, limit: int, form: str
) -> None:
    assert query(text, grid, limit=limit).form(plan(text, grid)) == form


def test_the_workers_get_the_terms_of_the_query() -> None:
    workers = Workers(of("m"))
    concluded(query("m", RANGE, lookback_ms=7000, samples_max=50), workers)
    asked, timeout_s = workers.asked[0]
    assert (asked.start_ms, asked.end_ms, asked.step_ms) == (0, 2 * MINUTE_MS, MINUTE_MS)
    assert (asked.lookback_ms, asked.samples_max, asked.form) == (7000, 50, "matrix")
    assert 10 * SHARDS_SHARE - 1 < timeout_s <= 10 * SHARDS_SHARE


def test_the_time_already_spent_on_a_question_is_taken_from_its_deadline() -> None:
    late = query("m", timeout_ms=10_000, asked_at=time.perf_counter() - 4)
    assert late.terms("arrays", HEAVY, 1).deadline == pytest.approx(time.monotonic() + 6, abs=0.5)
    workers = Workers(of("m"))
    concluded(late, workers)
    assert 5 * SHARDS_SHARE < workers.asked[0][1] <= 6 * SHARDS_SHARE


def test_a_question_without_a_selector_asks_nobody() -> None:
    workers = Workers()
    value = concluded(query("vector(3)"), workers).merged.value
    assert isinstance(value, Matrix) and value.values.tolist() == [[3.0]]
    assert workers.asked == []


def test_a_long_text_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_over: list[str] = []
    there = evaluation.in_thread

    async def noted(call: Callable[[], Any], asked: Query, place: Place) -> Any:
        handed_over.append(asked.text)
        return await there(call, asked, place)

    monkeypatch.setattr(evaluation, "in_thread", noted)
    short, long = (f"{'m':{length}}" for length in (INLINE_TEXT_MAX, INLINE_TEXT_MAX + 1))
    for text in (short, long):
        assert asyncio.run(planned(query(text))).text == text
    assert handed_over == [long]


# How long is waited


def test_a_question_whose_time_is_over_asks_nobody() -> None:
    workers = Workers(of("m"))
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        concluded(query("m", timeout_ms=1000, asked_at=time.perf_counter() - 2), workers)
    assert workers.asked == []


def test_a_question_whose_time_ends_this_moment_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(of("m"))
    now = time.monotonic()
    monkeypatch.setattr(evaluation.time, "monotonic", lambda: now)
    terms = replace(query("m").terms("arrays", HEAVY, 1), deadline=now)
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        asyncio.run(evaluation._ask(query("m"), plan("m", INSTANT), terms, cast(Links, workers)))
    assert workers.asked == []


def test_no_answer_at_once_is_told_as_what_it_is() -> None:
    workers = Workers()
    workers.refusal = Unavailable("shard 0: it is down")
    with pytest.raises(Unavailable, match="it is down"):
        concluded(query("m"), workers)


def test_no_answer_within_the_workers_time_is_a_timeout() -> None:
    workers = Workers()
    workers.refusal = Unavailable("no answer")
    workers.delay_s = 0.2 * SHARDS_SHARE  # which is the end of it, or a little later
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        concluded(query("m", timeout_ms=200), workers)


@pytest.mark.parametrize(("early_s", "is_timeout"), [(0.010, True), (0.011, False), (0.0, True)])
def test_workers_may_notice_the_end_of_their_time_ten_milliseconds_early(
    early_s: float, is_timeout: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(evaluation.time, "monotonic", lambda: clock.now)

    class Late(Workers):
        async def fan_out(
            self, method: str, *, body: bytes, timeout_s: float, processor_s: float, shards: None = None
        ) -> FanOut:
            clock.now += timeout_s - early_s + 1e-9 if is_timeout else timeout_s - early_s
            raise Unavailable("no answer")

    terms = query("m").terms("arrays", HEAVY, 1)
    with pytest.raises(DeadlineExceeded if is_timeout else Unavailable):
        asyncio.run(evaluation._ask(query("m"), plan("m", INSTANT), terms, cast(Links, Late())))


def test_a_shard_that_is_missing_is_told_or_refuses_the_whole_answer_if_that_is_asked_for() -> None:
    workers = Workers(of("m"))
    workers.missing = {1: "it is down", 2: "it is late"}
    warnings = concluded(query("m"), workers).warnings
    assert [word for word in ("it is down", "it is late") if word in " ".join(warnings)] == ["it is down", "it is late"]
    with pytest.raises(Unavailable, match=r"it is down.*; .*it is late"):
        concluded(query("m", partial_response=False), workers)
    workers.missing = {}
    assert concluded(query("m", partial_response=False), workers).warnings == []


def test_a_question_that_nobody_waits_for_any_more_is_cancelled() -> None:
    asked, begun, free = query("m"), Event(), Event()

    def work() -> bool:
        begun.set()
        return free.wait(5)

    async def run() -> None:
        task = asyncio.create_task(in_thread(work, asked, HEAVY))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        free.set()

    asyncio.run(run())
    assert asked.is_cancelled
    assert asked.terms("arrays", HEAVY, 1).cancelled()


# What is told


def test_workers_answers_are_one_value_and_each_is_told_of() -> None:
    asked = query("m or n", RANGE, lookback_ms=1)
    conclusion = concluded(asked, Workers(of('m{a="1"}'), of('n{a="2"}')))
    assert conclusion.plan.text == "m or n"
    value = conclusion.merged.value
    assert isinstance(value, Matrix) and value.labels.size == 2
    conclusion.timings_s["resultSortTime"] = 0.0
    shards = stats(asked, conclusion)["shards"]
    assert [(s["worker"], s["shards"], s["elapsedTime"]) for s in shards] == [
        ("worker-0", [0], 1.5),
        ("worker-1", [1], 1.5),
    ]
    for shard in shards:
        assert shard["samples"] == 2
        assert shard["timings"] == {"evaluate": 0.0025}
        assert sorted(part["samples"] for part in shard["subqueries"]) == [0, 2]
        assert {part["form"] for part in shard["subqueries"]} == {"matrix"}
        assert all(0 <= part["evalTime"] < 10 for part in shard["subqueries"])


def test_series_that_labels_made_equal_on_two_workers_are_asked_for_again_as_they_are() -> None:
    one, other = (MemorySource.of({f'm{{a="{n}"}}': ([n * MINUTE_MS], [float(n)])}) for n in (1, 2))
    workers = Workers(one, other)
    asking = query('sum(label_replace(m, "a", "", "", ""))', RANGE, lookback_ms=1000)
    with pytest.raises(SeriesBecameEqual):
        concluded(asking, workers)

    async def carefully() -> Conclusion:
        careful_plan = await planned(asking, relabel=False)
        return merge(asking, await ask(asking, careful_plan, cast(Links, workers), HEAVY, careful=True))

    value = asyncio.run(carefully()).merged.value
    assert [asked.subqueries[0].mode for asked, _ in workers.asked] == ["relabelled", "value"]
    assert [asked.form for asked, _ in workers.asked][1] == "arrays"
    assert isinstance(value, Matrix) and value.values[value.present].tolist() == [1.0, 2.0]


def test_stages_of_a_query_follow_one_another_and_add_up() -> None:
    workers = Workers(of("m"))
    workers.delay_s = 0.05
    asked = query("m", asked_at=time.perf_counter() - 1)
    started = time.perf_counter()
    conclusion = concluded(asked, workers)
    took_s = time.perf_counter() - started
    timings = conclusion.timings_s
    assert 1 <= timings["queryPreparationTime"] < 1 + took_s
    assert 0.05 <= timings["shardsTime"] < took_s
    assert 0 <= timings["execQueueTime"] < took_s - 0.05
    assert 0 < timings["mergeTime"] < took_s - 0.05


def test_stats_have_the_stages_their_sums_and_the_samples() -> None:
    asked = query("sum(m) + sum(n)", RANGE, asked_at=time.perf_counter() - 5)
    conclusion = concluded(asked, Workers(of("m"), of("n")))
    conclusion.timings_s = {
        "queryPreparationTime": 1.0,
        "shardsTime": 2.0,
        "execQueueTime": 16.0,
        "mergeTime": 4.0,
        "resultSortTime": 8.0,
    }
    told = stats(asked, conclusion)
    assert told["timings"]["innerEvalTime"] == 6.0
    assert told["timings"]["evalTotalTime"] == 15.0
    assert 5 <= told["timings"]["execTotalTime"] < 15
    assert told["timings"] == {name: round(seconds, 6) for name, seconds in told["timings"].items()}
    assert conclusion.timings_s.keys() < told["timings"].keys()
    assert told["samples"]["totalQueryableSamples"] == 4
    assert told["samples"]["peakSamples"] == conclusion.merged.samples_peak > 0
    assert [shard["worker"] for shard in told["shards"]] == [share.worker for share in conclusion.shares] != []


def test_a_plan_is_explained_as_a_tree_with_what_is_sent_and_what_is_not() -> None:
    asked = query("abs(sum(m) - 1) + quantile_over_time(scalar(n), (o[1m]))", RANGE)
    told = explain(asked, concluded(asked, Workers(of("m"), of("n"))), Estimate())
    assert [shard["worker"] for shard in told["shards"]] == ["worker-0", "worker-1"]
    assert told["shards"][0] == {"worker": "worker-0", "shards": [0], "time": 1.5}
    root = told["plan"]
    assert (root["node"], root["where"], root["text"]) == ("Binary", "coordinator", asked.text)
    absolute, quantile = root["children"]
    assert (absolute["node"], absolute["text"]) == ("Call", "abs(sum(m) - 1)")
    difference = absolute["children"][0]
    total, one = difference["children"]
    grid = {"start": 0.0, "end": 120.0, "step": 60.0}
    assert total == {
        "id": 3,
        "node": "Aggregate",
        "text": "sum(m)",
        "span": [4, 10],
        "where": "shards",
        "query": "sum(m)",
        "mode": "partial",
        "merge": "partial sum merged",
        "grid": grid,
    }
    assert one == {"id": 4, "node": "NumberLiteral", "text": "1", "span": [13, 14], "where": "coordinator"}
    scalar, ranged = quantile["children"]
    assert scalar["children"][0] | {"grid": None} == {
        "id": 7,
        "node": "VectorSelector",
        "text": "n",
        "span": [44, 45],
        "where": "shards",
        "query": "n",
        "mode": "value",
        "merge": "union of series",
        "grid": None,
    }
    (selector,) = ranged["children"]
    assert (selector["node"], selector["mode"], selector["merge"]) == ("MatrixSelector", "samples", "union of samples")
    assert selector["where"] == "shards" and "children" not in selector
    assert selector["grid"]["start"] == pytest.approx(-60, abs=0.01) and selector["grid"]["end"] == 120.0


def test_an_explained_query_tells_what_each_node_took_and_each_worker_and_shard_read() -> None:
    asked = query("sum(m) + scalar(n) + sum(m)", RANGE, explains=True)
    demand = plan(asked.text, RANGE).demands[0]
    expected = {demand: Estimate(1, 2, 5)}
    told = explain(asked, concluded(asked, Workers(of("m"), of("m", "n"))), Estimate(), expected)
    measured = {entry.pop("id"): entry for entry in told["measured"]}
    root = told["plan"]
    first, second = root["children"][0]["children"][0], root["children"][1]
    assert [asked.text[slice(*node["span"])] for node in (root, first, second)] == [asked.text, "sum(m)", "sum(m)"]
    assert measured[root["id"]]["time"] >= measured[root["children"][0]["id"]]["time"] > 0
    summed = measured[first["id"]]
    assert summed == measured[second["id"]], "the same text is sent once"
    assert (summed["leaf"], summed["series"], summed["samples"]) == (0, 2, 4)
    assert summed["estimate"] == {"series": 1, "samples": 2, "touches": 5, "leavesNotSeenBefore": 0}
    assert [part["worker"] for part in summed["workers"]] == ["worker-0", "worker-1"]
    assert [part["samples"] for part in summed["workers"]] == [2, 2]
    assert summed["time"] == max(part["time"] for part in summed["workers"])


def test_nodes_are_not_timed_unless_a_query_is_explained() -> None:
    asked = query("sum(m) + 1", RANGE)
    assert concluded(asked, Workers(of("m"))).merged.node_seconds == {}


def texts(remarks: Sequence[tuple[str, str, int | None]], level: str, text: str = "sum(m)\n + n") -> list[str]:
    annotations = Annotations()
    for own, said, offset in remarks:
        getattr(annotations, {"warning": "warn", "info": "info"}[own])(said, offset)
    return [shown.removeprefix(f"PromQL {level}: ") for shown in remark_texts(annotations, level, text)]


def test_remarks_of_a_level_come_in_the_order_of_the_text_with_their_places() -> None:
    remarks = [
        ("warning", "late", 10),
        ("warning", "b", 0),
        ("warning", "a", 0),
        ("warning", "nowhere", None),
        ("info", "other", 3),
    ]
    assert texts(remarks, "warning") == ["nowhere", "a (1:1)", "b (1:1)", "late (2:4)"]
    assert texts(remarks, "info") == ["other (1:4)"]


def test_ten_remarks_are_listed_and_the_others_counted() -> None:
    remarks = [("info", f"{number:02}", None) for number in range(12)]
    assert texts(remarks[:10], "info") == [f"{number:02}" for number in range(10)]
    assert texts(remarks[:11], "info")[9:] == ["09", "1 more info annotations omitted"]
    assert texts(remarks, "info") == [f"{number:02}" for number in range(10)] + ["2 more info annotations omitted"]
