"""One look for all pictures. matplotlib is loaded only when one is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES, DPI = (8.0, 4.5), 110


def new_figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """Make a figure with one set of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG; returns the path."""
    figure.savefig(path, dpi=DPI)
    return path
