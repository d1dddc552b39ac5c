"""A round: a cluster of its own, a fault under load or damage to its files, and what the checks say of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.harness.cluster import ROOT
from loadtest.harness.ports import free_port
from tests.chaos.client import Silence
from tests.chaos.damage import FileKind, Harm
from tests.chaos.findings import Findings
from tests.chaos.history import SETTINGS, History
from tests.chaos.log_load import KEYS
from tests.chaos.nemesis import Fault
from tests.chaos.processes import FAKETIME, ChaosCluster
from tests.zygote import Zygote, inherited

Hurt = Callable[[Path, FileKind, random.Random], Harm | None]
SHARDS, WORKERS = 4, 2
CLONE_NEWNS = 0x00020000
DAMAGED_WITHIN_S = 25.0
BULK_RECORDS = 10_000
"""Of one append: the most there may be."""


@dataclass
class Outcome:
    """`plan`: what was done; `verdict`: "ok", "warned", "refused", "repaired", or the kinds of violations; `kept`:
    where the data directory and the logs are, when there are violations."""

    plan: str
    verdict: str
    findings: Findings
    acknowledged: int = 0
    kept: Path | None = None


@dataclass
class Workshop:
    """Where the rounds of one run take place. `base`: the past that damaged clusters have, made when first needed."""

    directory: Path
    library: Path
    seed: int
    base: History | None = None
    bases: int = 0
    _zygotes: dict[bool, Zygote] = field(default_factory=dict)

    def zygote(self, clock: bool) -> Zygote:
        """The one whose processes have the true time, or the one whose processes have that of the file `clock`."""
        if clock not in self._zygotes:
            extra = {
                "FAKETIME_TIMESTAMP_FILE": str(self.directory / "clock"),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "NO_FAKE_STAT": "1",  # or compiled kernels look older than their source
            }
            (self.directory / "clock").write_text("+0\n")
            libraries = [self.library, FAKETIME] if clock else [self.library]
            environment = inherited() | {"LD_PRELOAD": ":".join(map(str, libraries)), **(extra if clock else {})}
            self._zygotes[clock] = Zygote("tests.chaos.zygote", environment, ROOT)
        return self._zygotes[clock]

    def close(self) -> None:
        for zygote in self._zygotes.values():
            zygote.close()

    def cluster(self, name: str, *, clock: bool = False, port: int = 0) -> ChaosCluster:
        directory = self.directory / name
        directory.mkdir(parents=True)
        cluster = ChaosCluster(
            directory,
            SHARDS,
            WORKERS,
            SETTINGS,
            zygote=self.zygote(clock),
            seed=self.seed,
            clock=self.directory / "clock" if clock else None,
            port=port,
        )
        cluster.data.mkdir(mode=0o700)
        return cluster


@contextlib.contextmanager
def small_disk(data: Path, megabytes: int) -> Iterator[None]:
    """A file system of its own for the data directory; what is in it at the end stays in the directory below."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(data)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield
    finally:
        left = data.with_name("data.kept")
        shutil.copytree(data, left, ignore=shutil.ignore_patterns("*.sock", "ballast"))
        subprocess.run(["umount", "--lazy", str(data)], check=True)


def own_mounts() -> None:
    """What this process and its children mount is gone with them. Call before there are any. Without it, or without
    the right to it, a harness that is killed leaves a small file system behind."""
    if can_mount() and ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def can_mount() -> bool:
    return os.getuid() == 0 and shutil.which("mount") is not None


def live_round(
    shop: Workshop,
    name: str,
    fault: Fault,
    chance: random.Random,
    *,
    impatience: float = 0.05,
    clock: bool = False,
    disk_megabytes: int = 0,
) -> Outcome:
    """A fault under load, healing, the checks; then everything is killed and started, and the checks again. Nobody
    helps: when the fault is over, the cluster gets ready by itself."""
    findings = Findings()
    cluster = shop.cluster(name, clock=clock)
    with contextlib.ExitStack() as stack:
        if disk_megabytes:
            stack.enter_context(small_disk(cluster.data, disk_megabytes))
        stack.callback(cluster.kill)
        history = History.new(cluster, findings)
        plan = "never ready"
        try:
            cluster.start()
            with history.under_load(str(chance.random()), impatience):
                time.sleep(chance.uniform(0.5, 1.5))
                plan = fault(history, chance)
                cluster.heal()
                time.sleep(0.5)
            history.check_healed()
            cluster.kill()
            cluster.start()
            history.check_healed()
        except AssertionError as error:
            findings.add("stuck", "cluster", f"not ready again: {str(error)[-3000:]}")
        return _outcome(cluster, history, plan, "ok")


