"""Which module may import which, checked on the source text (nothing is imported here).

docs/architecture.md states the same table in words; change both together.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Layer of graphax_lapl -> the other layers of graphax_lapl that it may import. A layer is a folder
# or a module directly under the package; `__init__` is the package's own front door.
# Every layer may import `elimination_orders` except those in NO_PLANNER.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "plotting": set(),
    "coloring": {"errors"},
    "edges": {"errors"},
    "graph": {"errors", "plotting", "edges"},
    "rules": {"errors", "edges", "graph"},
    "program": {"errors", "edges", "rules", "graph"},
    "emit": {"errors", "coloring", "edges", "rules", "program"},
    "api": {"errors", "plotting", "coloring", "edges", "rules", "graph", "program", "emit"},
    "__init__": {"errors", "coloring", "edges", "rules", "graph", "program", "emit", "api"},
}
NO_PLANNER = {"errors", "plotting", "coloring", "edges", "rules", "graph", "program", "emit"}

# Private JAX, by prefix. `jax.extend.core` is the public door to the same things.
PRIVATE_JAX = ("jax._src", "jax.core", "jax.interpreters")
PLANNER_MAY_NOT = ("jax", "jaxlib", "graphax_lapl")


def module_name(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(
    tree: ast.AST, module: str, *, is_package: bool, module_level: bool = False
) -> Iterator[tuple[str, int]]:
    """Yields (absolute dotted name, line) of everything that is imported.

    `from a import b` yields `a.b`, since b may be a module; a caller who knows the modules cuts it.
    With module_level, imports inside functions and under `if TYPE_CHECKING` are left out: they run
    after, or not at all, when the module is loaded.
    """
    for node in _walk(tree, into_functions=not module_level):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def _walk(tree: ast.AST, *, into_functions: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not into_functions and (is_function or is_typing):
            continue
        yield child
        yield from _walk(child, into_functions=into_functions)


def attribute_chains(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields (dotted name, line) of every `a.b.c` that starts at a plain name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts, inner = [], node
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield ".".join([inner.id, *reversed(parts)]), node.lineno


def starts_with(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imports_of(
    path: Path, *, module_level: bool = False, root: Path = ROOT
) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return list(
        imported(
            tree,
            module_name(path, root),
            is_package=path.name == "__init__.py",
            module_level=module_level,
        )
    )


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def planner_violations(root: Path = ROOT) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line} imports {name}"
        for path in sorted((root / "elimination_orders").rglob("*.py"))
        for name, line in imports_of(path, root=root)
        if starts_with(name, PLANNER_MAY_NOT)
    ]


def private_jax_violations(root: Path = ROOT) -> list[str]:
    found = []
    for path in sorted((root / "graphax_lapl").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        names = {*imports_of(path, root=root), *attribute_chains(tree)}
        found += [
            f"{path.relative_to(root)}:{line} uses {name}"
            for name, line in sorted(names, key=lambda item: item[1])
            if starts_with(name, PRIVATE_JAX)
        ]
    return found


def layer_violations(root: Path = ROOT) -> list[str]:
    found = []
    for path in sorted((root / "graphax_lapl").rglob("*.py")):
        layer = layer_of(module_name(path, root))
        allowed = LAYERS.get(layer)
        if allowed is None:
            found.append(f"{path.relative_to(root)}: layer {layer!r} is not in LAYERS")
            continue
        for name, line in imports_of(path, root=root):
            if starts_with(name, ("elimination_orders",)) and layer in NO_PLANNER:
                found.append(f"{path.relative_to(root)}:{line} imports {name}")
            if not starts_with(name, ("graphax_lapl",)):
                continue
            # `import graphax_lapl` and `from graphax_lapl import jacve` go through the front door.
            target = layer_of(name) if layer_of(name) in LAYERS else "__init__"
            if target != layer and target not in allowed:
                found.append(
                    f"{path.relative_to(root)}:{line} imports {name}, but {target} is above {layer}"
                )
    return found


def import_cycles(package: str, root: Path = ROOT) -> list[list[str]]:
    """Groups of modules that import one another while they are being loaded."""
    paths = sorted((root / package).rglob("*.py"))
    modules = {module_name(path, root) for path in paths}
    graph: nx.DiGraph = nx.DiGraph()
    for path in paths:
        module = module_name(path, root)
        for name, _ in imports_of(path, module_level=True, root=root):
            target = name
            while target and target not in modules:
                target = target.rpartition(".")[0]
            # A submodule's own package is loaded before it; that is no cycle of our making.
            if target and target != module and not module.startswith(target + "."):
                graph.add_edge(module, target)
    return [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]


def test_planner_knows_neither_jax_nor_the_compiler():
    assert planner_violations() == []


@pytest.mark.slow
def test_only_public_jax():
    assert private_jax_violations() == []


@pytest.mark.slow
def test_layers_import_downwards_only():
    assert layer_violations() == []


@pytest.mark.parametrize("package", ["graphax_lapl", "elimination_orders"])
def test_no_import_cycles(package):
    assert import_cycles(package) == []


def test_layer_table_is_itself_acyclic():
    edges = [(layer, below) for layer, allowed in LAYERS.items() for below in allowed]
    assert nx.is_directed_acyclic_graph(nx.DiGraph(edges))
    assert {below for _, below in edges} <= set(LAYERS)


# The checker itself, on a small tree with one violation of every kind.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "elimination_orders/__init__.py": "from .cost import cost\n",
        "elimination_orders/cost.py": "def cost():\n    import jax.numpy as jnp\n    return jnp\n",
        "graphax_lapl/__init__.py": "from graphax_lapl.api import jacve\n",
        "graphax_lapl/api/__init__.py": "from ..graph.trace import trace\njacve = trace\n",
        "graphax_lapl/graph/__init__.py": "",
        "graphax_lapl/graph/trace.py": "from ..api import jacve\nfrom . import dce\n",
        "graphax_lapl/graph/dce.py": (
            "import jax\n"
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from .trace import trace\n"
            "def f(x):\n    from .trace import trace\n    return jax.core.Tracer\n"
        ),
        "graphax_lapl/extra.py": "from jax._src import core\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_checker_finds_jax_in_the_planner_inside_a_function(tree):
    assert planner_violations(tree) == ["elimination_orders/cost.py:2 imports jax.numpy"]


def test_checker_finds_private_jax_imported_and_by_attribute(tree):
    found = private_jax_violations(tree)
    assert "graphax_lapl/extra.py:1 uses jax._src.core" in found
    assert "graphax_lapl/graph/dce.py:7 uses jax.core.Tracer" in found


def test_checker_finds_upward_imports_and_unknown_layers(tree):
    found = layer_violations(tree)
    assert "graphax_lapl/extra.py: layer 'extra' is not in LAYERS" in found
    assert (
        "graphax_lapl/graph/trace.py:1 imports graphax_lapl.api.jacve, but api is above graph"
        in found
    )


def test_checker_finds_module_level_cycles_only(tree):
    # dce imports trace only inside a function and for types: that closes no cycle.
    assert import_cycles("graphax_lapl", tree) == [["graphax_lapl.api", "graphax_lapl.graph.trace"]]
