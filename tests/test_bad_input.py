"""Bad input gets an exception that names the argument, what was expected, what came, what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from elimination_orders import find_edge_order
from graphax_lapl import (
    GraphaxLaplError,
    Hutchinson,
    InvalidArgumentError,
    InvalidOrderError,
    InvalidTypeError,
    MutableArrayError,
    NotDifferentiableError,
    Plan,
    PlanMismatchError,
    compare_orders,
    computational_graph,
    count_ops,
    divergence_ve,
    elimination_graph,
    hessian_diagonal,
    hessian_vector_product,
    hessve,
    jacve,
    laplacian_ve,
    make_plan,
    second_order_operator,
    value_and_jacve,
)
from tests.checks import assert_same, eliminable

pytestmark = pytest.mark.smoke

X = np.array([0.4, -0.3, 0.9])


def fun(x: jax.Array) -> jax.Array:
    a = jnp.sin(x)
    b = a * x
    return jnp.exp(b) + jnp.cos(b * a)


def pair(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sin(x) * y


# ---------------------------------------------------------------- order=

ENTRIES: dict[str, Callable[[Any], Any]] = {
    "jacve": lambda order: jacve(fun, order=order)(X),
    "value_and_jacve": lambda order: value_and_jacve(fun, order=order)(X),
    "count_ops": lambda order: count_ops(fun, X, order=order),
    "make_plan": lambda order: make_plan(fun, X, order=order),
    "compare_orders": lambda order: compare_orders(fun, X, orders=(order,)),
}

at_every_entry = pytest.mark.parametrize("entry", ENTRIES)


@at_every_entry
def test_unknown_order_name(entry: str) -> None:
    with pytest.raises(InvalidOrderError, match="fastest") as caught:
        ENTRIES[entry]("fastest")
    for valid in ("forward", "reverse", "markowitz", "auto"):
        assert valid in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("forwrad", "forward"), ("Markovitz", "markowitz"), ("compresed", "compressed")],
)
@at_every_entry
def test_closest_order_name(entry: str, name: str, meant: str) -> None:
    """The list of all names is long."""
    with pytest.raises(InvalidOrderError, match=rf"{name}'\. Did you mean '{meant}'\?"):
        ENTRIES[entry](name)


@pytest.mark.parametrize("name", ["", "Forward ", "rev erse"])
def test_misspelt_order_name(name: str) -> None:
    with pytest.raises(InvalidOrderError, match="reverse"):
        jacve(fun, order=name)(X)


@at_every_entry
def test_missing_vertex(entry: str) -> None:
    vertices = eliminable(fun, X)
    with pytest.raises(InvalidOrderError, match=rf"(?i)missing.*\b{vertices[1]}\b"):
        ENTRIES[entry]([v for v in vertices if v != vertices[1]])


@at_every_entry
def test_repeated_vertex(entry: str) -> None:
    vertices = eliminable(fun, X)
    with pytest.raises(
        InvalidOrderError, match=rf"(?i)(repeat|twice|more than once).*\b{vertices[0]}\b"
    ):
        ENTRIES[entry]([*vertices, vertices[0]])


@at_every_entry
def test_unknown_vertex(entry: str) -> None:
    with pytest.raises(InvalidOrderError, match=r"(?i)(unknown|not ).*\b77\b"):
        ENTRIES[entry]([*eliminable(fun, X), 77])


@pytest.mark.parametrize("order", [[], [0], [1.5], ["a"], [None], [(1, 2)]], ids=str)
def test_sequence_of_something_else(order: list) -> None:
    with pytest.raises((InvalidOrderError, InvalidTypeError), match="order"):
        jacve(fun, order=order)(X)


@pytest.mark.parametrize(
    "order", [3, 1.5, object(), {"a": 1}, b"forward"], ids=lambda o: type(o).__name__
)
def test_order_of_a_wrong_type(order: Any) -> None:
    with pytest.raises(GraphaxLaplError, match="order"):
        jacve(fun, order=order)(X)


def test_positional_argnums_are_told_from_an_order() -> None:
    """`jax.jacrev(fun, 0)`, with the name replaced."""
    with pytest.raises(InvalidTypeError, match="argnums=0"):
        jacve(pair, 0)(X, X)
    with pytest.raises(InvalidOrderError, match="argnums"):
        jacve(pair, (0, 1))(X, X)


def test_order_for_a_function_without_intermediates() -> None:
    """The only permutation of no vertices is the empty one."""
    assert_same(jacve(lambda x: x * 2.0, order=[])(X), np.diag([2.0, 2.0, 2.0]))
    with pytest.raises(InvalidOrderError, match="1"):
        jacve(lambda x: x * 2.0, order=[1])(X)


def test_numpy_integers_are_vertices() -> None:
    vertices = np.array(eliminable(fun, X))
    assert_same(jacve(fun, order=vertices[::-1])(X), jax.jit(jax.jacfwd(fun))(X))


# ---------------------------------------------------------------- orders made for another graph


OTHER_GRAPHS: dict[str, tuple[Callable[[jax.Array], jax.Array], Any]] = {
    "other shape": (fun, np.ones(4)),
    "other rank": (fun, np.ones((3, 1))),
    "other dtype": (fun, X.astype(np.float32)),
    "other operations": (lambda x: jnp.exp(jnp.cos(x) * x) + jnp.sin(jnp.cos(x) * x * x), X),
    "one vertex more": (lambda x: fun(jnp.tanh(x)), X),
}


@pytest.mark.parametrize("name", OTHER_GRAPHS)
@pytest.mark.parametrize("kind", ["plan", "order"])
def test_order_of_another_graph_is_refused(kind: str, name: str) -> None:
    plan = make_plan(fun, X, order="markowitz")
    order = plan if kind == "plan" else plan.order
    other, argument = OTHER_GRAPHS[name]
    with pytest.raises(PlanMismatchError, match=r"(?i)(fingerprint|another|different|other)"):
        jacve(other, order=order)(argument)
    with pytest.raises(PlanMismatchError):
        count_ops(other, argument, order=order)


def test_order_for_other_argnums_is_refused() -> None:
    def both(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sin(x * y) + jnp.exp(y)

    plan = make_plan(both, X, X, order="reverse", argnums=(0, 1))
    with pytest.raises(PlanMismatchError):
        jacve(both, order=plan, argnums=0)(X, X)


@pytest.mark.parametrize("name", ["forward", "reverse", "markowitz", "auto"])
def test_order_objects_fit_the_graph_they_were_made_for(name: str) -> None:
    plan = make_plan(fun, X, order=name)
    expected = jax.jit(jax.jacfwd(fun))(X)
    assert_same(jacve(fun, order=plan)(X + 0.0), expected)
    assert_same(jacve(fun, order=plan.order)(X), expected)
    assert_same(plan.compile()(X), expected)
    assert sorted(plan.order) == eliminable(fun, X)


def test_saved_plan(tmp_path: Path) -> None:
    plan = make_plan(fun, X, order="markowitz")
    file = tmp_path / "plan.json"
    plan.save(file)
    loaded = Plan.load(file)
    assert loaded.fingerprint == plan.fingerprint
    assert tuple(loaded.order) == tuple(plan.order)
    assert_same(jacve(fun, order=loaded)(X), jax.jit(jax.jacfwd(fun))(X))
    with pytest.raises(PlanMismatchError):
        jacve(fun, order=loaded)(np.ones(4))


def test_file_that_is_no_plan(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    with pytest.raises(GraphaxLaplError, match=r"other\.json"):
        Plan.load(file)


# ---------------------------------------------------------------- argnums=


@pytest.mark.parametrize("argnums", [2, -3, (0, 2), (0, -3)], ids=str)
def test_argnums_out_of_range(argnums: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="argnums") as caught:
        jacve(pair, argnums=argnums)(X, X)
    assert "2" in str(caught.value)


@pytest.mark.parametrize("argnums", [(0, 0), (0, -2)], ids=str)
def test_argnums_repeated(argnums: Any) -> None:
    """Two names for one argument: JAX's answer, or a refusal, but nothing in between."""
    try:
        result = jacve(pair, argnums=argnums)(X, X)
    except InvalidArgumentError as error:
        assert "argnums" in str(error)  # noqa: PT017 - one of two right behaviours
    else:
        assert_same(result, (jax.jit(jax.jacfwd(pair))(X, X),) * 2)


