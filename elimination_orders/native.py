"""Optional compiled inner loops.

The searches are written in Python.  Where a C compiler is at hand, ``_kernel.c`` is compiled once,
kept in the user's cache folder and loaded by `ctypes`; it does the same steps in the same order and
is ten to twenty times as fast.  Without a compiler, or with ``ELIMINATION_ORDERS_KERNEL=python`` in
the environment, everything runs in Python and finds the same orders for the same number of
evaluations.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elimination_orders.bitgraph import BitProblem

__all__ = ["NativePlanner", "cache_folder", "kernel_available"]

_SOURCE = Path(__file__).with_name("_kernel.c")
# -O1 is as fast as -O3 here and compiles in a third of the time, which somebody waits for.
_FLAGS = ("-O1", "-shared", "-fPIC", "-ffp-contract=off", "-march=native")
_COMPILE_SECONDS = 60


def cache_folder() -> Path:
    """Folder for the compiled kernel and for plans.

    ``ELIMINATION_ORDERS_CACHE`` if set, else ``elimination_orders`` in the user's cache folder.
    """
    chosen = os.environ.get("ELIMINATION_ORDERS_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "elimination_orders"


def kernel_available() -> bool:
    """Whether the compiled inner loops are in use."""
    return _library() is not None


def _machine() -> str:
    """A name for the instruction set, since the kernel is compiled for this very machine."""
    text = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                text += line
                break
    except OSError:
        text += platform.processor()
    return text


@functools.cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("ELIMINATION_ORDERS_KERNEL", "").lower() == "python":
        return None
    if sys.byteorder != "little":  # bit sets are handed over as little-endian bytes
        return None
    try:
        key = hashlib.sha256(
            _SOURCE.read_bytes() + " ".join(_FLAGS).encode() + _machine().encode()
        ).hexdigest()[:16]
        library = _load(f"kernel-{key}.so")
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    return _declare(library)


def _load(name: str) -> ctypes.CDLL:
    """The library from the cache folder, or compiled for this process if that is no use."""
    path = cache_folder() / name
    try:
        if not path.exists():
            _compile(path)
        return ctypes.CDLL(str(path))
    except OSError:
        # A folder that cannot be written, or from which nothing may be executed.
        with tempfile.TemporaryDirectory() as folder:
            _compile(Path(folder) / name)
            return ctypes.CDLL(str(Path(folder) / name))


def _compile(path: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    compiler = compiler or shutil.which("clang")
    if compiler is None:
        raise OSError("no C compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at once; each writes a file of its own and moves it in place.
    handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        subprocess.run(
            [compiler, *_FLAGS, "-o", name, str(_SOURCE)],
            check=True,
            capture_output=True,
            timeout=_COMPILE_SECONDS,
        )
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    numbers = ctypes.POINTER(ctypes.c_int)
    signatures: dict[str, tuple[list[object], object]] = {
        "planner_new": (
            [integer, integer, integer, integer, ctypes.POINTER(wide), pointer, pointer],
            pointer,
        ),
        "planner_free": ([pointer], None),
        "planner_evaluate": ([pointer, numbers, integer], wide),
        "anneal_begin": (
            [pointer, numbers, ctypes.c_uint64, ctypes.POINTER(ctypes.c_double)],
            integer,
        ),
        "anneal_set_order": ([pointer, numbers], None),
        "anneal_run": ([pointer, ctypes.c_double, wide], None),
        "anneal_cost": ([pointer], wide),
        "anneal_evaluations": ([pointer], wide),
        "anneal_best": ([pointer, numbers], wide),
        "subset_dp": ([pointer, numbers, integer, numbers, integer, numbers], wide),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = result
    return library


def _numbers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * max(1, len(values)))(*values)


class NativePlanner:
    """A `BitProblem` in the hands of the compiled kernel.

    Args:
        problem: the problem.

    Raises:
        RuntimeError: if the kernel is not available.
        MemoryError: if the kernel cannot get the memory it needs.
    """

    def __init__(self, problem: BitProblem) -> None:
        library = _library()
        if library is None:
            raise RuntimeError("The compiled kernel is not available; use the Python searches.")
        self._library = library
        self.n = problem.n
        width = max(1, (problem.size + 63) // 64)
        rows = [*problem.succ, *problem.pred]
        if problem.tracks_kinds:
            rows += [*problem.unit, *problem.constant]
        start = b"".join(row.to_bytes(8 * width, "little") for row in rows)
        self._handle = library.planner_new(
            problem.n,
            problem.size,
            width,
            int(problem.tracks_kinds),
            (ctypes.c_int64 * 3)(*problem.effective_weights),
            problem.kept.to_bytes(8 * width, "little"),
            start,
        )
        if not self._handle:
            raise MemoryError(f"No memory for a graph of {problem.size} vertices.")

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.planner_free(handle)
            self._handle = None

    def evaluate(self, order: Sequence[int]) -> int:
        """Cost of an order, as `BitProblem.evaluate`."""
        return self._library.planner_evaluate(self._handle, _numbers(order), len(order))

    def anneal_begin(self, order: Sequence[int], rng: int, surprise: Sequence[float]) -> None:
        """Start annealing at `order`, see `elimination_orders.search.annealer`."""
        table = (ctypes.c_double * 1024)(*surprise)
        if not self._library.anneal_begin(self._handle, _numbers(order), rng, table):
            raise MemoryError(f"No memory to anneal an order of {self.n} vertices.")

    def anneal_set_order(self, order: Sequence[int]) -> None:
        """Go on annealing from another order."""
        self._library.anneal_set_order(self._handle, _numbers(order))

    def anneal_run(self, temperature: float, moves: int) -> None:
        """Try `moves` moves."""
        self._library.anneal_run(self._handle, temperature, moves)

    def anneal_cost(self) -> int:
        """Cost of the current order."""
        return self._library.anneal_cost(self._handle)

    def anneal_evaluations(self) -> int:
        """Orders evaluated since `anneal_begin`."""
        return self._library.anneal_evaluations(self._handle)

    def anneal_best(self) -> tuple[int, list[int]]:
        """Cost and order of the best found since `anneal_begin`."""
        order = _numbers([0] * self.n)
        cost = self._library.anneal_best(self._handle, order)
        return cost, list(order[: self.n])

    def subset_dp(self, prefix: Sequence[int], members: Sequence[int]) -> tuple[int, list[int]]:
        """Least cost and an optimal order of `members` after `prefix`."""
        order = _numbers(members)
        cost = self._library.subset_dp(
            self._handle, _numbers(prefix), len(prefix), _numbers(members), len(members), order
        )
        if cost < 0:
            raise MemoryError(f"No memory for the subsets of {len(members)} vertices.")
        return cost, list(order[: len(members)])
