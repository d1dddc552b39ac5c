"""Remote writes of version 2.0 with and without aiohttp: the same is answered, stored and counted, byte by byte."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import snappy

from coordinator.api import write
from coordinator.direct import writes
from coordinator.direct.writes import PATH
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.series import known_samples
from coordinator.series.known_samples import KnownSamples
from coordinator.series.lessons import EMPTY_RECEIPT, Receipt
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import HEADERS_V2, request_v2
from proto.remote_write_v2_pb2 import Request
from shared.frames import references as reference_frames
from shared.frames import samples as sample_frames
from shared.frames.exemplars import MARK as EXEMPLARS_MARK
from shared.frames.runs import has_mark
from shared.messages.series import MetadataPutReply
from shared.wire import Frame, pack
from tests.unit.direct_service import Service, post, prompt

V2 = tuple(f"{name}: {value}" for name, value in HEADERS_V2.items())
SECOND = ("Host: localhost", *V2, "X-Prometheus-Remote-Write-Version: 2.0.0", "X-Request-Id: mine")
OTHER = "X-Other: of aiohttp"
NOW_MS = int(time.time() * 1000)
SERIES = 30
COUNTERS = (
    "samples_in", "histograms_in", "histograms_refused", "exemplars_in", "exemplars_refused", "series_refused",
    "series_by_number", "stale_writes",
)  # fmt: skip

Answer = tuple[int, dict[str, str], bytes]
Change = Callable[[Request], object]


class Workers:
    """Stands in for `SampleWrites` and `Links`: gives numbers to series, and says which frames are stale. `messages`:
    what was written, by shard."""

    def __init__(self) -> None:
        self.messages: list[dict[int, list[bytes]]] = []
        self.metadata: list[Any] = []
        self.epoch = 5
        self._numbers: dict[tuple[int, bytes], int] = {}

    def submit(self, parts: Mapping[int, Sequence[Frame]], known: KnownSamples | None = None) -> PromptFuture[Receipt]:
        return prompt(self.write(parts, known))

    async def write(self, parts: Mapping[int, Sequence[Frame]], known: KnownSamples | None = None) -> Receipt:
        frames = parts if known is None else {n: [frame] for n, frame in known_samples.frames([known]).items()}
        written = {shard: [bytes(frame) for frame in own] for shard, own in frames.items()}
        self.messages.append(written)
        stale, numbers = set(), {}
        for shard, place, frame in ((n, i, frame) for n, own in written.items() for i, frame in enumerate(own)):
            if reference_frames.is_references(frame):
                stale |= {(shard, place)} if reference_frames.parse(frame).epoch != self.epoch else set()
            elif not has_mark(frame, EXEMPLARS_MARK):
                columns = sample_frames.parse(frame)
                ends = zip(columns.starts.tolist(), columns.ends.tolist(), strict=True)
                own_labels = [columns.data[begin:end].tobytes() for begin, end in ends]
                found = [self._numbers.setdefault((shard, text), len(self._numbers)) for text in own_labels]
                numbers[shard, place] = np.array(found, dtype=np.int32)
        is_said = bool(stale or numbers)
        return Receipt(dict.fromkeys(written, self.epoch), frozenset(stale), numbers) if is_said else EMPTY_RECEIPT

    async def call(self, method: str, *, parts: Any, timeout_s: float) -> list[Any]:
        assert method == "series.metadata_put"
        self.metadata.append(parts)
        return [SimpleNamespace(message=SimpleNamespace(body=pack(MetadataPutReply(0))))]


class Sender:
    """A service with workers of its own, and a client whose requests it serves with or without aiohttp."""

    def __init__(self, *, by_aiohttp: bool) -> None:
        self.service, self.workers = Service(PATH, write.ROUTES), Workers()
        self.service.context.samples = self.workers  # type: ignore[assignment]
        self.service.context.links.call = self.workers.call  # type: ignore[method-assign]
        self._more = (OTHER,) if by_aiohttp else ()

    async def start(self) -> None:
        await self.service.start()
        self._client = await self.service.client()

    async def ask(self, content: bytes, headers: Sequence[str] = SECOND) -> Answer:
        answer = await self._client.ask(post(PATH, (*headers, *self._more), content))
        answer[1].pop("Date")
        return answer

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What was written and counted; of templates, how many there are."""
        context = self.service.context
        counts = {name: getattr(context.telemetry, name) for name in COUNTERS}
        return self.workers.messages, self.workers.metadata, counts, len(context.request_templates._entries)


class Both:
    """A service to which every request goes directly, and one to which it goes through aiohttp."""

    def __init__(self, seen: list[str]) -> None:
        self.direct, self.usual = Sender(by_aiohttp=False), Sender(by_aiohttp=True)
        self._seen = seen

    async def ask(self, content: bytes, headers: Sequence[str] = SECOND, *, is_direct: bool = True) -> Answer:
        """The answer, which is the same."""
        self._seen.clear()
        answer = await self.direct.ask(content, headers)
        assert not self._seen if is_direct else self._seen
        usual = await self.usual.ask(content, headers)
        assert (usual, list(usual[1])) == (answer, list(answer[1]))
        assert self.direct.outcome == self.usual.outcome
        assert self.direct.service.is_at_rest and self.usual.service.is_at_rest
        return answer


