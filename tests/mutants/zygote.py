"""A process that has imported what the product imports, and forks itself for every run of tests: they begin at once.

Run as a file, not as a module, so that nothing of the product or of the tests is imported before the fork. A request is
a line of JSON on stdin, `[directory, environment, arguments of pytest, file for the output, seconds]`; the answer is a
line on stdout, the exit status of pytest, or `timeout`. When stdin ends, so does the process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress

LIBRARIES = (
    *("pytest", "pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin", "hypothesis.strategies"),
    *("numpy", "numba", "numba.core.registry", "numba.core.caching", "numba.np.arrayobj", "rocksdict", "tantivy"),
    *("usearch.index", "pcodec", "xxhash", "msgspec", "orjson", "zmq", "aiohttp.web", "uvloop", "lark", "re2"),
    *("snappy", "psutil", "google.protobuf.message", "prometheus_client", "asyncio", "multiprocessing"),
)
POLL_S = 0.02


def main() -> None:
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    sys.path.pop(0)
    for line in sys.stdin:
        print(_run(*json.loads(line)), flush=True)


def _run(directory: str, environment: dict[str, str], arguments: list[str], output: str, seconds: float) -> str:
    child = os.fork()
    if not child:
        _become_tests(directory, environment, arguments, output)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _end(child)
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(POLL_S)
    _end(child)
    os.waitpid(child, 0)
    return "timeout"


def _end(group: int) -> None:
    """The process and all that its tests have started and left."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _become_tests(directory: str, environment: dict[str, str], arguments: list[str], output: str) -> None:
    status = 70
    try:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.path.insert(0, directory)
        sys.modules["numba"].core.config.reload_config()
        status = int(sys.modules["pytest"].main(arguments))
        sys.stdout.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
