"""All methods of a worker, by name.

Importing this module imports everything that a worker needs, and declares its kernels. The supervisor does so once,
before it forks the workers.
"""

from __future__ import annotations

from worker.methods import (
    backup,
    cardinality,
    debug,
    export,
    log,
    log_groups,
    queries,
    selected_vectors,
    series,
    vector_map,
    vectors,
)
from worker.methods.method import Method

METHODS: dict[str, Method] = {
    **series.METHODS,
    **cardinality.METHODS,
    **queries.METHODS,
    **export.METHODS,
    **log.METHODS,
    **log_groups.METHODS,
    **vectors.METHODS,
    **selected_vectors.METHODS,
    **vector_map.METHODS,
    **backup.METHODS,
    **debug.METHODS,
}