@pytest.mark.parametrize("argnums", [1.0, "x", None, (0, "y"), np.array([0, 1])], ids=str)
def test_argnums_of_a_wrong_type(argnums: Any) -> None:
    with pytest.raises(InvalidTypeError, match="argnums"):
        jacve(pair, argnums=argnums)(X, X)


def test_argnums_without_arguments() -> None:
    """`make_plan` takes the arguments beside the function; there is no range to name."""
    for call in (lambda: make_plan(pair)(X, X), lambda: jacve(pair)()):
        with pytest.raises(
            InvalidArgumentError, match=r"without positional .* make_plan"
        ) as caught:
            call()
        assert "-1" not in str(caught.value)


def test_argnums_of_a_keyword_argument() -> None:
    """Only positional arguments are counted, as in JAX."""
    with pytest.raises(InvalidArgumentError, match="argnums"):
        jacve(pair, argnums=1)(X, y=X)


# ---------------------------------------------------------------- arguments and outputs


@pytest.mark.parametrize(
    ("argument", "dtype"),
    [
        (np.array([1, 2, 3]), "int64"),
        (3, "int"),
        (np.array([True, False]), "bool"),
        (np.array([1, 2], np.uint8), "uint8"),
    ],
    ids=["int64", "python int", "bool", "uint8"],
)
def test_integer_input(argument: Any, dtype: str) -> None:
    with pytest.raises(InvalidTypeError, match=dtype):
        jacve(lambda x: x * 2)(argument)


