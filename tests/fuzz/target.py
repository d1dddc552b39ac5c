"""A target: a function of bytes, with valid inputs to begin with."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from shared.errors import Internal, TriptychError

SLOW_S = 2.0
"""An input may take so long, in seconds."""
CORPUS = Path(__file__).parent / "corpus"
_ROOT = str(Path(__file__).resolve().parents[2])
_OWN = str(Path(__file__).resolve().parent)


@dataclass(frozen=True)
class Target:
    """`check` takes an input and returns, or raises one of `refusals`, which are right answers to a wrong input.
    `seeds`: valid inputs. `strategy`: a strategy of inputs close to valid ones. `tokens`: words of the format, which
    the mutator inserts. `bytes_max`: the longest input. `service`: what must run meanwhile. `is_guided`: the code runs
    in this process, so that the mutator sees which branches an input reaches."""

    name: str
    check: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    strategy: Callable[[], SearchStrategy[bytes]] | None = None
    refusals: tuple[type[Exception], ...] = (TriptychError,)
    tokens: tuple[str, ...] = ()
    bytes_max: int = 4096
    service: Callable[[], AbstractContextManager[None]] = nullcontext
    is_guided: bool = True

    @property
    def corpus(self) -> Path:
        """The directory of inputs that failed once."""
        return CORPUS / self.name


@dataclass(frozen=True)
class Failure:
    """`kind` is the same for two inputs that fail in the same way; `text` says how."""

    kind: str
    text: str


def run(target: Target, data: bytes) -> Failure | None:
    """Feed one input to the target."""
    started = time.perf_counter()
    try:
        target.check(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        # `Internal` is a TriptychError, but a client gets a 500 for it.
        is_refusal = isinstance(error, target.refusals)
        if not is_refusal or (isinstance(error, Internal) and TriptychError in target.refusals):
            return Failure(_kind_of(error), "".join(traceback.format_exception(error)))
    seconds = time.perf_counter() - started
    return Failure("slow", f"the input took {seconds:.2f} s; the limit is {SLOW_S:g} s\n") if seconds > SLOW_S else None


def _kind_of(error: BaseException) -> str:
    """The error's type and the innermost line of this repository that it has passed."""
    place = "?"
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(_ROOT) and "/.venv/" not in frame.filename:
            if place != "?" and frame.filename.startswith(_OWN):
                continue
            place = f"{Path(frame.filename).stem}:{frame.lineno}"
    return f"{type(error).__name__}@{place}"
