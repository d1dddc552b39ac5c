"""One campaign: a target and an engine, in a process that is watched."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz import mutation
from tests.fuzz.findings import Findings
from tests.fuzz.progress import Progress
from tests.fuzz.shrinking import shrunk
from tests.fuzz.target import SLOW_S, Failure, Target, run

BYTES, STRUCTURE = "bytes", "structure"
HANGS_AFTER_S = 5 * SLOW_S
"""An input that runs for so long ends the process."""
MEMORY_BYTES_MAX = 1 << 30
"""What one input may add to the process's memory."""
ADDRESS_BYTES_MAX = 4 << 30
"""What all inputs of a campaign may add to the process's address space; the mutator's own collection is part of it."""
SHRINKING_S = 5.0
CHOICE_BYTES_MAX = 2048
"""Of the bytes from which hypothesis takes the choices of one input."""
RESTARTS_MAX = 5
POLL_S = 0.05
LOG_BYTES_SHOWN = 2000
"""Of what a process wrote before it ended, such as the traceback of a strategy that failed."""
PR_SET_PDEATHSIG = 1
"""Linux: the signal that a process gets when its parent ends."""


@dataclass
class Campaign:
    """`seconds` and `inputs` bound it; `seed` makes its inputs the same again."""

    target: Target
    engine: str
    seconds: float
    inputs: int
    seed: int
    findings: Findings
    log: Path
    peak_bytes: int = 0
    restarts: int = 0
    took_s: float = 0.0

    def __post_init__(self) -> None:
        self.progress = Progress()
        self._pid = 0
        self._started = 0.0

    def start(self) -> None:
        """Begin, or go on after an input has ended the process."""
        now = time.monotonic()
        self._started = self._started or now
        left_s = max(1.0, self.seconds - (now - self._started))
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _fuzz(self, left_s)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)

    def poll(self) -> bool:
        """Look after the process; whether the campaign is over."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            self._watch()
            return False
        self.took_s = time.monotonic() - self._started
        if status == 0:
            return True
        running = self.progress.counters.started > 0
        self.progress.counters.started = 0.0
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        where = "" if running else ", between two inputs"
        self._keep_last("ended", f"the process ended with {how}{where}; the end of {self.log}:\n{self._end_of_log()}")
        self.restarts += 1
        if self.restarts > RESTARTS_MAX or self.took_s >= self.seconds:
            return True
        self.seed += 1
        self.start()
        return False

    def summary(self) -> str:
        """What it has taken and found so far, in one line."""
        counters = self.progress.counters
        return (
            f"{self.target.name}, {self.engine}: {counters.inputs} inputs in {self.took_s:.0f} s, the slowest "
            f"{counters.slowest_s * 1000:.1f} ms; {len(self.findings.paths())} failures of this target"
        )

    def kill(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _end_of_log(self) -> str:
        return self.log.read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace") if self.log.exists() else ""

    def _watch(self) -> None:
        try:
            self.peak_bytes = max(self.peak_bytes, psutil.Process(self._pid).memory_info().rss)
        except psutil.Error:
            return
        if self.progress.running_s() > HANGS_AFTER_S:
            self._keep_last("hang", f"the input ran for more than {HANGS_AFTER_S:g} s")
            self.progress.counters.started = 0.0
            os.kill(self._pid, signal.SIGKILL)

    def _keep_last(self, kind: str, text: str) -> None:
        failure = Failure(kind, text + "\n")
        if self.findings.is_new(failure):
            self.findings.keep(failure, self.progress.input())


def _fuzz(campaign: Campaign, seconds: float) -> None:
    """The life of the process; libFuzzer ends it."""
    import atheris

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(campaign.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    gc.freeze()
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_BYTES_MAX, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    target = campaign.target
    tempfile.tempdir = str(campaign.log.parent)
    seeds = Path(tempfile.mkdtemp())
    for number, seed in enumerate([*target.seeds(), *_failed_before(target)]):
        (seeds / f"{number}").write_bytes(seed)
    one = _one_input(campaign)
    if campaign.engine == STRUCTURE:
        one, arguments = _structured(target, one), [f"-max_len={CHOICE_BYTES_MAX}", "-len_control=0"]
    else:
        arguments = [f"-max_len={target.bytes_max}", str(seeds)]
        if target.tokens:
            words = seeds.with_suffix(".words")
            words.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens))
            arguments.append(f"-dict={words}")
    if campaign.inputs:
        arguments.append(f"-runs={campaign.inputs}")
    fixed = (
        "-rss_limit_mb=0",
        "-timeout=100000",
        "-detect_leaks=0",
        "-verbosity=0",
        "-print_final_stats=0",
        "-reload=0",
    )
    atheris.Setup(
        ["fuzz", f"-seed={campaign.seed}", f"-max_total_time={int(seconds)}", *fixed, *arguments],
        one,
        internal_libfuzzer=True,
    )
    atheris.Fuzz()


def _failed_before(target: Target) -> list[bytes]:
    return [path.read_bytes() for path in sorted(target.corpus.glob("*"))]


def _escaped(token: str) -> str:
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in token.encode()
    )


def _one_input(campaign: Campaign) -> Callable[[bytes], None]:
    """What libFuzzer calls with each input."""
    target, progress, findings = campaign.target, campaign.progress, campaign.findings

    def peak_bytes() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

    highest = peak_bytes()

    def one(data: bytes) -> None:
        nonlocal highest
        progress.begin(data)
        failure = run(target, data)
        if (peak := peak_bytes()) > highest:
            if peak - highest > MEMORY_BYTES_MAX and failure is None:
                failure = Failure("memory", f"the input took {(peak - highest) >> 20} MB\n")
            highest = peak
        progress.end()
        if failure is None or not findings.is_new(failure):
            return
        if failure.kind == "slow":
            # What else runs on this machine may have been the reason.
            failure = run(target, data)
            if failure is None or not findings.is_new(failure):
                return
        kind = failure.kind

        def fails(candidate: bytes) -> bool:
            again = run(target, candidate)
            return again is not None and again.kind == kind

        small = shrunk(data, fails, SHRINKING_S)
        findings.keep(run(target, small) or failure, small)

    return one


def _structured(target: Target, one: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Inputs that the target's strategy makes of the choices in libFuzzer's bytes, and some beside each of them if
    the mutator does not see the target's branches."""
    assert target.strategy is not None

    @settings(database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(target.strategy())
    def each(data: bytes) -> None:
        one(data)
        if not target.is_guided:
            for changed in mutation.beside(data):
                one(changed)

    return each.hypothesis.fuzz_one_input  # type: ignore[attr-defined, no-any-return]
