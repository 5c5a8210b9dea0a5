"""Benchmarks: problems from published equations, a paired timer, and the demo."""
