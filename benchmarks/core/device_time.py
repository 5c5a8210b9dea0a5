"""How long a GPU is busy with a call, by JAX's profiler.

The Jacobian of a small function keeps a GPU busy for some microseconds, and dispatching it takes a
hundred: the clock of the host compares what is dispatched, the profiler what is computed.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

#: Calls in one trace.
CALLS = 5
#: How the profiler names a GPU, and the lines on which its kernels are.
PLANE, LINE = "/device:GPU", "Stream"


class Busy(NamedTuple):
    """What one call asks of a GPU.

    Attributes:
        seconds: in which its kernels run, copies of memory included.
        kernels: their number.
    """

    seconds: float
    kernels: float


def busy(call: Callable[[], Any], calls: int = CALLS) -> Busy | None:
    """How long the kernels of a call run, a mean; None where the profiler sees no GPU.

    Args:
        call: already compiled and run.
        calls: traced.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                result = call()
            jax.block_until_ready(result)
        found = sorted(Path(folder).rglob("*.xplane.pb"))
        if not found:
            return None
        return busy_in(jax.profiler.ProfileData.from_file(str(found[0])), calls)


def busy_in(profile: Any, calls: int) -> Busy | None:
    """The same, of a profile (`jax.profiler.ProfileData`) of so many calls."""
    nanoseconds, kernels = 0.0, 0
    for plane in profile.planes:
        if not plane.name.startswith(PLANE):
            continue
        for line in plane.lines:
            if line.name.startswith(LINE):
                for event in line.events:
                    nanoseconds += event.duration_ns
                    kernels += 1
    return Busy(nanoseconds * 1e-9 / calls, kernels / calls) if kernels else None
