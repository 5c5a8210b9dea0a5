"""Matplotlib, imported only where something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure_and_axes"]


def figure_and_axes(ax: Axes | None) -> tuple[Figure, Axes]:
    """The given axes with their figure, or new ones.

    Raises:
        ImportError: without matplotlib (`pip install 'graphax_lapl[plots]'`).
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Plotting needs matplotlib: pip install 'graphax_lapl[plots]'") from error
    figure: Any
    figure, axes = (ax.figure, ax) if ax is not None else plt.subplots()
    return figure, axes
