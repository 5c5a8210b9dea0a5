"""Tracing, inlining and the computational graph."""
