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
    _dress(axes, x, y)
    return figure, axes


def new_grid(title: str, count: int, x: str, y: str) -> tuple[Figure, list[Axes]]:
    """Make a figure with many small sets of axes, two in a row; each has a title to be set."""
    from matplotlib.figure import Figure

    rows = -(-count // 2)
    figure = Figure(figsize=(SIZE_INCHES[0], 2.2 * rows + 0.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    grid = [figure.add_subplot(rows, 2, n + 1) for n in range(count)]
    for axes in grid:
        _dress(axes, x, y)
    return figure, grid


def _dress(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG; returns the path."""
    figure.savefig(path, dpi=DPI)
    return path
