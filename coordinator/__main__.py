"""The coordinator process, `python -m coordinator`: serves the cluster's HTTP interface."""

from __future__ import annotations

import gc
import signal

from coordinator.http import aiohttp_import

if __name__ == "__main__":
    gc.disable()  # imports create hardly any garbage; `interpreter.collect_seldom` enables it again
    # During the start, Ctrl-C ends the process without a traceback, like SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    aiohttp_import.without_authorities()

import os
import sys
from contextlib import nullcontext
from functools import partial

import uvloop

from coordinator import warm
from coordinator.app import serve
from shared import confinement, environment, listen_address, manifest, no_arguments, setting_sources, telemetry, tracing
from shared.control import LocalControl
from shared.durable import FILE_UMASK
from shared.errors import ConfigError
from shared.kernels import compile_first, load_all
from shared.process import allocator, array_memory, interpreter, open_files


def main() -> None:
    no_arguments.require("python -m coordinator", "the cluster's HTTP interface")
    os.umask(FILE_UMASK)
    try:
        settings = setting_sources.load()
        allocator.keep_pages()
        interpreter.collect_seldom()
        interpreter.switch_often()
        telemetry.configure(settings.log_level)
        environment.require_known_variables()
        confinement.confine(settings)
        tracing.load(settings.traces)
        open_files.raise_limit()
        control = LocalControl(settings.data)
        identity = manifest.open_manifest(settings, control, partial(listen_address.require_free, settings))
        settings = identity.settled(settings)
        manifest.lock(control, "coordinator")
        compile_first()
        array_memory.prepare()
        with warm.beside_requests(settings.log_level) if load_all() else nullcontext():
            address = manifest.endpoint(settings, identity)
            try:
                uvloop.run(serve(settings, control, identity, address))
            finally:
                manifest.leave(address, control, "workers")
    except ConfigError as error:
        sys.exit(f"triptych coordinator: {error}")


if __name__ == "__main__":
    main()
