"""Orders in which to eliminate the vertices of a graph of partial derivatives.

The package knows nothing of JAX or of arrays: a graph and, if it is not scalar, an algebra of its
edges go in; an order and its cost come out::

    from elimination_orders import EliminationGraph, find_order

    graph = EliminationGraph(["x"], ["y"], [("x", "a"), ("a", "b"), ("a", "y"), ("b", "y")])
    find_order(graph, "auto").order
"""

import lazy_loader

# What there is, and where, is in the stub beside this file. A module is imported when something of
# it is first asked for: a rule of thumb needs no searches, and those take a while to import.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
