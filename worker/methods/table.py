"""What a worker can be asked to do: every area's methods by name.

Importing this imports all that a worker needs to answer, and declares its kernels: the supervisor does so once, before
it forks the workers.
"""

from __future__ import annotations

from worker.methods import log, queries, series, vectors
from worker.methods.method import Method

METHODS: dict[str, Method] = {**series.METHODS, **queries.METHODS, **log.METHODS, **vectors.METHODS}