def test_integer_leaf_names_its_place() -> None:
    with pytest.raises(InvalidTypeError, match="count"):
        jacve(lambda p: p["x"] * 2.0)({"x": X, "count": np.array(3)})


@pytest.mark.parametrize("argument", ["text", object(), b"bytes"], ids=["str", "object", "bytes"])
def test_input_that_is_no_array(argument: Any) -> None:
    with pytest.raises(InvalidTypeError, match=type(argument).__name__):
        jacve(lambda x: jnp.ones(2))(argument)


@pytest.mark.parametrize("output", ["text", object(), {"a": "text"}], ids=["str", "object", "leaf"])
def test_output_that_is_no_array(output: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"(?i)output|return"):
        jacve(lambda x: output)(X)


def test_integer_output() -> None:
    """As jax.jacrev: the derivative of an integer is not defined, and it says so."""
    with pytest.raises(InvalidTypeError, match="int"):
        jacve(lambda x: (x * 3).astype(int))(X)


@pytest.mark.parametrize("argument", [(), {}, None, [[], {}]], ids=str)
def test_argument_without_arrays(argument: Any) -> None:
    with pytest.raises(GraphaxLaplError, match=r"(?i)argnums|array|leaf|leaves|input"):
        jacve(lambda p: jnp.ones(3))(argument)


def test_function_without_arguments() -> None:
    with pytest.raises(GraphaxLaplError, match=r"(?i)argument|argnums"):
        jacve(lambda: jnp.ones(3))()


@pytest.mark.parametrize("not_a_function", [3, "sin", None, X], ids=["int", "str", "none", "array"])
def test_function_that_is_not_callable(not_a_function: Any) -> None:
    with pytest.raises(InvalidTypeError, match="fun"):
        jacve(not_a_function)(X)


def test_has_aux_without_a_pair() -> None:
    with pytest.raises(InvalidTypeError, match=r"has_aux.*one array of shape \(3,\)"):
        jacve(fun, has_aux=True)(X)
    with pytest.raises(InvalidTypeError, match=r"has_aux.*tuple of 3"):
        jacve(lambda x: (x, x, x), has_aux=True)(X)


def test_auxiliary_value_of_words() -> None:
    aux = jacve(lambda x: (x * 2.0, np.array(["a", "b"])), has_aux=True)(X)[1]
    assert aux.tolist() == ["a", "b"]


def test_error_of_the_function_itself_passes_through() -> None:
    with pytest.raises(ZeroDivisionError, match="mine"):
        jacve(_raises)(X)


def _raises(x: jax.Array) -> jax.Array:
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize("convention", ["AD", "macs", None], ids=str)
def test_unknown_convention(convention: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="convention") as caught:
        count_ops(fun, X, convention=convention)
    assert "flops" in str(caught.value)


def test_unknown_kind_of_plan() -> None:
    with pytest.raises(InvalidArgumentError, match="kind") as caught:
        make_plan(fun, X, kind="tensor")
    assert "jacobian" in str(caught.value)


def test_missing_argument_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="y"):
        jacve(pair)(X)


def test_exceptions_are_of_one_family() -> None:
    for error in (InvalidArgumentError, InvalidTypeError, InvalidOrderError, PlanMismatchError):
        assert issubclass(error, GraphaxLaplError)
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(InvalidOrderError, ValueError)
    assert issubclass(InvalidTypeError, TypeError)


@pytest.mark.parametrize(
    "call",
    [
        lambda: computational_graph(pair, X, X, argnums=5),
        lambda: count_ops(pair, X, X, argnums=5),
        lambda: make_plan(pair, X, X, argnums=5),
        lambda: compare_orders(pair, X, X, argnums=5),
        lambda: value_and_jacve(pair, argnums=5)(X, X),
    ],
    ids=["computational_graph", "count_ops", "make_plan", "compare_orders", "value_and_jacve"],
)
def test_argnums_checked_at_every_entry(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="argnums"):
        call()


