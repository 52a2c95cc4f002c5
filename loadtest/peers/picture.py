"""The peers as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

OURS, OTHERS, YARDSTICK = "#c2410c", "#64748b", "#cbd5e1"


def _colour(name: str) -> str:
    return OURS if name == "fairq" else YARDSTICK if name.startswith("raw") else OTHERS


def draw(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw drained and flow per system, as parts of raw Redis."""
    if not part["rows"]:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = sorted(part["rows"], key=lambda row: row["drained_of_raw"])
    names = [row["name"] for row in rows]
    figure, axes = pyplot.subplots(1, 2, sharey=True, figsize=(8, 1.1 + 0.32 * len(rows)), dpi=100)
    for axis, figure_name in zip(axes, ("drained", "flow"), strict=True):
        ratios = [row[f"{figure_name}_of_raw"] for row in rows]
        blocks = axis.barh(names, ratios, color=[_colour(name) for name in names])
        axis.bar_label(
            blocks,
            [f"{ratio:.3f}  ({row[figure_name]:,}/s)" for ratio, row in zip(ratios, rows, strict=True)],
            padding=3,
            fontsize=8,
        )
        axis.set_xscale("log")
        axis.set_xlim(max(min(ratios), 0.0005) / 1.6, max(ratios) * 12)
        axis.set_title(f"{figure_name}, of raw pipelined Redis", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    figure.tight_layout()
    path = directory / "peers.png"
    figure.savefig(path)
    pyplot.close(figure)
    return [path]
