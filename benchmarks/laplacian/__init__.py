"""The suite `laplacian`: second order against folx and against Hessian-vector products.

    python -m benchmarks laplacian          every problem
    python -m benchmarks.laplacian NAME     one of them

folx is timed where it is installed (`pip install -e ".[peers]"`).
"""
