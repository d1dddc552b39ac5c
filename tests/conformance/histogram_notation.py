"""Native histograms as scripts write them: `{{schema:1 count:3 sum:5 buckets:[1 2]}}+{{count:1}}x4`
(https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/#series)."""

from __future__ import annotations

import re

from tests.oracle_native_histograms import CUSTOM, Hint, NativeHistogram, compact, summed

_ENTRY = re.compile(r"\s*(\w+):(\[[^\]]*\]|\S+)")
_SEQUENCE = re.compile(r"\{\{(.*?)\}\}(?:([+-])\{\{(.*?)\}\})?(?:x([0-9]+))?")
_HINTS = {"gauge": Hint.GAUGE, "reset": Hint.RESET, "not_reset": Hint.NOT_RESET, "unknown": Hint.UNKNOWN}
_KEYS = {
    "schema", "count", "sum", "z_bucket", "z_bucket_w", "buckets", "offset", "n_buckets", "n_offset", "custom_values",
    "counter_reset_hint",
}  # fmt: skip


def parse_histogram(text: str) -> NativeHistogram:
    """What stands between `{{` and `}}`. Raises ValueError."""
    entries, at = {}, 0
    while text[at:].strip():
        match = _ENTRY.match(text, at)
        if match is None or match[1] not in _KEYS or match[1] in entries:
            raise ValueError(f"{text!r} is not a native histogram: {text[at:]!r}")
        entries[match[1]] = match[2]
        at = match.end()
    number = lambda key: float(entries.get(key, 0))  # noqa: E731
    schema = int(entries.get("schema", 0))
    return NativeHistogram(
        schema=schema,
        count=number("count"),
        sum=number("sum"),
        zero_threshold=number("z_bucket_w"),
        zero_count=number("z_bucket"),
        positive=_counts(entries, "buckets", "offset"),
        negative=_counts(entries, "n_buckets", "n_offset"),
        bounds=tuple(map(float, entries.get("custom_values", "[]")[1:-1].split())) if schema == CUSTOM else (),
        hint=_HINTS[entries.get("counter_reset_hint", "unknown")],
    )


def _counts(entries: dict[str, str], key: str, offset: str) -> dict[int, float]:
    first = int(entries.get(offset, 0))
    return {first + i: float(count) for i, count in enumerate(entries.get(key, "[]")[1:-1].split())}


def parse_histograms(word: str) -> list[NativeHistogram]:
    """`{{…}}`, `{{…}}xN` or `{{…}}+{{…}}xN`: one histogram, or N + 1 of which each is further by the second one.
    Raises ValueError."""
    match = _SEQUENCE.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is not a native histogram")
    first, sign, step, times = match.groups()
    histograms = [parse_histogram(first)]
    for _ in range(int(times or 0)):
        if sign:
            weights = [1.0, 1.0 if sign == "+" else -1.0]
            histograms.append(compact(summed([histograms[-1], parse_histogram(step)], weights)))
        else:
            histograms.append(histograms[-1])
    return histograms
