"""`triptych serve`: coordinator and workers as children of one process, which end when it ends, for whatever reason.

The children are the processes of the Procfile. When one of them ends, this process stops the other one and exits,
because a part of a cluster serves nobody, and systemd, a container engine or a user then sees an exit code.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import FrameType

import click

from shared.process import modules

MODULES = {"workers": "worker", "coordinator": "coordinator"}
GRACE_S = {"coordinator": 5.0, "workers": 5.0}
"""How long each child may take to stop, in seconds; they are stopped one after the other. In the coordinator, requests
in flight get 2 s, and then appends and changes of collections up to 3 s; workers take up to 4 s."""
LOOK_S = 0.1
PR_SET_PDEATHSIG = 1


@click.command(
    epilog="""Settings are environment variables (TRIPTYCH_RETENTION=30d triptych serve), or are in a TOML file that
    TRIPTYCH_CONFIG names. docs/operations.md lists them, and `triptych doctor` reports what is wrong with them and with
    the machine. The first start of a version compiles the kernels for writes before it is ready, and the rest in the
    background, which takes some minutes; `triptych warm` compiles all of them before the start."""
)
@click.option("--listen", metavar="HOST:PORT", help="Address of the HTTP interface (TRIPTYCH_LISTEN).")
@click.option("--data", metavar="DIRECTORY", help="Data directory (TRIPTYCH_DATA).")
@click.option("--shards", metavar="N", help="Number of shards of a new data directory (TRIPTYCH_SHARDS).")
@click.option("--workers", metavar="N", help="Worker processes; 0: one per core (TRIPTYCH_WORKERS).")
def serve(**options: str | None) -> int:
    """Start the whole service in the foreground, like `honcho start`, but without a checkout.

    Metrics, logs and vectors are served at one address, by default http://127.0.0.1:9090/, which also has a page to
    view them. All data is in one directory, by default ./data. Ctrl-C or SIGTERM stops the service gracefully; kill -9
    or a power loss loses nothing that was acknowledged as durable.
    """
    return run(environment(options))


def run(environ: Mapping[str, str]) -> int:
    """Serve until a signal arrives. Returns the exit code: 0 after a signal, otherwise that of the child that ended
    first."""
    told = False

    def tell(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # which `nohup` sets
            signal.signal(number, tell)
    children = {name: _spawn(module, environ) for name, module in MODULES.items()}
    while not told and all(child.poll() is None for child in children.values()):
        time.sleep(LOOK_S)
    code = 0
    if not told:
        name, code = next((name, child.returncode) for name, child in children.items() if child.poll() is not None)
        sys.stderr.write(f"triptych serve: {name} ended ({_said(code)}); stopping the rest\n")
    for name, grace_s in GRACE_S.items():  # the coordinator first: requests in flight need the workers
        _stop(children[name], grace_s)
    return 128 - code if code < 0 else code or (0 if told else 1)


def environment(options: Mapping[str, str | None], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The children's environment. Options are settings that take precedence over variables."""
    return {**environ, **{f"TRIPTYCH_{name.upper()}": value for name, value in options.items() if value is not None}}


def _spawn(module: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it died before the call above

    # A process group of its own: Ctrl-C in a terminal reaches only this process, which stops the children one after the
    # other.
    return subprocess.Popen(
        modules.command(module),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        process_group=0,
    )


def _stop(child: subprocess.Popen[bytes], grace_s: float) -> None:
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"triptych serve: process {child.pid} did not stop within {grace_s:g} s; killed\n")
        child.kill()
        child.wait()


def _said(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
