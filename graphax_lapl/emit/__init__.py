"""Emission: programs as JAX functions."""
