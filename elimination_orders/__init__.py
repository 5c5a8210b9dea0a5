"""Orders in which to eliminate the vertices of a graph of partial derivatives.

The package knows nothing of JAX or of arrays: a graph and, if it is not scalar, an algebra of its
edges go in; an order and its cost come out::

    from elimination_orders import EliminationGraph, find_order

    graph = EliminationGraph(["x"], ["y"], [("x", "a"), ("a", "b"), ("a", "y"), ("b", "y")])
    find_order(graph, "auto").order
"""

from elimination_orders.algebra import EDGE_KINDS, EdgeAlgebra, LiteratureAlgebra, UnitAwareAlgebra
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
from elimination_orders.heuristics import HEURISTICS
from elimination_orders.native import cache_folder
from elimination_orders.objectives import OBJECTIVES, Objective
from elimination_orders.portfolio import ORDERS, find_order, heuristic_order
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
