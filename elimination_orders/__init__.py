"""Orders in which to eliminate the vertices of a graph of partial derivatives.

The package knows nothing of JAX or of arrays: a graph and, if it is not scalar, an algebra of its
edges go in; an order and its cost come out::

    from elimination_orders import EliminationGraph, find_order

    graph = EliminationGraph(["x"], ["y"], [("x", "a"), ("a", "b"), ("a", "y"), ("b", "y")])
    find_order(graph, "auto").order
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elimination_orders.algebra import (
        EDGE_KINDS,
        EdgeAlgebra,
        LiteratureAlgebra,
        UnitAwareAlgebra,
    )
    from elimination_orders.beyond import (
        EdgeStep,
        FaceStep,
        FineResult,
        replay_edges,
        replay_faces,
    )
    from elimination_orders.cache import PlanCache, StoredText
    from elimination_orders.chain import (
        ChainResult,
        ChainStage,
        ChainStep,
        chain_of,
        find_chain_order,
    )
    from elimination_orders.cost import elimination_cost, elimination_trace
    from elimination_orders.errors import (
        InvalidGraphError,
        InvalidObjectiveError,
        InvalidOrderError,
        PlannerError,
    )
    from elimination_orders.exact import find_edge_order, find_face_order
    from elimination_orders.graph import EliminationGraph
    from elimination_orders.heuristics import HEURISTICS, heuristic_order
    from elimination_orders.native import cache_folder
    from elimination_orders.objectives import OBJECTIVES, Objective
    from elimination_orders.portfolio import ORDERS, find_order
    from elimination_orders.program import Program, ProgramStep, edge_program, face_program
    from elimination_orders.result import OrderResult
    from elimination_orders.search import (
        Annealing,
        Auto,
        Beam,
        EdgeSearch,
        FaceSearch,
        Heuristic,
        HyperPlanner,
        Optimal,
        Strategy,
        WindowDP,
    )
    from elimination_orders.state import EliminationState, EliminationStep, Update

__all__ = [
    "EDGE_KINDS",
    "HEURISTICS",
    "OBJECTIVES",
    "ORDERS",
    "Annealing",
    "Auto",
    "Beam",
    "ChainResult",
    "ChainStage",
    "ChainStep",
    "EdgeAlgebra",
    "EdgeSearch",
    "EdgeStep",
    "EliminationGraph",
    "EliminationState",
    "EliminationStep",
    "FaceSearch",
    "FaceStep",
    "FineResult",
    "Heuristic",
    "HyperPlanner",
    "InvalidGraphError",
    "InvalidObjectiveError",
    "InvalidOrderError",
    "LiteratureAlgebra",
    "Objective",
    "Optimal",
    "OrderResult",
    "PlanCache",
    "PlannerError",
    "Program",
    "ProgramStep",
    "StoredText",
    "Strategy",
    "UnitAwareAlgebra",
    "Update",
    "WindowDP",
    "cache_folder",
    "chain_of",
    "edge_program",
    "elimination_cost",
    "elimination_trace",
    "face_program",
    "find_chain_order",
    "find_edge_order",
    "find_face_order",
    "find_order",
    "heuristic_order",
    "replay_edges",
    "replay_faces",
]

#: Where all this is. A module is imported when something of it is first asked for: a rule of thumb
#: needs no searches, and those take a while to import.
_HOMES = {
    "algebra": (
        "EDGE_KINDS",
        "EdgeAlgebra",
        "LiteratureAlgebra",
        "UnitAwareAlgebra",
    ),
    "beyond": (
        "EdgeStep",
        "FaceStep",
        "FineResult",
        "replay_edges",
        "replay_faces",
    ),
    "cache": (
        "PlanCache",
        "StoredText",
    ),
    "chain": (
        "ChainResult",
        "ChainStage",
        "ChainStep",
        "chain_of",
        "find_chain_order",
    ),
    "cost": (
        "elimination_cost",
        "elimination_trace",
    ),
    "errors": (
        "InvalidGraphError",
        "InvalidObjectiveError",
        "InvalidOrderError",
        "PlannerError",
    ),
    "exact": (
        "find_edge_order",
        "find_face_order",
    ),
    "graph": ("EliminationGraph",),
    "heuristics": (
        "HEURISTICS",
        "heuristic_order",
    ),
    "native": ("cache_folder",),
    "objectives": (
        "OBJECTIVES",
        "Objective",
    ),
    "portfolio": (
        "ORDERS",
        "find_order",
    ),
    "program": (
        "Program",
        "ProgramStep",
        "edge_program",
        "face_program",
    ),
    "result": ("OrderResult",),
    "search": (
        "Annealing",
        "Auto",
        "Beam",
        "EdgeSearch",
        "FaceSearch",
        "Heuristic",
        "HyperPlanner",
        "Optimal",
        "Strategy",
        "WindowDP",
    ),
    "state": (
        "EliminationState",
        "EliminationStep",
        "Update",
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
