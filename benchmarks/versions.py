"""Compares the programs that two versions of this package emit, side by side.

    python -m benchmarks.versions save before [PROGRAM ...]     # in the one version
    python -m benchmarks.versions save after [PROGRAM ...]      # in the other one
    python -m benchmarks.versions compare before after          # which programs differ
    python -m benchmarks.versions time before after             # those that differ, interleaved

A program is `jacobian.NAME@BATCH` (0 for a single input, with `:ORDER` for another order than
auto), `laplacian.NAME@value` or `laplacian.NAME@training`, or `FILE.py@FUNCTION`, a function of no
arguments that returns a function and its inputs. Without names all benchmark problems are taken, at
0, 4,096 and 100,000. `save` exports each as StableHLO with its inputs; programs that are the same
text need no timing, and those that differ run in one process, so that no drift of the machine
lies between them.
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

    def call(self) -> Callable[[], Any]:
        """The compiled program on its inputs, as a function of no arguments."""
        inputs = [jnp.asarray(leaf) for leaf in self.inputs]
        compiled = jax.jit(export.deserialize(bytearray(self.exported)).call)
        return lambda: compiled(*inputs)

    def temporary_bytes(self) -> int:
        """Temporary memory of the compiled program."""
        program = jax.jit(export.deserialize(bytearray(self.exported)).call)
        memory = program.lower(*self.inputs).compile().memory_analysis()
        return 0 if memory is None else int(memory.temp_size_in_bytes)


def all_programs() -> list[str]:
    """The programs of all benchmark problems."""
    jacobians = [
        f"jacobian.{name}@{batch}"
        for name, problem in PROBLEMS.items()
        for batch in BATCHES
        if (batch or 1) in problem.batches
    ]
    laplacians = [f"laplacian.{name}@{task}" for name in LAPLACIAN_PROBLEMS for task in TASKS]
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
        f"laplacian.NAME@{'|'.join(TASKS)} or FILE.py@FUNCTION"
    )


def _of_file(path: Path, function: str) -> Built:
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)()


def saved(fun: Callable[..., Any], arguments: Sequence[Any]) -> Saved:
    """Traces, plans and exports a function for these arguments."""
    leaves, tree = jax.tree.flatten(tuple(arguments))

    def flat(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(fun(*jax.tree.unflatten(tree, leaves)))

    exported = export.export(jax.jit(flat))(*leaves)
    text = re.sub(r"loc\(.*?\)|#loc\d*.*", "", exported.mlir_module())
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Saved(digest, bytes(exported.serialize()), [np.asarray(leaf) for leaf in leaves])


def read(folder: Path) -> dict[str, Saved]:
    """The programs that `save` wrote into a folder, by name."""
    found = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        name, program = pickle.loads(path.read_bytes())
        found[name] = program
    return found


def save(folder: Path, programs: Sequence[str]) -> None:
    """Exports programs of the version that is imported here."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in programs:
        with jax.enable_x64(False):
            program = saved(*build(name))
        path = folder / (re.sub(r"[^\w.@-]", "_", name) + SUFFIX)
        path.write_bytes(pickle.dumps((name, program)))
        print(f"{program.digest} {name}", flush=True)


def differing(before: dict[str, Saved], after: dict[str, Saved]) -> list[str]:
    """Names of programs that both have and that are not the same text."""
    return [
        name
        for name, program in before.items()
        if name in after and after[name].digest != program.digest
    ]


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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save", help="export programs of this version")
    saving.add_argument("folder", type=Path)
    saving.add_argument("programs", nargs="*", metavar="PROGRAM")
    for command, what in (("compare", "which programs differ"), ("time", "time those that do")):
        pair = commands.add_parser(command, help=what)
        pair.add_argument("before", type=Path)
        pair.add_argument("after", type=Path)
        pair.add_argument("--rounds", type=int, default=21)
        pair.add_argument("--max-seconds", type=float, default=6.0)
    options = parser.parse_args(arguments)
    if options.command == "save":
        save(options.folder, options.programs or all_programs())
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
        result = timed(
            before[name], after[name], rounds=options.rounds, max_seconds=options.max_seconds
        )
        memory = [program.temporary_bytes() for program in (before[name], after[name])]
        print(
            f"* {name}: after / before {result.ratio('after')}, null {result.null()}, "
            f"temporary memory {memory[0]:,} -> {memory[1]:,} B",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
