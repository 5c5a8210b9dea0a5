"""Importing the package imports little; what it offers is found when it is asked for."""

import subprocess
import sys

import pytest

import graphax_lapl


def test_everything_offered_is_found() -> None:
    assert set(graphax_lapl.__all__) <= set(dir(graphax_lapl))
    for name in graphax_lapl.__all__:
        value = getattr(graphax_lapl, name)
        assert getattr(value, "__name__", name) == name
        assert graphax_lapl.__dict__[name] is value


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match=r"graphax_lapl.*jacobian"):
        graphax_lapl.jacobian  # noqa: B018


@pytest.mark.slow
def test_import_alone_loads_no_planner() -> None:
    code = (
        "import sys, graphax_lapl;"
        "assert not {'elimination_orders', 'networkx', 'jax'} & {*sys.modules}, 'loaded';"
        "from graphax_lapl import jacve, laplacian_ve;"
        "assert 'networkx' not in sys.modules;"
        "print(jacve.__module__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "graphax_lapl.api.jacobian"
