"""Other packages' test suites, run on this library's derivatives.

    python -m tests.peers folx
    python -m tests.peers asdex tests/_interpret/test_scan.py -x

The suites are those of the source distributions on the package index, of the version that is
installed, and are not part of this repository. What follows the peer's name goes to pytest;
without it the tests of `SUITES` run. `make peers` makes the environment (the extra `peers`).
"""

import os
import subprocess
import sys
import tarfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "peers"

#: For every peer the tests that ask for derivatives or sparsity, below its distribution.
SUITES: dict[str, tuple[str, ...]] = {
    "folx": tuple(
        f"test/test_{name}.py"
        for name in (
            "layers",
            "composite",
            "complex",
            "customjvp",
            "operator",
            "scatter",
            "shard_map",
        )
    ),
    "asdex": (
        "tests/_interpret",
        *(f"tests/test_{name}.py" for name in ("detection", "multidim", "scalar")),
        *(f"tests/e2e/test_{name}.py" for name in ("linalg", "pytree", "multi_input")),
    ),
}


def main(arguments: list[str]) -> int:
    """Runs one peer's suite and returns pytest's exit status."""
    if not arguments or arguments[0] not in SUITES:
        print(f"Which peer? One of: {', '.join(SUITES)}.")
        return 2
    peer, *chosen = arguments
    try:
        folder = source(peer, version(peer))
    except PackageNotFoundError:
        print(f'{peer} is not installed. Run: python -m pip install -e ".[peers]" (make peers).')
        return 2
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "True" if peer == "folx" else "False",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", f"{peer}_adapter"]
    if not any(not argument.startswith("-") for argument in chosen):
        chosen = [*SUITES[peer], *chosen]
    return subprocess.run([*command, *chosen], cwd=folder, env=environment, check=False).returncode


def source(peer: str, release: str) -> Path:
    """The unpacked source distribution, fetched by pip where it is not yet there."""
    folder = CACHE / f"{peer}-{release}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fetch = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(CACHE)]
        subprocess.run([sys.executable, "-m", "pip", *fetch, f"{peer}=={release}"], check=True)
        with tarfile.open(CACHE / f"{peer}-{release}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
