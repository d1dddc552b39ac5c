"""A remote-write request split by shard: what is sent to the workers, and what was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.series import known_samples
from coordinator.series.known_samples import KnownSamples
from coordinator.series.lessons import Lesson
from shared.messages.series import FamilyMetadata
from shared.wire import Frame

REFUSED_SHOWN_MAX = 5
"""How many refused series an error names. The error also says how many were refused in total."""


@dataclass(slots=True)
class SplitRequest:
    """A request split by shard, ready to be sent.

    `parts`: shard → its frames (`shared.frames.samples`, `shared.frames.exemplars`). `samples`, `histograms` and
    `exemplars`: how many of each the frames contain. `refused`: messages about the first `REFUSED_SHOWN_MAX` invalid
    series, samples, histograms, exemplars or metadata, of `refused_count` in total. `metadata_keys`: hashes of the
    metadata that came with series, for `metadata.KnownMetadata`. `known`: the whole request, instead of `parts`, if it
    consists of few samples of known series only.
    """

    parts: dict[int, Sequence[Frame]] = field(default_factory=dict)
    samples: int = 0
    refused: list[str] = field(default_factory=list)
    refused_count: int = 0
    metadata: list[FamilyMetadata] = field(default_factory=list)
    metadata_keys: list[int] = field(default_factory=list)
    exemplars: int = 0
    exemplars_refused: int = 0
    exemplars_left_out: int = 0
    histograms: int = 0
    histograms_refused: int = 0
    lessons: list[Lesson] = field(default_factory=list, compare=False)
    """What the workers' replies to the frames teach: the numbers of the series that were sent with labels."""
    known_series: int = 0
    """How many series the frames refer to by number."""
    known: KnownSamples | None = None

    @classmethod
    def of_known(cls, known: KnownSamples) -> SplitRequest:
        """A request of known samples. The frames of a small one are written when it is sent, together with others;
        those of a large one at once, which is not done on the event loop."""
        split_request = cls(samples=known.samples, known_series=known.series)
        if known.samples <= known_samples.SHARING_SAMPLES_MAX:
            split_request.known = known
        else:
            split_request.parts = {shard: [frame] for shard, frame in known_samples.frames([known]).items()}
        return split_request

    def refuse(self, text: str) -> None:
        self.refused_count += 1
        if len(self.refused) < REFUSED_SHOWN_MAX:
            self.refused.append(text)
