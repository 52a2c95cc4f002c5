"""`fairq docs`: the guides, which the package brings along."""

from __future__ import annotations

import sys
from pathlib import Path

from fairq.errors import BadRequest
from fairq.model.suggestions import did_you_mean

FOLDER = Path(__file__).parents[1] / "docs"
ORDER = (
    "tutorial", "concepts", "tasks", "workers", "schedules", "django", "fastapi", "celery", "testing", "api",
    "operations", "deploy", "stores", "security", "webhooks", "dashboard", "monitoring", "limits", "incidents",
    "recovery", "backup", "upgrade", "protocol", "comparison", "changelog",
)  # fmt: skip


def guides() -> dict[str, Path]:
    """Find the guides by name: first those that are read in order, then the others."""
    found = {path.stem: path for path in sorted(FOLDER.glob("*.md"))}
    return {name: found[name] for name in dict.fromkeys((*ORDER, *found)) if name in found}


def docs(name: str | None = None) -> None:
    """List the guides, or print one: as text on a terminal, as Markdown into a pipe or file.

    Example: `fairq docs tutorial`

    Parameters
    ----------
    name
        Guide to print, such as tutorial.
    """
    found = guides()
    if name is not None and name not in found:
        known = did_you_mean(name, found) or f"; there are {', '.join(found)}"
        raise BadRequest(f"there is no guide {name!r:.80}{known}", field="name")
    if name is None:
        width = max(map(len, found))
        for each, path in found.items():
            print(f"{each:{width}}  {summary(path.read_text(encoding='utf-8'))}")
    else:
        _print(found[name].read_text(encoding="utf-8"))


def summary(text: str) -> str:
    """Return the first sentence below a guide's title."""
    paragraph = text.split("\n\n")[1].replace("\n", " ")
    return paragraph.split(". ")[0].rstrip(".") + "."


def _print(text: str) -> None:
    """Print Markdown: laid out on a terminal, otherwise unchanged."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=min(Console().width, 120))
    with console.pager(styles=True):
        console.print(Markdown(text, hyperlinks=False))
