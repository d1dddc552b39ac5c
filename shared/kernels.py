"""Kernels: functions of arrays that are compiled to machine code, each for one declared type signature.

A kernel is loaded from the cache on disk (`shared.kernel_cache`), or compiled if it is not there, when a process
prepares itself (`compile_first`, `load_all`, `compile_all`), when another kernel that calls it is compiled, or at the
latest by its first call. Nothing is compiled when a module is imported. This is the only module that makes numba
dispatchers.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable
from functools import update_wrapper
from threading import RLock
from typing import Any, overload

from numba import njit, types
from numba._dynfunc import make_function
from numba.core import caching, compiler, serialize, sigutils
from numba.core.ccallback import CFunc
from numba.extending import typeof_impl

from shared import kernel_cache, kernel_sources, machine_code
from shared.machine_code import MachineCode

_registry: list[Kernel] = []

# One lock for all kernels: with one lock each, two threads that compile kernels which call each other could deadlock
# with numba's own lock.
_lock = RLock()

_shares_work = False


class Kernel:
    """A function of arrays with one declared signature, called by Python and by other kernels alike.

    `is_first`: a process must have it before it takes requests. `dispatcher` is numba's: it checks the types of
    arguments and calls the machine code.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, is_first: bool, options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.signature = signature
        self.is_first = is_first
        self._function = function
        self._options = options
        self._name: str | None = None
        self._compiled: Any = None
        self.dispatcher = self._new_dispatcher()

    def __call__(self, *arguments: Any) -> Any:
        """The first call of a kernel that is not loaded yet."""
        self.compile()
        return self.dispatcher(*arguments)

    def compile(self) -> None:
        """Load the kernel from the cache on disk, or compile it, unless that is done already."""
        with _lock:
            if self.load():
                return
            # Kernels call each other in no circle, so processes that wait for each other's do not wait for ever.
            with kernel_cache.claimed(self.name() or "", wait=_shares_work):
                if self.load():
                    return
                if name := self.name():
                    kernel_cache.discard(name, "types")  # without code: what wrote them was ended in between
                self._compile(self.dispatcher)
                self._become_ready()

    def load(self) -> bool:
        """Load the kernel from the cache on disk, unless that is done already. Returns False if it is not there."""
        with _lock:
            if self.is_ready():
                return True
            code = _stored(self.name())
            if code is None:
                return False
            arguments, result = sigutils.normalize_signature(self.signature)
            fields = dict.fromkeys(compiler.CR_FIELDS) | {
                "signature": result(*arguments),
                "entry_point": self._entry_point(code),
                "objectmode": False,
            }
            self.dispatcher.add_overload(compiler.CompileResult(**fields))
            self._become_ready()
            return True

    def compile_unless_claimed(self) -> bool:
        """As `compile`. Returns False, and does nothing, while another process compiles the kernel."""
        if self.load():
            return True
        with kernel_cache.claimed(self.name() or "") as is_mine:
            if is_mine:
                self.compile()
            return is_mine

    def is_ready(self) -> bool:
        return type(self) is not Kernel

    def for_callers(self) -> Any:
        """The dispatcher with all that compiling a kernel that calls this one needs."""
        with _lock:
            self.compile()
            if self._compiled is None:
                self._compile(self._new_dispatcher())
            return self._compiled

    def name(self) -> str | None:
        """Of the kernel's files in the cache; None for a function whose source is in no file, which is not kept."""
        with _lock:
            if self._name is None:
                self._name = _name_of(self._function, "kernel", self.signature, self._options)
            return self._name

    def _new_dispatcher(self) -> Any:
        dispatcher = njit(nogil=True, **self._options)(self._function)
        dispatcher._cache = _Cache(self)
        return dispatcher

    def _compile(self, dispatcher: Any) -> None:
        dispatcher.compile(self.signature)
        dispatcher.disable_compile()
        self._compiled = dispatcher

    def _become_ready(self) -> None:
        # Arguments of other types are converted or refused; no other version is compiled for them.
        self.dispatcher.disable_compile()
        # Python looks for `__call__` in the class: with a class of its own a compiled kernel is called without a
        # Python frame in between, in 20 ns more than the dispatcher instead of 150.
        self.__class__ = type("CompiledKernel", (Kernel,), {"__call__": staticmethod(self.dispatcher)})

    def _entry_point(self, code: MachineCode) -> Any:
        module, (_, environment) = sys.modules[self._function.__module__], code.environments[0]
        address = machine_code.linked(code)
        return make_function(module, self._function.__name__, "", address, environment, ())


