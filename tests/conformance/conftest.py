"""The suites here read other people's packages: they are collected only where asked for."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the test files alone unless `-m` selects conformance: `make test` has none of them.

    Importing sif2jax takes half a minute, and a default environment does not have it.
    """
    wanted = "conformance" in config.option.markexpr.replace("not conformance", "")
    return None if wanted or not collection_path.name.startswith("test_") else True
