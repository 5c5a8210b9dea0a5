"""Settings shared by all tests: precision, strictness, determinism."""

import gc
import math
import os
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from zlib import crc32

import jax
import pytest
from hypothesis import HealthCheck, settings

from graphax_lapl.api import laplacian, planning


def _quick_compilation(jaxlib: str) -> str:
    """XLA flags that leave out optimisations of machine code, for a version of jaxlib.

    Compiling is most of the suite's time and these leave a third of it; what the suite checks, the
    emitted programs, they do not change. A flag that a version does not know ends the process.
    """
    flags = [
        "--xla_backend_optimization_level=0",
        "--xla_cpu_parallel_codegen_split_count=1",
        "--xla_cpu_enable_concurrency_optimized_scheduler=false",
    ]
    if tuple(int(part) for part in jaxlib.split(".")[:2]) < (0, 12):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    return " ".join(flags)


# JAX reads both when it first looks for devices. The expected numbers are CPU numbers; set
# JAX_PLATFORMS to run the suite elsewhere.
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # for child processes
jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
# XLA_FLAGS="" compiles as users do, which is how the smoke tests run on the newest JAX.
os.environ.setdefault("XLA_FLAGS", _quick_compilation(version("jaxlib")))

# float64 unless a test asks for another precision, and no silent mixing of dtypes: an accidental
# float32 constant in our code would otherwise hide in a loose tolerance. Rank promotion stays
# allowed, because functions under test broadcast as users' functions do.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "allow")
# Two devices, so that `shard_map` has something to divide; everything else runs on the first.
jax.config.update("jax_num_cpu_devices", 2)

# Examples are drawn from a fixed seed, so that a run is repeatable and a failure is everybody's.
# HYPOTHESIS_PROFILE=explore looks for new ones.
_CHECKS_OFF = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=_CHECKS_OFF,
)
settings.register_profile("explore", deadline=None, suppress_health_check=_CHECKS_OFF)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --check-leaks, which puts every test under JAX's tracer-leak check."""
    parser.addoption(
        "--check-leaks",
        action="store_true",
        help="run every test, not only those marked `leaks`, under jax.checking_leaks() (slow)",
    )
    parser.addoption(
        "--third",
        action="store_true",
        help="mark two of three cases of a test that keeps all of its many `conformance` too",
    )


#: Of tests with at least so many cases: one in so many runs by default, and at least one; the
#: others are left to `make conformance`.
_SHARES = {24: 24, 12: 8, 4: 4, 2: 2}
#: Of what is marked `slow`: one in so many runs by default.
_SLOW_SHARE = 6


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves most cases of tests with many to `make conformance`.

    Which ones is drawn from their names, so that no parameter decides it. Tests marked `smoke` or
    `every_case` keep all of theirs, or a third of them. Of what takes seconds only a share runs,
    drawn from its name too, so that a test's file alone and the whole suite run the same ones.
    """
    kept = 3 if config.getoption("--third") else 1
    count = Counter(item.nodeid.partition("[")[0] for item in items)
    groups: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        share = next((one_in for least, one_in in _SHARES.items() if count[test] >= least), 1)
        if item.get_closest_marker("smoke") or item.get_closest_marker("every_case"):
            share = min(share, kept)
        groups.setdefault((test, share), []).append(item)
    for (_, share), cases in groups.items():
        cases.sort(key=lambda item: crc32(item.nodeid.encode()))
        for item in cases[math.ceil(len(cases) / share) :]:
            item.add_marker(pytest.mark.conformance)
    for item in items:
        if item.get_closest_marker("slow") and crc32(item.nodeid.encode()) % _SLOW_SHARE:
            item.add_marker(pytest.mark.conformance)


def pytest_collection_finish() -> None:
    """Takes modules and collected tests from the garbage collector, and lets it look less often.

    Tracing allocates much, and looking through all of it again and again is an eighth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_report_header() -> str:
    """Names the JAX that is being tested."""
    devices = ", ".join(str(device) for device in jax.devices())
    return f"jax {jax.__version__} on {devices}"


@pytest.fixture(autouse=True)
def _leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Puts a test under the tracer-leak check where it is marked or --check-leaks is given.

    Not everywhere: the check switches off JAX's trace caches, which makes the suite several times
    slower and lets no test of our own caches see them at work.
    """
    marked = request.node.get_closest_marker("leaks") is not None
    if marked or request.config.getoption("--check-leaks"):
        # The check collects garbage for every trace: what earlier tests left is left out of it.
        gc.collect()
        gc.freeze()
        with jax.checking_leaks():
            yield
    else:
        yield


@pytest.fixture
def standard_promotion() -> Iterator[None]:
    """For a test whose function mixes dtypes on purpose, as user code does by default."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def float32() -> Iterator[None]:
    """For a test of JAX's default precision: x64 off."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def fresh_plans() -> Iterator[None]:
    """For a test that changes how plans are made: none from before, and none is left behind."""
    planning.clear_caches()
    yield
    planning.clear_caches()


#: Compiled programs are forgotten after so many tests: kept, those of the whole suite take several
#: gigabytes in every worker.
_TESTS_PER_CACHE = 400
_finished = count(1)


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    """Empties JAX's caches and ours now and then; results do not depend on them."""
    yield
    if next(_finished) % _TESTS_PER_CACHE == 0:
        planning.clear_caches()
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@pytest.fixture
def whole_convolutions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Laplacians take convolutions as a whole, however much less windows have to do."""
    monkeypatch.setattr(laplacian, "WINDOWS", 1e9)
    planning.clear_caches()
    yield
    planning.clear_caches()
