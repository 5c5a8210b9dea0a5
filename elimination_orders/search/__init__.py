"""Searches for elimination orders."""
