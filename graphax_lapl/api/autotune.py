"""`order="autotune"`: the best few programs are compiled and timed, and the verdict is kept."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import InvalidArgumentError
from ..graph.tracing import check_flags, check_integer, check_number
from .plan import Plan

__all__ = ["CANDIDATES", "Autotune", "as_autotune", "measured_winner"]

#: Candidates for a Jacobian by default. The last two evaluate by colours what a user would have
#: written with `jax.jacfwd` and `jax.jacrev`: where nothing is sparse, they are just that.
CANDIDATES = (
    "auto",
    "reverse",
    "forward",
    "markowitz",
    "compressed_forward",
    "compressed_reverse",
)
#: Part of every key: raise it when a verdict changes its meaning.
FORMAT = 2
#: Rounds that are thrown away: the first fills caches.
WARM_UP = 2


@dataclass(frozen=True)
class Autotune:
    """Time the candidates on this machine and take the fastest. Pass it as `order=`.

    The verdict is kept on disk for the graph, the shapes, the batch and the kind of device: the
    next process times nothing. `"autotune"` is `Autotune()`.

    Attributes:
        batch: how many samples are evaluated at once by `jax.vmap`. What is fastest depends on it,
            and a call under `jax.vmap` cannot see it. None: one.
        shared: positions of the arguments that all samples of a batch share (`in_axes` None), such
            as the parameters of a network. Arrays that the function closes over are always shared.
        candidates: orders that are timed, by name. One that does not suit the function (compressed
            evaluation of a complex function, say) is left out, and so is one whose program is that
            of an earlier one. None: for a Jacobian "auto", "reverse", "forward", "markowitz",
            "compressed_forward" and "compressed_reverse"; for other operators the orders that suit
            them and JAX's own ways, which have names too: "jax.hessian" (for a Laplacian its
            trace), "jax.loop" (a Laplacian by one Hessian-vector product after the other),
            "jax.jacfwd" and "jax.jacrev" (their traces, for a divergence).
        rounds: how often each candidate is sampled; they take turns, and medians are compared.
        seconds: length of a sample, in seconds: quick programs are called repeatedly.
        progress: show a progress bar where rich is installed.
        folder: where verdicts are kept; by default a folder `autotune` in the user's cache folder.
        clock: returns the time in seconds.

    Raises:
        InvalidArgumentError: for sizes that are not positive, negative positions, or no candidates.
    """

    batch: int | None = None
    shared: tuple[int, ...] = ()
    candidates: tuple[str, ...] | None = None
    rounds: int = 7
    seconds: float = 2e-3
    progress: bool = False
    folder: Path | None = field(default=None, compare=False)
    clock: Callable[[], float] = field(default=time.perf_counter, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.batch is not None:
            check_integer("batch", self.batch, 1)
        check_integer("rounds", self.rounds, 1)
        check_flags(progress=self.progress)
        check_number("seconds", self.seconds)
        shared: Any = self.shared
        if not isinstance(shared, tuple | list):
            raise InvalidArgumentError(
                f"shared must be a tuple of positions of arguments, got {shared!r}."
            )
        for position in shared:
            check_integer("shared: every position", position, 0)
        candidates: Any = self.candidates
        if candidates is not None and not (isinstance(candidates, tuple | list) and candidates):
            raise InvalidArgumentError(
                "candidates must be a tuple of at least one order, for example "
                f"{CANDIDATES[1:3]!r}, got {candidates!r}."
            )


def as_autotune(order: Any) -> Autotune | None:
    """What to measure, where an order says that something is to be measured."""
    if isinstance(order, str) and order.lower() == "autotune":
        return Autotune()
    return order if isinstance(order, Autotune) else None


@dataclass(frozen=True)
class Inputs:
    """What a plan is run on.

    Attributes:
        values: of every input of the program: arrays, tracers or shapes.
        own: for every input whether each sample of a batch has its own.
    """

    values: Sequence[Any]
    own: Sequence[bool]


def measured_winner(
    wanted: Autotune,
    inputs: Inputs,
    candidates: Mapping[str, Callable[[], Plan | None]],
    operator: Hashable = "jacobian",
    sparse: bool = False,
) -> Plan:
    """The plan among the candidates that is fastest here, by a kept verdict or a new one.

    Args:
        wanted: how to measure.
        inputs: constants and leaves of the call; where they are being traced, random numbers of
            the same shapes are used instead.
        candidates: by name what makes the plan; None for one that does not suit the function.
        operator: what the plans compute.
        sparse: whether sparse results are asked for; they are what is timed then.

    Raises:
        InvalidArgumentError: where no candidate suits the function.
    """
    plans: dict[str, Plan] = {}

    def plan(name: str) -> Plan | None:
        if name not in plans:
            made = candidates[name]()
            if made is None:
                return None
            plans[name] = made
        return plans[name]

    first = next((made for name in candidates if (made := plan(name)) is not None), None)
    if first is None:
        raise InvalidArgumentError(
            f"order=Autotune(...): none of {', '.join(map(repr, candidates))} suits the function."
        )
    key = _key(wanted, tuple(candidates), first, inputs, (operator, sparse))
    from elimination_orders import StoredText, cache_folder

    folder = wanted.folder or cache_folder() / "autotune"
    stored = StoredText(folder / f"verdict-{key}.json")
    known = _winner(stored.read())
    if known in candidates and (made := plan(known)) is not None:
        return made

    different: dict[str, Plan] = {}
    for name in candidates:
        made = plan(name)
        if made and not any(made.is_same_program(other) for other in different.values()):
            different[name] = made
    calls = _compiled(different, inputs, sparse, wanted)
    seconds = _race(calls, wanted)
    winner = min(seconds, key=lambda name: seconds[name])
    stored.write(json.dumps({"winner": winner, "seconds": seconds}, indent=1) + "\n")
    return plans[winner]


def _key(
    wanted: Autotune, names: tuple[str, ...], plan: Plan, inputs: Inputs, what: Hashable
) -> str:
    """What a verdict holds for."""
    device = jax.devices()[0]
    content = (
        FORMAT,
        what,
        plan.fingerprint,
        [(tuple(np.shape(x)), str(jax.numpy.result_type(x))) for x in inputs.values],
        wanted.batch,
        None if wanted.batch is None else list(inputs.own),
        names,
        device.platform,
        device.device_kind,
        jax.__version__,
    )
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]


def _winner(text: str | None) -> str:
    """The name in a stored verdict; an empty one where there is none that can be read."""
    try:
        return str(json.loads(text or "{}").get("winner", ""))
    except (ValueError, AttributeError):
        return ""


def _arguments(inputs: Inputs, batch: int | None) -> list[np.ndarray]:
    """Numbers to run on: the call's own where they are known and there is no batch to be made."""
    random = np.random.default_rng(0)
    made = []
    for value, own in zip(inputs.values, inputs.own, strict=True):
        batched = own and batch is not None
        shape = (*((batch,) if batched else ()), *np.shape(value))
        dtype = np.dtype(jax.numpy.result_type(value))
        known = None if batched else _known(value)
        if known is not None:
            made.append(known)
        elif jax.numpy.issubdtype(dtype, jax.numpy.inexact):
            made.append(random.uniform(0.5, 1.5, shape).astype(dtype))
        else:
            made.append(np.zeros(shape, dtype))
    return made


