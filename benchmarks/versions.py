"""Compares the programs that two versions of this package emit, side by side.

    python -m benchmarks.versions save before [PROGRAM ...]     # in the one version
    python -m benchmarks.versions save after [PROGRAM ...]      # in the other one
    python -m benchmarks.versions compare before after          # which programs differ
    python -m benchmarks.versions time before after             # those that differ, interleaved

A program is `jacobian.NAME@BATCH` (0 for a single input, with `:ORDER` for another order than
auto), `laplacian.NAME@value` or `laplacian.NAME@training`, or `FILE.py@FUNCTION`, a function of no
arguments that returns a function and its inputs. Without names the named benchmark problems are
taken, at 0, 4,096 and 100,000. `save` exports each as StableHLO with its inputs; programs that are
the same text need no timing, and those that differ run in one process, so that no drift of the
machine lies between them.
"""

import argparse
import hashlib
import importlib.util
import pickle
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from benchmarks.compare import Case
from benchmarks.laplacian.measure import TASKS, batched
from benchmarks.laplacian.methods import METHODS, OURS
from benchmarks.problems import PROBLEMS
from benchmarks.problems.groups import GROUPS, Group, names_in
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS
from benchmarks.timing import Measurement, measure

#: Batch sizes of Jacobians where no program is named; 0 is a single input.
BATCHES = (0, 4096, 100_000)
SUFFIX = ".program"

Built = tuple[Callable[..., Any], Sequence[Any]]


@dataclass(frozen=True)
class Saved:
    """An emitted program and inputs for it.

    Attributes:
        digest: of its StableHLO, places in source files left out.
        exported: what `jax.export` serialises; inputs and outputs are flat.
        inputs: the leaves of its arguments.
    """

    digest: str
    exported: bytes
    inputs: list[np.ndarray]

    def jitted(self) -> jax.stages.Wrapped:
        """The program as a function of its inputs."""
        return jax.jit(export.deserialize(bytearray(self.exported)).call)

    def call(self) -> Callable[[], Any]:
        """The program on its inputs, as a function of no arguments."""
        program, inputs = self.jitted(), [jnp.asarray(leaf) for leaf in self.inputs]
        return lambda: program(*inputs)

    def temporary_bytes(self) -> int:
        """Temporary memory of the compiled program."""
        memory = self.jitted().lower(*self.inputs).compile().memory_analysis()
        return 0 if memory is None else int(memory.temp_size_in_bytes)


def all_programs(group: Group = "named") -> list[str]:
    """The programs of all benchmark problems of a group."""
    jacobians = [
        f"jacobian.{name}@{batch}"
        for name in names_in(PROBLEMS, group)
        for batch in BATCHES
        if (batch or 1) in PROBLEMS[name].batches
    ]
    laplacians = [
        f"laplacian.{name}@{task}" for name in names_in(LAPLACIAN_PROBLEMS, group) for task in TASKS
    ]
    return jacobians + laplacians


def build(program: str) -> Built:
    """The function that a name stands for, and its inputs in float32.

    Raises:
        ValueError: the name says nothing that is known.
    """
    name, _, where = program.rpartition("@")
    kind, _, own = name.partition(".")
    batch, _, order = where.partition(":")
    if name.endswith(".py"):
        return _of_file(Path(name), where)
    if kind == "jacobian" and own in PROBLEMS and batch.isdigit():
        case = Case.of(PROBLEMS[own], int(batch) or None)
        return case.elimination(order or "auto"), case.inputs(jnp.float32)
    if kind == "laplacian" and own in LAPLACIAN_PROBLEMS and where in TASKS:
        problem = LAPLACIAN_PROBLEMS[own]
        instance = problem.instance(jnp.float32)
        operator = METHODS[problem.operator][OURS](instance.fun)
        return batched(operator, where), (instance.params, instance.xs)
    raise ValueError(
        f"unknown program {program!r}; expected jacobian.NAME@BATCH[:ORDER], "
        f"laplacian.NAME@{'|'.join(TASKS)} or FILE.py@FUNCTION, where NAME is that of a problem in "
        "benchmarks/problems/"
    )


