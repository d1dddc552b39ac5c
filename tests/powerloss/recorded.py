"""The recorded process: `python -m tests.powerloss.recorded DIRECTORY SEED RUN…`, with the recorder preloaded."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.powerloss import trace
from tests.powerloss.omissions import omitting
from tests.powerloss.recording import Recorder, assert_complete
from tests.powerloss.workloads import WORKLOADS


def main(directory: Path, seed: int, runs: list[str]) -> None:
    recorder = Recorder()
    for run in runs:
        name, _, omission = run.partition(" ")
        root, file = directory / run / "root", directory / run / "trace"
        root.mkdir(parents=True)
        with omitting(omission), recorder.recording(root, file):
            WORKLOADS[name].run(root, recorder, random.Random(f"{seed}/{name}"))
        assert_complete(trace.read(file), root)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:])
