"""One point told at length: what had happened, what was not on the disk, what is wrong."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from tests.powerloss.crash import crash
from tests.powerloss.files import walk
from tests.powerloss.points import Point, check, moments, scratch
from tests.powerloss.trace import read

LAST_EVENTS = 25


def tell(file: Path, point: Point, state_directory: Path | None, is_lenient: bool) -> int:
    """The state of this point, kept in a directory if one is given, is checked; 1 if it violates a promise."""
    events, name, root = read(file), file.parent.name.split(" ")[0], str(file.parent / "root")
    [(files, history, _)] = moments(events, root, [point], is_lenient)
    print(f"{point.events} of {len(events)} events; the last ones:")
    for at in range(max(0, point.events - LAST_EVENTS), point.events):
        print(f"  {at:6} {events[at].describe(root)}"[:160])
    print("not on the disk:")
    for path, node in walk(files.root, lambda node: node.names):
        if node.changes:
            print(
                f"  {path}: changes {[(c.index, c.at, c.data is not None and len(c.data)) for c in node.changes][:8]}"
            )
        if node.namings:
            print(f"  {path}/: names {[(n.index, n.name, n.node is not None, n.former) for n in node.namings][:8]}")
    state = crash(files, point.mode, point.seed)
    print("left:", {path: None if content is None else len(content) for path, content in state.entries.items()})
    directory = state_directory or Path(tempfile.mkdtemp(dir=scratch(), prefix="powerloss-state-"))
    directory.mkdir(exist_ok=True)
    state.write(directory)
    try:
        check(name, directory, history)
    except Exception:
        traceback.print_exc()
        return 1
    print("all is well")
    return 0
