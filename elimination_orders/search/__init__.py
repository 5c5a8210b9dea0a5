"""Searches for elimination orders.

Every search is a `Strategy`: an object to be called with a graph, or given to `find_order`.
"""

from elimination_orders.search.annealing import Annealing
from elimination_orders.search.base import Budget, Search, Strategy
from elimination_orders.search.beam import Beam
from elimination_orders.search.fine import EdgeSearch, FaceSearch
from elimination_orders.search.heuristic import Heuristic
from elimination_orders.search.hyper import Auto, HyperPlanner
from elimination_orders.search.optimal import Optimal
from elimination_orders.search.window import WindowDP

__all__ = [
    "Annealing",
    "Auto",
    "Beam",
    "Budget",
    "EdgeSearch",
    "FaceSearch",
    "Heuristic",
    "HyperPlanner",
    "Optimal",
    "Search",
    "Strategy",
    "WindowDP",
]
