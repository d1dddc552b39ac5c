"""The small files: the manifest, the catalogue of the vectors."""

from __future__ import annotations

import random
from pathlib import Path

from coordinator.vectors.catalogue import Catalogue
from shared.control import LocalControl
from shared.manifest import FORMAT, open_manifest
from shared.messages.vectors import Collection
from shared.settings import Settings
from tests.earlier_format import formats_of, put_back
from tests.powerloss.history import History, require
from tests.powerloss.recording import Recorder

STEPS = 20
SHARDS = 3


def run_manifest(root: Path, recorder: Recorder, chance: random.Random) -> None:
    for _ in range(3):
        done = recorder.begin(["open"])
        done(open_manifest(Settings(data=root / "data", shards=SHARDS), LocalControl(root / "data")).cluster_id)


def check_manifest(root: Path, history: History) -> None:
    """The directory keeps its identity from the moment somebody was told it."""
    there = open_manifest(Settings(data=root / "data", shards=SHARDS), LocalControl(root / "data")).cluster_id
    told = [act.result for act in history.acts if act.is_done and act.told[0] == "open"]
    require(all(cluster == there for cluster in told), f"the cluster was {told}, and is {there}")


def run_upgrade(root: Path, recorder: Recorder, chance: random.Random) -> None:
    """A directory of an earlier format that is started, twice."""
    run_manifest(root, recorder, chance)
    for _ in range(2):
        recorder.act(["put back"], lambda: put_back(root / "data") and None)
        run_manifest(root, recorder, chance)


def check_upgrade(root: Path, history: History) -> None:
    """As `check_manifest`; a start that was told the identity has upgraded the manifest and its copy, the manifest
    first."""
    if history.acts and history.acts[-1].is_done and history.acts[-1].told[0] == "open":
        require(formats_of(root / "data") == (FORMAT, FORMAT), f"the formats are {formats_of(root / 'data')}")
    check_manifest(root, history)
    require(formats_of(root / "data") == (FORMAT, FORMAT), f"the formats are {formats_of(root / 'data')}")


def run_catalogue(root: Path, recorder: Recorder, chance: random.Random) -> None:
    catalogue = Catalogue(LocalControl(root / "vector"))
    catalogue.load()
    for number in range(STEPS):
        names = [collection.name for collection in catalogue.all()]
        if names and chance.random() < 0.3:
            name = chance.choice(names)
            recorder.act(["remove", name], lambda: catalogue.remove(name))  # noqa: B023 (called at once)
        else:
            done = recorder.begin(["create", f"c{number}"])
            done(catalogue.create(Collection(0, f"c{number}", 8, "cosine", "f32")).id)
        if chance.random() < 0.2:
            catalogue = Catalogue(LocalControl(root / "vector"))
            catalogue.load()


def check_catalogue(root: Path, history: History) -> None:
    """It loads; the collections are those acknowledged; no id is given twice."""
    catalogue = Catalogue(LocalControl(root / "vector"))
    catalogue.load()
    there = {collection.name: collection.id for collection in catalogue.all()}
    states: list[dict[str, int | None]] = [{}]
    for act in history.acts:
        following = dict(states[-1])
        if act.told[0] == "create":
            following[act.told[1]] = act.result
        else:
            following.pop(act.told[1], None)
        states.append(following)
    allowed = states[history.done :]
    known = [{name: there.get(name) if own is None else own for name, own in state.items()} for state in allowed]
    require(there in known, f"the collections are {there}, not {' or '.join(map(str, known))}")
    given = [act.result for act in history.acts if act.told[0] == "create" and act.is_done]
    new = catalogue.create(Collection(0, "new", 8, "cosine", "f32")).id
    require(new not in given, f"the id {new} is given again")