def _outcome(cluster: ChaosCluster, history: History, plan: str, verdict: str) -> Outcome:
    findings = history.findings
    kept = cluster.directory if findings else None
    return Outcome(plan, findings.kinds() or verdict, findings, history.acknowledged(), kept)


def skewed_round(shop: Workshop, name: str, chance: random.Random) -> Outcome:
    """Very many records under one key, a few under another, and scans of either by prefix."""
    findings = Findings()
    cluster = shop.cluster(name)
    history = History.new(cluster, findings)
    batches = chance.randint(6, 12)
    plan = f"{batches * BULK_RECORDS:,} records under one key"
    try:
        cluster.start()
        for number in range(batches):
            _bulk(history, [KEYS[0]])
            if number == batches // 2:
                _bulk(history, [KEYS[-1]], 3)
        _bulk(history, [KEYS[-1]], 1)
        time.sleep(2.0)  # so that it is gathered
        for prefix in ("oth", "key", ""):
            try:
                history.log.scan_all(history.client, final=True, prefix=prefix)
            except Silence as silence:
                findings.add("stuck", "log", str(silence))
    finally:
        cluster.kill()
    return _outcome(cluster, history, plan, "ok")


def _bulk(history: History, keys: list[bytes], count: int = BULK_RECORDS) -> None:
    record = history.log.record
    batch = record.begin([keys[n % len(keys)] for n in range(count)])
    history.log.append(history.client, batch, True, None, 30.0)


def base_history(shop: Workshop) -> History:
    """A stopped cluster whose data directory has files of every kind: stopped in order once, then killed under load."""
    if shop.base is not None:
        return shop.base
    shop.bases += 1
    cluster = shop.cluster(f"base-{shop.bases}")
    history = History.new(cluster, Findings())
    chance = random.Random(f"{shop.seed} base")
    try:
        cluster.start()
        with history.under_load(str(chance.random())):
            time.sleep(3.0)
            for _ in range(4):
                _bulk(history, list(KEYS))
            time.sleep(1.0)
        cluster.stop()
        cluster.start()
        with history.under_load(str(chance.random())):
            time.sleep(2.0)
        history.check_healed()
    except AssertionError as error:
        history.findings.add("stuck", "cluster", f"not ready: {str(error)[-3000:]}")
    finally:
        cluster.kill()
    if not history.findings:  # else the next round makes another one
        shop.base = history
    return history


def damage_round(shop: Workshop, name: str, kind: FileKind, chance: random.Random, hurt: Hurt) -> Outcome:
    """A damaged copy of the base: started, checked, used, and started and checked once more."""
    base = base_history(shop)
    if base.findings:
        kept = base.cluster.directory
        return Outcome("an unharmed cluster", base.findings.kinds(), base.findings, base.acknowledged(), kept)
    findings = Findings()
    cluster = shop.cluster(name, port=free_port())
    cluster.data.rmdir()
    base.cluster.copy_data(cluster.data)
    history = base.forked(cluster, findings)
    harm = hurt(cluster.data, kind, chance)
    if harm is None:
        shutil.rmtree(cluster.directory)
        return Outcome("no such file", "skipped", findings)
    history.expect(harm)
    try:
        verdict = _checked_start(history)
        if verdict != "refused":
            with history.under_load(str(chance.random())):
                time.sleep(1.2)
            cluster.stop() if chance.random() < 0.5 else cluster.kill()
            verdict = max(verdict, _checked_start(history))
    finally:
        cluster.kill()
    plan = f"{harm.text}, which cannot be told from a torn write" if harm.is_silent else harm.text
    if history.older():
        plan += f"; with a warning {history.older()} older values"
    return _outcome(cluster, history, plan, verdict)


def _checked_start(history: History) -> str:
    """ "refused": a process ended, or shards did not load; "warned"; "repaired": everything is there."""
    state = history.cluster.start_damaged(DAMAGED_WITHIN_S)
    complete = state != "refused" and history.check(final=False)
    if state == "refused" or state == "stuck":
        return "refused"
    if state == "partial":
        return "shard refused"
    return "repaired" if complete else "warned"
