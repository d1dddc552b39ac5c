"""Memory by process and owner: what is attributed, and what is not."""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np

from coordinator.watching.memory import put_unattributed, report
from shared.hashing import hash64
from shared.labels import encode
from shared.measurements import Values
from shared.process.measurements import ProcessMeasurements, anonymous_bytes, put_supervisor
from worker.series.index.bytemap import ByteMap
from worker.series.index.index import Index
from worker.series.index.patterns import Patterns
from worker.series.index.texts import TextTable

MB = 1 << 20


def _measured(anonymous: int, **owners: int) -> Values:
    values = Values()
    values.put("triptych_process_resident_bytes", anonymous + 5, "worker-0")
    values.put("triptych_process_anonymous_bytes", anonymous, "worker-0")
    for owner, size in owners.items():
        values.put("triptych_memory_bytes", size, "worker-0", owner)
    return values


def test_what_no_owner_has_is_shown_as_such() -> None:
    values = _measured(100, head=30, program=50)
    put_unattributed(values)
    assert values.get("triptych_memory_bytes", "worker-0", "other") == 20
    (entry,) = report(values)
    assert entry == {
        "process": "worker-0",
        "residentBytes": 105,
        "anonymousBytes": 100,
        "unattributedBytes": 20,
        "owners": {"program": 50, "head": 30},
    }
    assert list(entry["owners"]) == ["program", "head"]


def test_owners_that_say_more_than_the_system_leave_nothing_unattributed() -> None:
    values = _measured(100, head=80, program=50)
    put_unattributed(values)
    assert values.get("triptych_memory_bytes", "worker-0", "other") == 0


def test_a_process_without_owners_has_its_pages_only() -> None:
    values = _measured(100)
    put_unattributed(values)
    assert report(values) == [{"process": "worker-0", "residentBytes": 105, "anonymousBytes": 100}]


def test_a_process_measures_its_program_and_what_it_has_taken_since() -> None:
    measurements = ProcessMeasurements("p")
    program = anonymous_bytes()
    # Of the system's own: the allocator may have as much at hand, freed by others before.
    data = mmap(-1, 64 * MB, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    data.write(bytes(len(data)))
    values = Values()
    measurements.put(values)
    anonymous = values.get("triptych_process_anonymous_bytes", "p")
    assert isinstance(anonymous, float)
    assert anonymous >= program + 0.9 * len(data)
    assert abs(values.get("triptych_memory_bytes", "p", "program") - program) < 8 * MB
    assert 0 < values.get("triptych_process_pss_bytes", "p") <= values.get("triptych_process_resident_bytes", "p")


def test_a_supervisor_that_has_ended_has_no_numbers() -> None:
    values = Values()
    put_supervisor(values, 0)
    assert values.by_name == {}


def test_a_map_of_strings_has_the_memory_of_its_arrays() -> None:
    strings = ByteMap()
    before = strings.size_bytes
    texts = [b"%020d" % number for number in range(1000)]
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    starts = np.arange(1000) * 20
    hashes = np.array([hash64(text) for text in texts], dtype=np.uint64)
    strings.resolve(data, starts, starts + 20, hashes)
    slots = 2048 - 1024
    assert strings.size_bytes - before == 1000 * (20 + 8) + slots * 8


def test_an_index_has_the_memory_of_its_labels_and_postings() -> None:
    index = Index(TextTable(), Patterns())
    before = index.size_bytes
    texts = [encode((("__name__", "m"), ("i", f"{number:05d}"))) for number in range(1000)]
    offsets = np.cumsum([0, *map(len, texts)])
    hashes = np.array([hash64(text) for text in texts], dtype=np.uint64)
    index.resolve(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets[:-1], offsets[1:], hashes)
    index.register()
    strings, labels, pairs = offsets[-1] + 1000 * 8 + 1024 * 8, 1000 * 8 + 2000 * 8, 2000 * 12
    grown = index.size_bytes - before
    assert strings + labels + pairs <= grown <= 1.1 * (strings + labels + pairs)
    index.lookup()  # sorts the postings
    assert index.size_bytes - before >= strings + labels + 2000 * 4
