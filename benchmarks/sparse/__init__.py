"""The suite `sparse`: sparse Jacobians and Hessians against colouring and hand-written code.

    python -m benchmarks sparse          every problem
    python -m benchmarks.sparse NAME     one of them

The peers asdex and sparsejac are timed where they are installed (`pip install -e ".[peers]"`).
"""