@pytest.fixture
async def both(monkeypatch: pytest.MonkeyPatch) -> Any:
    seen: list[str] = []
    message = write._message

    def noted(request: Any) -> str:
        seen.append(request.path)
        return message(request)

    monkeypatch.setattr(write, "_message", noted)
    both = Both(seen)
    await both.direct.start()
    await both.usual.start()
    yield both
    await both.direct.service.stop()
    await both.usual.service.stop()


def request_of(change: Change = lambda request: None, *, time_ms: int = NOW_MS, series: int = SERIES) -> Request:
    """One sample of each series, all of one metric; symbol 3 is a number."""
    request = request_v2([({"__name__": "m", "i": str(n)}, [(time_ms, time_ms + 0.5 * n)]) for n in range(series)])
    change(request)
    return request


def sent(request: Request) -> bytes:
    return bytes(snappy.compress(request.SerializeToString()))


def written(answer: Answer) -> tuple[int, ...]:
    """The status, and how many samples, histograms and exemplars were written."""
    counts = (answer[1][f"X-Prometheus-Remote-Write-{what}-Written"] for what in ("Samples", "Histograms", "Exemplars"))
    return answer[0], *map(int, counts)


def histograms(request: Request) -> None:
    for n, series in enumerate(request.timeseries):
        del series.samples[:]
        series.histograms.append(histogram_message(timestamp=NOW_MS, sum=float(n)))


def a_histogram_that_is_not_valid(request: Request) -> None:
    histograms(request)
    request.timeseries[5].histograms[0] += b"\x18\x63"  # the schema


def exemplars(request: Request) -> None:
    for series in request.timeseries[::3]:
        series.exemplars.add(labels_refs=[1, 2], value=1.0, timestamp=NOW_MS)


def an_exemplar_that_is_not_valid(request: Request) -> None:
    exemplars(request)
    request.timeseries[3].exemplars[0].labels_refs.append(4)


def metadata(request: Request) -> None:
    request.symbols.append("how many")
    for series in request.timeseries:
        series.metadata.type, series.metadata.help_ref = 1, len(request.symbols) - 1


def a_symbol_that_is_not_there(request: Request) -> None:
    request.timeseries[4].labels_refs[3] = 999


def help_that_is_not_there(request: Request) -> None:
    metadata(request)
    request.timeseries[4].metadata.help_ref = 999


def a_series_without_a_name(request: Request) -> None:
    del request.timeseries[7].labels_refs[:2]


def a_time_that_nothing_has(request: Request) -> None:
    request.timeseries[7].samples[0].timestamp = 1 << 60


def labels_in_another_order(request: Request) -> None:
    references = request.timeseries[7].labels_refs
    references[:] = [*references[2:], *references[:2]]


def a_first_symbol_that_is_not_empty(request: Request) -> None:
    request.symbols[0] = "x"