def _of_file(path: Path, function: str) -> Built:
    """What a function of a file returns; the file may import what lies beside it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    beside = str(path.resolve().parent)
    sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise ValueError(f"{path} has no function {function!r}")
        built: Built = getattr(module, function)()
    finally:
        sys.path.remove(beside)
    return built


def exported(fun: Callable[..., Any], arguments: Sequence[Any]) -> Saved:
    """Traces, plans and exports a function for these arguments."""
    leaves, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, tuple(arguments)))

    def flat(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(fun(*jax.tree.unflatten(tree, leaves)))

    program = export.export(jax.jit(flat))(*leaves)
    # How many places in source files there are says nothing either.
    text = re.sub(r"loc\(.*?\)|#loc\d*.*\n?", "", program.mlir_module())
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Saved(digest, bytes(program.serialize()), [np.asarray(leaf) for leaf in leaves])


def read(folder: Path) -> dict[str, Saved]:
    """The programs that `save` wrote into a folder, by name."""
    files = sorted(folder.glob(f"*{SUFFIX}"))
    return dict(pickle.loads(path.read_bytes()) for path in files)


def save(folder: Path, programs: Sequence[str]) -> None:
    """Exports programs of the version that is imported here.

    Raises:
        ImportError: without flatbuffers, which `jax.export` writes with.
    """
    if importlib.util.find_spec("flatbuffers") is None:
        raise ImportError(
            "saving programs needs flatbuffers, which jax.export writes them with: "
            "pip install flatbuffers, or pip install -e '.[dev]'"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in programs:
        with jax.enable_x64(False):
            program = exported(*build(name))
        path = folder / (re.sub(r"[^\w.@-]", "_", name) + SUFFIX)
        path.write_bytes(pickle.dumps((name, program)))
        print(f"{program.digest} {name}", flush=True)


def differing(before: dict[str, Saved], after: dict[str, Saved]) -> list[str]:
    """Names of programs that both have and that are not the same text."""
    both = (name for name in before if name in after)
    return [name for name in both if before[name].digest != after[name].digest]


def timed(before: Saved, after: Saved, *, rounds: int, max_seconds: float) -> Measurement:
    """Both programs of one name, in turns."""
    return measure(
        {"before": before.call(), "after": after.call()},
        references=("before",),
        rounds=rounds,
        max_seconds=max_seconds,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Saves, compares or times; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "save":
        try:
            save(options.folder, options.programs or all_programs(options.group))
        except (ImportError, ValueError) as error:
            parser.error(str(error))
        return 0
    before, after = read(options.before), read(options.after)
    both = before.keys() & after.keys()
    if not both:
        parser.error(f"{options.before} and {options.after} have no program in common")
    names = differing(before, after)
    print(f"{len(both)} programs in both, {len(names)} differ")
    for name in names:
        if options.command == "compare":
            print(f"* {name}")
            continue
        one, two = before[name], after[name]
        result = timed(one, two, rounds=options.rounds, max_seconds=options.max_seconds)
        print(
            f"* {name}: after / before {result.ratio('after')}, null {result.null()}, "
            f"temporary memory {one.temporary_bytes():,} -> {two.temporary_bytes():,} B",
            flush=True,
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save", help="export programs of this version")
    saving.add_argument("folder", type=Path)
    saving.add_argument("programs", nargs="*", metavar="PROGRAM")
    saving.add_argument("--group", choices=GROUPS, default="named", help="where none is named")
    comparing = commands.add_parser("compare", help="which programs differ")
    timing = commands.add_parser("time", help="time those that differ")
    for command in (comparing, timing):
        command.add_argument("before", type=Path)
        command.add_argument("after", type=Path)
    timing.add_argument("--rounds", type=int, default=21)
    timing.add_argument("--max-seconds", type=float, default=6.0, help="of each program")
    return parser


if __name__ == "__main__":
    # By its name, so that what is pickled does not say `__main__`.
    from benchmarks import versions

    sys.exit(versions.main())
