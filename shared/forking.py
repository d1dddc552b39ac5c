"""What a process does before it forks others, so that they share its pages for longer."""

from __future__ import annotations

import numpy as np
from numba.core.typing.typeof import Purpose, typeof


def meet_types() -> None:
    """Have numba look at a kernel's argument of each common type.

    When it meets a Python type for the first time, it asks every abstract class of the process about it, which writes
    to the reference counts of most of them: to 9 of the 60 MB that a worker shares with its supervisor.
    """
    for argument in (np.zeros(1), np.int64(0), np.uint64(0), np.float64(0), np.bool_(False), 0, 0.0, False, None, ()):
        typeof(argument, Purpose.argument)