def no_symbols(request: Request) -> None:
    del request.symbols[:]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda request: None, (204, SERIES, 0, 0)),
        (histograms, (204, 0, SERIES, 0)),
        (a_histogram_that_is_not_valid, (400, 0, SERIES - 1, 0)),
        (exemplars, (204, SERIES, 0, SERIES // 3)),
        (an_exemplar_that_is_not_valid, (400, SERIES, 0, SERIES // 3 - 1)),
        (metadata, (204, SERIES, 0, 0)),
        (help_that_is_not_there, (400, SERIES, 0, 0)),
        (a_symbol_that_is_not_there, (400, SERIES - 1, 0, 0)),
        (a_series_without_a_name, (400, SERIES - 1, 0, 0)),
        (a_time_that_nothing_has, (400, SERIES - 1, 0, 0)),
        (labels_in_another_order, (204, SERIES, 0, 0)),
        (a_first_symbol_that_is_not_empty, (400, 0, 0, 0)),
        (no_symbols, (400, 0, 0, 0)),
    ],
)
async def test_both_ways_do_the_same(both: Both, change: Change, expected: tuple[int, ...]) -> None:
    # With labels at first, by number then, and by a template in the end, where there is one.
    for turn in range(5):
        assert written(await both.ask(sent(request_of(change, time_ms=NOW_MS + turn)))) == expected


async def test_a_request_that_comes_again_is_one_of_known_samples(both: Both) -> None:
    for turn in range(4):
        await both.ask(sent(request_of(time_ms=NOW_MS + turn)))
    *_, templates = both.direct.outcome
    frames = [reference_frames.parse(frame) for (frame,) in both.direct.workers.messages[-1].values()]
    assert (templates, sum(frame.samples for frame in frames)) == (1, SERIES)
    # After that, one of its histograms is not valid: the series is named, of which the template does not know labels.
    status, _, text = await both.ask(sent(request_of(a_histogram_that_is_not_valid)))
    assert (status, b'i=\\"5\\"' in text) == (400, True)


@pytest.mark.parametrize("change", [lambda request: None, histograms, exemplars])
async def test_what_a_shard_opened_anew_does_not_know_is_cut_again(both: Both, change: Change) -> None:
    for _ in range(2):
        await both.ask(sent(request_of(change)))
    both.direct.workers.epoch = both.usual.workers.epoch = 9
    answer = await both.ask(sent(request_of(change)))
    assert answer[0] == 204
    assert both.direct.service.context.telemetry.stale_writes == 1


@pytest.mark.parametrize(
    "content",
    [b"\x05no snappy", b"\xff\xff\xff\xff\x0fxx", b"\x80", snappy.compress(b"no protobuf"), snappy.compress(b"")],
    ids=["no snappy", "no end of the length", "no length", "no protobuf", "nothing"],
)
async def test_both_ways_find_the_same_faults_of_a_body(both: Both, content: bytes) -> None:
    # What announces no length, or a large one, is left to aiohttp.
    answer = await both.ask(content, is_direct=content[0] < 0x80)
    assert answer[0] in (400, 413)
    assert written(answer)[1:] == (0, 0, 0)


async def test_a_large_body_is_split_in_a_thread_and_a_larger_one_left_to_aiohttp(both: Both) -> None:
    for series, size_min, is_direct in (
        (17_000, write.INLINE_BYTES_MAX, True),
        (35_000, writes.DECOMPRESSED_BYTES_MAX, False),
    ):
        content = sent(request_of(series=series))
        assert len(content) <= writes.BODY_BYTES_MAX
        assert size_min < len(snappy.uncompress(content)) < 2 * size_min
        assert written(await both.ask(content, is_direct=is_direct)) == (204, series, 0, 0)


async def test_what_labels_take_beyond_the_limit_is_refused(both: Both) -> None:
    def repeat(request: Request) -> None:
        request.symbols.append("x" * 1000)
        for series in request.timeseries:
            series.labels_refs[3] = len(request.symbols) - 1

    for sender in (both.direct, both.usual):
        object.__setattr__(sender.service.context.settings, "decompressed_bytes_max", 10_000)
    answer = await both.ask(sent(request_of(repeat)))
    assert (answer[0], b"TRIPTYCH_DECOMPRESSED_BYTES_MAX" in answer[2]) == (413, True)


async def test_what_labels_take_is_held(both: Both) -> None:
    content = sent(request_of())
    body_bytes = len(content) + len(snappy.uncompress(content))
    for sender in (both.direct, both.usual):
        sender.service.context.admission.bytes_max = body_bytes + 100
        sender.service.context.admission.body_bytes = 1  # of another one
    answers = [await sender.ask(content) for sender in (both.direct, both.usual)]
    for _, headers, text in answers:
        headers.pop("Retry-After")
        assert b"TRIPTYCH_BODIES_BYTES_MAX" in text
    assert answers[0] == answers[1]
    assert answers[0][0] == 503


def with_type(content_type: str) -> tuple[str, ...]:
    return ("Host: localhost", f"Content-Type: {content_type}", "Content-Encoding: snappy", "X-Request-Id: mine")


@pytest.mark.parametrize(
    ("content_type", "is_direct", "expected"),
    [
        ("application/x-protobuf;proto=io.prometheus.write.v2.Request", True, SERIES),
        ("application/x-protobuf; proto=io.prometheus.write.v2.Request ", True, SERIES),
        ("Application/X-Protobuf;proto=io.prometheus.write.v2.Request", True, SERIES),
        ('application/x-protobuf;proto="io.prometheus.write.v2.Request"', False, SERIES),
        ("application/x-protobuf;Proto=io.prometheus.write.v2.Request", False, SERIES),
        ("application/x-protobuf;proto=io.prometheus.write.v2.Request;proto=x", False, SERIES),
        ("application/x-protobuf;a=b;proto=io.prometheus.write.v2.Request", False, SERIES),
        ("application/x-protobuf;proto=IO.prometheus.write.v2.Request", False, None),
        ("application/x-protobuf;proto=io.prometheus.write.v3.Request", False, None),
        ("application/x-protobuf;proto", False, None),
        ("application/x-protobuf;proto=", False, None),
        ("application/x-protobuf", True, None),
        ("application/x-protobuf;", True, None),
        ("application/x-protobuf;proto=prometheus.WriteRequest", True, None),
    ],
)
async def test_only_what_aiohttps_way_takes_for_a_version_is_served_as_one(
    both: Both, content_type: str, is_direct: bool, expected: int | None
) -> None:
    """`expected`: the samples that are written; None: the request is refused, also where it is read as one of version
    1.0, of which it has no field."""
    answer = await both.ask(sent(request_of()), with_type(content_type), is_direct=is_direct)
    if expected is None:
        assert (answer[0], b"proto=" in answer[2]) == (400, True)
    else:
        assert written(answer) == (204, expected, 0, 0)