def _known(value: Any) -> np.ndarray | None:
    if isinstance(value, jax.ShapeDtypeStruct):
        return None
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:
        return None


def _compiled(
    plans: Mapping[str, Plan], inputs: Inputs, sparse: bool, wanted: Autotune
) -> dict[str, Callable[[], Any]]:
    """A call for every plan; compiled ahead of time, so that an outer trace does not see it."""
    arguments = _arguments(inputs, wanted.batch)
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments]
    axes = [0 if own else None for own in inputs.own]
    calls: dict[str, Callable[[], Any]] = {}
    for name in _shown(list(plans), "compiling", wanted):
        run = plans[name].emit(values=False, sparse=sparse)
        batched = run if wanted.batch is None else jax.vmap(run, (axes,))
        calls[name] = functools.partial(
            _finished, jax.jit(batched).lower(types).compile(), arguments
        )
    return calls


def _finished(program: Callable[..., Any], arguments: list[np.ndarray]) -> Any:
    return jax.block_until_ready(program(arguments))


def _race(calls: Mapping[str, Callable[[], Any]], wanted: Autotune) -> dict[str, float]:
    """Median seconds of a call of each candidate, sampled in turns."""
    import statistics  # nothing else needs it

    repeats = dict.fromkeys(calls, 1)

    def sample(name: str) -> float:
        start = wanted.clock()
        for _ in range(repeats[name]):
            calls[name]()
        return (wanted.clock() - start) / repeats[name]

    for _ in range(WARM_UP):
        warm = {name: sample(name) for name in calls}
    repeats = {n: max(1, round(wanted.seconds / max(s, 1e-9))) for n, s in warm.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    turns = [f"{turn}" for turn in range(wanted.rounds)]
    for turn in _shown(turns, "timing", wanted):
        for name in list(calls)[:: -1 if int(turn) % 2 else 1]:
            samples[name].append(sample(name))
    return {name: statistics.median(found) for name, found in samples.items()}


def _shown(names: Sequence[str], what: str, wanted: Autotune) -> Iterable[str]:
    """The names, with a progress bar as they are taken, where that is wanted and possible."""
    if not wanted.progress or importlib.util.find_spec("rich") is None:
        return names
    from rich.progress import track

    return track(names, description=f"autotune: {what}")