class _Cache(caching.NullCache):  # type: ignore[misc]
    """What numba asks before it compiles a kernel, and tells what it has compiled."""

    def __init__(self, owner: Kernel) -> None:
        self._owner = owner

    def load_overload(self, signature: Any, context: Any) -> Any:
        name = self._owner.name()
        data = kernel_cache.read(name, "types") if name else None
        if data is None:
            return None
        context.refresh()
        return compiler.CompileResult._rebuild(context, *serialize.pickle.loads(data))

    def save_overload(self, signature: Any, result: Any) -> None:
        name = self._owner.name()
        if name is None:
            return
        payload = result._reduce()
        # Of the functions that it calls, those without constants are asked for nothing; to load them imports numba's.
        environments = [(result.fndesc.env_name, result.environment)]
        environments += [(called.env_name, called) for called in payload[-1] if called.consts]
        symbol = result.fndesc.llvm_cpython_wrapper_name
        code = machine_code.of_library(result.library, symbol, environments)
        # In this order: `compile` makes both anew where the code is missing.
        kernel_cache.write(name, "types", serialize.dumps(payload))
        kernel_cache.write(name, "code", code.encoded())


@typeof_impl.register(Kernel)
def _type_of_kernel(called: Kernel, _: Any) -> Any:
    """The numba type of a kernel that another kernel calls: its dispatcher, compiled for its own signature."""
    return types.Dispatcher(called.for_callers())


def kernel(
    signature: Any, *, first: bool = False, allocates: bool = True, **options: Any
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel, which releases the interpreter lock while it runs.

    Arguments that are only read are declared as arrays with `readonly=True`, to which writable ones are converted.
    `first`: requests such as writes need the kernel at once, so a process compiles it before it takes requests.
    `allocates`: a kernel that makes no arrays need not count references to those it gets, which costs two atomic
    operations for each of them and each call, more than most small kernels do; one that makes some does not compile
    without. `options` go to `numba.njit`.
    """

    def declare(function: Callable[..., Any]) -> Kernel:
        declared = Kernel(function, signature, first, {**_memory(allocates), **options})
        _registry.append(declared)
        return declared

    return declare


@overload
def inlined(function: Callable[..., Any], /) -> Any: ...
@overload
def inlined(*, allocates: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...
def inlined(function: Callable[..., Any] | None = None, /, *, allocates: bool = True, **options: Any) -> Any:
    """Declare a function that is inlined into the kernels that call it and gets its types from them; `allocates` and
    `options` as for `kernel`."""
    decorate: Any = njit(**{"forceinline": True, **_memory(allocates), **options})
    return decorate if function is None else decorate(function)


def _memory(allocates: bool) -> dict[str, bool]:
    return {} if allocates else {"_nrt": False}


def c_function(signature: Any, function: Callable[..., Any]) -> int:
    """The address of the function compiled for C to call, valid as long as the process."""
    name = _name_of(function, "C", signature, {})
    with _lock:
        code = _stored(name)
        if code is None:
            compiled: Any = CFunc(function, sigutils.normalize_signature(signature), locals={}, options={})
            compiled.compile()
            code = machine_code.of_library(compiled._library, compiled.native_name, ())
            if name is not None:
                kernel_cache.write(name, "code", code.encoded())
        return machine_code.linked(code)


def _stored(name: str | None) -> MachineCode | None:
    data = kernel_cache.read(name, "code") if name else None
    return None if data is None else MachineCode.decoded(data)


def _name_of(function: Callable[..., Any], kind: str, signature: Any, options: dict[str, Any]) -> str | None:
    sources = kernel_sources.digest(function.__module__)
    if sources is None:
        return None
    place = f"{function.__module__}.{function.__qualname__}"
    line = function.__code__.co_firstlineno
    # A set has its elements in another order in each process.
    told = sorted((name, sorted(given) if isinstance(given, set) else given) for name, given in options.items())
    parts = (place, line, kind, str(signature), told)
    digest = hashlib.sha256(sources + machine_code.processor() + repr(parts).encode())
    return f"{re.sub('[^A-Za-z0-9_.]', '_', place)}-{digest.hexdigest()[:24]}"


def compile_first() -> int:
    """Load or compile the kernels that a process needs before it takes requests, of all modules imported so far.
    Returns how many there are."""
    kernels = [declared for declared in _registry if declared.is_first]
    _compile(kernels)
    return len(kernels)


def load_all() -> int:
    """Load the kernels that the cache on disk has, of all modules imported so far, in 0.7 ms each. Returns how many it
    does not have."""
    return sum(not declared.load() for declared in _registry)


def compile_all(*, shares_work: bool = False) -> int:
    """Load or compile every kernel of the modules imported so far. Compiling all takes a minute or more. A thread that
    calls a kernel meanwhile waits for at most one other. `shares_work`: wait for other processes that compile what this
    one needs, instead of compiling it as well; only for a process that does nothing else. Returns how many there are.
    """
    global _shares_work
    _shares_work = shares_work
    _compile(kernels := list(_registry))
    return len(kernels)


def ready_count() -> tuple[int, int]:
    """How many kernels of the modules imported so far the cache on disk has, and how many there are."""
    names = [declared.name() for declared in _registry]
    return sum(name is not None and kernel_cache.has(name, "code") for name in names), len(names)


def _compile(kernels: Iterable[Kernel]) -> None:
    claimed_by_others = [each for each in kernels if not each.compile_unless_claimed()]
    for each in claimed_by_others:
        each.compile()
