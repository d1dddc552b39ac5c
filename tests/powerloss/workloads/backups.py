"""Backups into a directory, a restore from it, and a snapshot."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.backup import restoring, sending, views
from coordinator.backup.destination import open_place
from coordinator.log import sequencer
from shared import identity, manifest
from shared.durable import make_directory
from shared.manifest import Manifest
from tests.powerloss.history import History, require
from tests.powerloss.recording import Recorder

BACKUPS = 3
PLACE, DATA, SNAPSHOT = "place", "data", "cluster/snapshots/x"
RENEWED = ("manifest.json", "identity", "sequencer/state", restoring.NOTE)
"""How the names of files end that a restore changes."""


class _Api:
    """A cluster with one view."""

    def __init__(self, view: Path, name: str) -> None:
        self._answer = {"view": name, "path": str(view), "momentMs": 1, "heldBackMs": 1.0, "warnings": []}

    def call(self, method: str, path: str, body: Any = None, **_: str | int) -> Any:
        return {"data": self._answer}

    def again(self) -> _Api:
        return self

    def stream(self, target: str, **_: str | int) -> Iterator[bytes]:
        raise AssertionError("the view is on this host")


def _nothing(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def _fill(view: Path, number: int, chance: random.Random) -> None:
    encoded = Manifest("cluster", 1).encode()
    files = {
        manifest.NAME: encoded,
        f"shards/{manifest.NAME}": encoded,
        "shards/0000/identity": identity.encode("cluster", identity.SHARD, 0),
        "sequencer/state": sequencer.encode(sequencer.State(1, number, None, 0, [(0, 0, 0, 0)], [])),
        f"shards/0000/store/{number:06d}.sst": chance.randbytes(3000),
    }
    for name, content in files.items():
        (view / name).parent.mkdir(parents=True, exist_ok=True)
        (view / name).write_bytes(content)


def run(root: Path, recorder: Recorder, chance: random.Random) -> None:
    place = open_place(str(root / PLACE), create=True)
    with tempfile.TemporaryDirectory() as directory:
        view = Path(directory)
        for number in range(BACKUPS):
            _fill(view, number, chance)
            api = _Api(view, f"b{number}")
            recorder.act(["backup", f"b{number}"], lambda: sending.backup(api, place, _nothing))  # noqa: B023
        recorder.act(
            ["restore"], lambda: restoring.restore(place, restoring.choose(place, None), root / DATA, _nothing)
        )
        make_directory(root / "cluster")
        staged = root / "cluster/backup.staging/x"
        for source in [path for path in view.rglob("*") if path.is_file()]:
            target = staged / source.relative_to(view)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
        recorder.act(["snapshot"], lambda: views._keep(staged, root / SNAPSHOT))
        recorder.act(["prune"], lambda: sending.prune(place, 1))


def check(root: Path, history: History) -> None:
    """Every backup that exists is whole, and those acknowledged exist, as do the restored directory and the
    snapshot."""
    done = {act.told[0]: act for act in history.acts if act.is_done}
    backups = [act.told[1] for act in history.acts if act.is_done and act.told[0] == "backup"]
    is_pruned = any(act.told[0] == "prune" for act in history.acts)
    known = []
    if (root / PLACE).exists():
        place = open_place(str(root / PLACE))
        require(sending.verify(place, _nothing) == [], f"backups are damaged: {sending.verify(place, _nothing)}")
        known = [inventory.name for inventory in sending.inventories(place)]
    require(known[-1:] >= backups[-1:], f"the backups are {known}, and {backups} were acknowledged")
    require(is_pruned or set(backups) <= set(known), f"the backups are {known}, and {backups} were acknowledged")
    for what, path in (("restore", root / DATA), ("snapshot", root / SNAPSHOT)):
        require(what not in done or path.exists(), f"the {what} was acknowledged, and {path} is not there")
        if path.exists():
            _check_whole(root, path, is_restored=what == "restore")


def _check_whole(root: Path, path: Path, *, is_restored: bool) -> None:
    inventory = sending.inventories(open_place(str(root / PLACE)))[-1]
    for entry in inventory.files:
        if is_restored and entry.path.endswith(RENEWED):
            require((path / entry.path).stat().st_size > 0, f"{path / entry.path} is empty")
        else:
            require(restoring._is_whole(path / entry.path, entry), f"{path / entry.path} is not whole")
    there = Manifest.decode((path / manifest.NAME).read_bytes())
    require(is_restored == (there.cluster_id != "cluster"), f"{path} is of the cluster {there.cluster_id}")
    if is_restored:
        require(
            identity.decode((path / "shards/0000/identity").read_bytes())[0] == there.cluster_id, "identities differ"
        )