def test_function_applied_at_indices_has_no_derivative_in_jax() -> None:
    with pytest.raises(NotDifferentiableError, match=r"scatter.*test_bad_input.py.*custom_jvp"):
        jacve(lambda x: x.at[jnp.array([0, 2])].apply(jnp.sin))(jnp.ones(3))


@pytest.mark.parametrize("derivative", [jacve, hessve, laplacian_ve])
def test_mutable_array_that_holds_moving_values(derivative: Any) -> None:
    """Nothing leads from what is written to what is read: the derivative was zero."""

    def written(x: jax.Array) -> jax.Array:
        kept = jax.new_ref(jnp.zeros(3))
        kept[1] = jnp.sum(jnp.sin(x))
        return kept[...] * 2.0

    def in_a_loop(x: jax.Array) -> jax.Array:
        kept = jax.new_ref(jnp.zeros(()))

        def add(i: jax.Array, nothing: None) -> None:
            kept[...] = kept[...] + x[i] ** 2

        jax.lax.fori_loop(0, 3, add, None)
        return kept[...]

    for function in (written, in_a_loop):
        with pytest.raises(MutableArrayError, match=r"test_bad_input.py.*jax\.jacfwd"):
            derivative(function)(X)
    found = jacve(lambda x: x * jax.new_ref(jnp.arange(3.0))[...])(X)
    assert_same(found, jnp.diag(jnp.arange(3.0)))


@jax.custom_jvp
def wrong_inside(x: jax.Array) -> jax.Array:
    return 2.0 * x


@wrong_inside.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,) = primals
    return wrong_inside(x), jacve(fun, argnums=3)(x) * tangents[0]


def repeated_inside(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda c, _: (wrong_inside(c), None), x, length=12)[0]


@pytest.mark.parametrize("derivative", [jacve, hessve, laplacian_ve])
@pytest.mark.parametrize("function", [wrong_inside, repeated_inside])
def test_error_of_a_derivative_inside_a_rule_passes_through(function: Any, derivative: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="argnums=3"):
        derivative(function)(X)


def test_vertices_of_an_operator_of_second_order() -> None:
    """Functions with rules of their own may have more of them there; the message says where."""

    def energy(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sinc(x + 2.0) ** 2)

    vertices = eliminable(energy, X, kind="laplacian")
    laplacian_ve(energy, order=vertices)(X)
    with pytest.raises(InvalidOrderError, match=r"missing.*kind='laplacian'"):
        laplacian_ve(energy, order=vertices[:-1])(X)
    with pytest.raises(InvalidArgumentError, match="kind"):
        computational_graph(energy, X, kind="gradient")


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_values_of_what_is_not_differentiated(kind: Any) -> None:
    """Concrete arrays beside the differentiated ones may decide shapes and loops, as in JAX."""

    def picked(x: jax.Array, mask: Any, steps: Any) -> jax.Array:
        x = x[mask]
        for _ in range(int(steps)):
            x = x * jnp.sin(x)
        return x

    side = kind([True, False, True]), kind(2)
    assert_same(jacve(picked)(X, *side), jax.jacfwd(picked)(X, *side))


def by_sum(x: jax.Array, y: jax.Array) -> jax.Array:
    return x if y.sum() > 0 else x * x


def by_table(x: jax.Array, y: jax.Array) -> jax.Array:
    """What libraries check before they interpolate, or count before they look up."""
    knots = jnp.linspace(0.0, 1.0, 3) ** 2
    if not jnp.all(jnp.diff(knots) > 0):
        raise ValueError("knots are not sorted")
    steps = int(jnp.argmax(knots))
    return jax.lax.fori_loop(0, steps, lambda _, c: jnp.sin(c) * y[0], x)[np.asarray(jnp.arange(2))]


def by_type(x: jax.Array, y: jax.Array) -> jax.Array:
    """Looks at values in a nested program, at those of kinds of particles."""

    def energy(x: jax.Array, kinds: jax.Array) -> jax.Array:
        widths = [1.0 + float(kind) for kind in np.asarray(kinds)]
        return jnp.exp(-jnp.array(widths) * x)

    kinds = jnp.array([0, 1, 1])
    return jax.jit(lambda x: energy(x, kinds))(x) * y.sum()


