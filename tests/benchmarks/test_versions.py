"""Programs of two versions: how they are named, saved, read and compared. Nothing is timed."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import versions
from benchmarks.problems import PROBLEMS
from benchmarks.versions import all_programs, build, differing, main, read, save

WAVES = """
import jax.numpy as jnp
from frequencies import FREQUENCY


def wave():
    return lambda x, scale: {"value": scale * jnp.sin(FREQUENCY * x)}, (jnp.arange(3.0), 2.0)


def square():
    return lambda x: x * x, (jnp.arange(3.0),)
"""


@pytest.fixture
def waves(tmp_path):
    """Writes a file of two programs, one of which depends on a number beside it."""

    def written(folder, frequency):
        (tmp_path / folder).mkdir()
        # A module's name is imported once in a process; each version has one of its own.
        beside = f"frequencies_{folder}"
        (tmp_path / folder / f"{beside}.py").write_text(f"FREQUENCY = {frequency}\n")
        path = tmp_path / folder / "waves.py"
        path.write_text(WAVES.replace("frequencies", beside))
        return path

    return written


def test_the_named_programs_and_those_beside_them():
    named, more = all_programs(), all_programs("more")
    assert {"jacobian.roe_flux@0", "jacobian.roe_flux@100000"} <= set(named)
    assert {"laplacian.ferminet@value", "laplacian.ferminet@training"} <= set(named)
    assert "jacobian.encoder@100000" not in named  # not one of its batch sizes
    assert {"jacobian.quadrotor@4096", "laplacian.sines@value"} <= set(more)
    assert not set(named) & set(more)


@pytest.mark.parametrize("order", ["", ":reverse"])
@pytest.mark.parametrize("batch", [0, 3])
def test_a_jacobian(batch, order, float32):
    fun, arguments = build(f"jacobian.lighthouse@{batch}{order}")
    expected = jax.jacfwd(PROBLEMS["lighthouse"].fun, (0, 1, 2, 3))
    expected = (jax.vmap(expected) if batch else expected)(*arguments)
    assert arguments[0].dtype == jnp.float32
    jax.tree.map(
        lambda found, there: np.testing.assert_allclose(found, there, rtol=1e-3),
        fun(*arguments),
        expected,
    )


@pytest.mark.parametrize("task", ["value", "training"])
def test_a_laplacian(task, float32):
    fun, (params, xs) = build(f"laplacian.rosenbrock@{task}")
    found = jax.eval_shape(fun, params, xs)
    expected = xs[:, 0] if task == "value" else params
    shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (found, expected)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "name",
    [
        "lighthouse",
        "jacobian.lighthouse",
        "jacobian.lighthouse@many",
        "jacobian.no_such_problem@0",
        "laplacian.rosenbrock@0",
        "sparse.heat@0",
    ],
)
def test_an_unknown_name_says_what_is_expected(name):
    with pytest.raises(ValueError, match=r"unknown program .*; expected jacobian\.NAME@BATCH"):
        build(name)


def test_a_file_or_a_function_that_is_not_there(waves, tmp_path):
    with pytest.raises(ValueError, match=r"absent\.py is no Python file"):
        build(f"{tmp_path / 'absent.py'}@wave")
    with pytest.raises(ValueError, match=r"waves\.py has no function 'other'"):
        build(f"{waves('only', 1.0)}@other")


def test_save_read_and_compare(waves, tmp_path, capsys, monkeypatch):
    before, after, same = tmp_path / "before", tmp_path / "after", tmp_path / "same"
    for folder, results, frequency in (("one", before, 1.0), ("two", after, 3.0), ("x", same, 1.0)):
        # The names of both versions' programs have to be the same: each runs where its file is.
        path = waves(folder, frequency)
        monkeypatch.chdir(path.parent)
        assert main(["save", str(results), "waves.py@wave", "waves.py@square"]) == 0
    one, two = read(before), read(after)
    assert one.keys() == {"waves.py@wave", "waves.py@square"}
    assert differing(one, two) == ["waves.py@wave"]
    assert differing(one, read(same)) == []
    # What was saved runs as it was, on its inputs.
    (wave,) = two["waves.py@wave"].call()()
    np.testing.assert_allclose(wave, 2.0 * np.sin(3.0 * np.arange(3)), rtol=1e-5)
    assert two["waves.py@wave"].temporary_bytes() >= 0
    capsys.readouterr()
    assert main(["compare", str(before), str(after)]) == 0
    assert capsys.readouterr().out == "2 programs in both, 1 differ\n* waves.py@wave\n"


def test_a_digest_does_not_depend_on_lines_of_source(waves, tmp_path):
    path = waves("moved", 1.0)
    digests = []
    for text in (path.read_text(), "\n\n# A comment.\n" + path.read_text()):
        path.write_text(text)
        fun, arguments = build(f"{path}@square")
        digests.append(versions.exported(fun, arguments).digest)
    assert digests[0] == digests[1]


def test_nothing_in_common_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "one"), str(tmp_path / "two")])
    assert "have no program in common" in capsys.readouterr().err


def test_without_flatbuffers_the_message_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install flatbuffers"):
        save(tmp_path / "saved", ["jacobian.lighthouse@0"])
    with pytest.raises(SystemExit):
        main(["save", str(tmp_path / "saved"), "jacobian.lighthouse@0"])
    assert "pip install flatbuffers" in capsys.readouterr().err


def test_programs_of_one_name_are_timed_in_turns(waves, tmp_path, monkeypatch, capsys):
    for folder, frequency in (("one", 1.0), ("two", 3.0)):
        path = waves(folder, frequency)
        monkeypatch.chdir(path.parent)
        save(tmp_path / f"of_{folder}", ["waves.py@wave"])
    capsys.readouterr()
    assert main(["time", *(str(tmp_path / f"of_{f}") for f in ("one", "two")), "--rounds=1"]) == 0
    text = capsys.readouterr().out
    assert "1 programs in both, 1 differ" in text
    assert "* waves.py@wave: after / before " in text
    assert "temporary memory" in text
