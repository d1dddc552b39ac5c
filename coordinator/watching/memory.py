"""The memory of each process, by owner."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from shared.measurements import Value, Values

BYTES = "triptych_memory_bytes"
OTHER = "other"
PAGES = {
    "residentBytes": "triptych_process_resident_bytes",
    "anonymousBytes": "triptych_process_anonymous_bytes",
    "sharedBytes": "triptych_process_shared_bytes",
    "proportionalBytes": "triptych_process_pss_bytes",
}


def put_unattributed(values: Values) -> None:
    """Add the memory of each process that is not of files and that no owner accounts for. It is at least 0: owners and
    the system are not measured at the same moment."""
    owned = _by_process(values, BYTES)
    for process, size in _by_process(values, PAGES["anonymousBytes"]).items():
        if process in owned:
            values.put(BYTES, max(0.0, sum(size) - sum(owned[process])), process, OTHER)


def report(values: Values) -> list[dict[str, Any]]:
    """For each process the bytes of its pages, as far as the system says, and `owners`: owner → bytes, the largest
    first. `unattributedBytes` is what `put_unattributed` has added."""
    owners: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (process, owner), size in values.by_name.get(BYTES, ()):
        owners[process][owner] = _bytes(size)
    pages = {field: _by_process(values, name) for field, name in PAGES.items()}
    processes = []
    for process in sorted(pages["residentBytes"]):
        entry: dict[str, Any] = {"process": process}
        entry |= {field: int(sum(sizes[process])) for field, sizes in pages.items() if process in sizes}
        if own := owners.get(process):
            entry["unattributedBytes"] = own.pop(OTHER, 0)
            entry["owners"] = dict(sorted(own.items(), key=lambda item: -item[1]))
        processes.append(entry)
    return processes


def _by_process(values: Values, name: str) -> dict[str, list[float]]:
    """Process → the values of a metric whose first label is the process."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for labels, value in values.by_name.get(name, ()):
        found[labels[0]].append(_bytes(value))
    return found


def _bytes(value: Value) -> int:
    assert not isinstance(value, list)
    return int(value)