@pytest.mark.every_case
@pytest.mark.parametrize("fun", [by_sum, by_table, by_type])
@pytest.mark.parametrize("outside", ["plain", "jit", "vmap", "grad"])
def test_values_that_jax_knows(fun: Any, outside: str) -> None:
    """What does not depend on differentiated arguments has values, as in JAX's derivatives."""
    y = jnp.ones(2)
    jacobian, expected = jacve(fun), jax.jacfwd(fun)
    if outside == "jit":
        found = jax.jit(lambda x: jacobian(x, y))(X)
    elif outside == "vmap":
        found = jax.vmap(lambda x: jacobian(x, y))(X[None])[0]
    elif outside == "grad":
        found = jax.grad(lambda x: jnp.sum(jacobian(x, y) ** 2))(X)
    else:
        found = jacobian(X, y)
    if outside == "grad":
        assert_same(found, jax.grad(lambda x: jnp.sum(expected(x, y) ** 2))(X))
    else:
        assert_same(found, expected(X, y))


@pytest.mark.parametrize("outside", [lambda f: f, jax.jit])
def test_values_that_are_not_there(outside: Any) -> None:
    """An argument that `jax.jit` traces has none, and neither has a differentiated one."""
    argnums = 1 if outside is not jax.jit else 0
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        outside(jacve(by_sum, argnums=argnums))(X, jnp.ones(2))
    assert "has no value while Python runs" in " ".join(caught.value.__notes__)


#: Operators whose programs follow an order of vertices.
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "divergence": lambda order: divergence_ve(fun, order=order),
    "laplacian": lambda order: laplacian_ve(fun, order=order),
    "hessian": lambda order: hessve(fun, order=order),
    "diagonal": lambda order: hessian_diagonal(fun, order=order),
    "operator": lambda order: second_order_operator(fun, b=1.0, order=order),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_eliminations_of_edges_are_about_jacobians(operator: str) -> None:
    """They name no vertices: the divergence was the trace of the direct arrows alone."""
    found = find_edge_order(elimination_graph(computational_graph(fun, X)))
    for order in ("edges", "faces", found):
        with pytest.raises(InvalidOrderError, match="order of vertices"):
            OPERATORS[operator](order)(X)


def test_order_that_is_a_matrix() -> None:
    with pytest.raises(InvalidTypeError, match="order"):
        jacve(fun, order=np.array([[1, 2]]))(X)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hessian_vector_product(fun)(X, 1j * X),
        lambda: hessian_vector_product(fun)(X, np.array(["a", "b", "c"])),
        lambda: second_order_operator(fun, a=np.array(["a", "b", "c"]))(X),
        lambda: second_order_operator(fun, b=1.0, c="a")(X),
        lambda: laplacian_ve(fun, seeds={"a": 1.0})(X),
        lambda: divergence_ve(fun, stochastic=Hutchinson(2))(X, key=3),
    ],
    ids=["complex vector", "vector of words", "a of words", "c of words", "seeds", "key"],
)
def test_coefficients_that_are_something_else(call: Callable[[], Any]) -> None:
    """A complex vector lost its imaginary part."""
    with pytest.raises(GraphaxLaplError, match=r"vector|must"):
        call()


@pytest.mark.parametrize("given", [(), (X,)])
def test_product_with_the_hessian_of_no_vector(given: tuple[Any, ...]) -> None:
    """The only argument was taken as the vector, and said to be missing."""
    with pytest.raises(InvalidArgumentError, match=rf"fun .*vector.*got {len(given)} positional"):
        hessian_vector_product(fun)(*given)


def test_vector_of_another_shape() -> None:
    with pytest.raises(InvalidArgumentError, match=r"arguments, shapes \[\(3,\)\]; got shapes"):
        hessian_vector_product(fun)(X, np.ones(4))


def test_each_expected_shape_is_named_once() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected shape \(\) or \(3,\) or \(3, 3\)\."):
        second_order_operator(fun, np.ones((2, 2)))(X)


def test_advice_fits_what_came() -> None:
    """A random key cannot be converted to numbers; functions are kept apart from arrays."""
    with pytest.raises(InvalidTypeError, match=r"only\. Convert it .* or leave it out of argnums"):
        jacve(lambda x: x * 1.0)(np.arange(3))
    with pytest.raises(InvalidTypeError, match=r"dtype key.*only\. Leave it out of argnums"):
        jacve(lambda key: jax.random.normal(key))(jax.random.key(0))
    with pytest.raises(InvalidTypeError, match=r"\['act'\].*the arrays alone.*inside the function"):
        jacve(lambda p: p["act"](p["w"]))({"w": X, "act": jnp.sin})
