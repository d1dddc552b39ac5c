"""What a worker can be asked to do: every area's methods by name.

Importing this imports all that a worker needs to answer, and declares its kernels: the supervisor does so once, before
it forks the workers.
"""

from __future__ import annotations

from worker.logs import methods as logs
from worker.method import Method
from worker.queries import methods as queries
from worker.series import methods as series
from worker.vectors import methods as vectors

METHODS: dict[str, Method] = {**series.METHODS, **queries.METHODS, **logs.METHODS, **vectors.METHODS}
