"""The pictures of the guides: the real library in virtual time (tests/lua/fleet.py), drawn as small SVG.

`python -m tests.docs.pictures` writes them to fairq/docs/pictures.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from fairq.store import library
from loadtest.pictures import new_figure
from tests import stores
from tests.lua.calls import Queue
from tests.lua.fleet import Fleet, about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "fairq" / "docs" / "pictures"
SIZE_INCHES, WIDE_INCHES = (7.5, 3.4), (7.5, 2.4)
FLOOD, QUIET, FAIR = "#c44e52", "#4c72b0", "#55a868"
SECOND = 1000


def _wait_of_quiet(
    queue: Queue, *, is_fair: bool, reserve: int = 0, flood_ms: float = 100
) -> list[tuple[float, float]]:
    """Play a flood and five quiet tenants on ten slots; returns arrival and waiting time of the quiet tasks, in s.

    Fair: each a tenant. Else all tasks are of one tenant, so first in, first out.
    """
    fleet, source = Fleet(queue, 10), random.Random(1)
    arrivals = sorted(source.uniform(SECOND, 29 * SECOND) for _ in range(150))
    flood = fleet.tenant("flood", about(flood_ms), round(300_000 / flood_ms))
    if reserve:
        fleet.keep(reserve)
    quiet = [fleet.tenant(f"quiet{n}", about(100)) for n in range(5)]
    for n, at in enumerate(arrivals):
        fleet.arrive(round(at), quiet[n % 5] if is_fair else flood, 1)
    fleet.run(70 * SECOND)
    if not is_fair:
        waits = flood.waits[-len(arrivals) :]
        return [(at / SECOND, wait / SECOND) for at, wait in zip(arrivals, waits, strict=True)]
    return [
        (at / SECOND, wait / SECOND)
        for n, sender in enumerate(quiet)
        for at, wait in zip(arrivals[n::5], sender.waits, strict=True)
    ]


def _scatter(title: str, clouds: dict[str, tuple[str, list[tuple[float, float]]]]) -> Figure:
    figure, axes = new_figure(title, "arrival of the task (s)", "waiting time (s), 1 ms or more")
    figure.set_size_inches(*SIZE_INCHES)
    for label, (color, points) in clouds.items():
        shown = [(at, max(wait, 0.001)) for at, wait in points]
        axes.plot(*zip(*shown, strict=True), ".", color=color, label=label, markersize=4)
    axes.set_yscale("log")
    axes.set_ylim(0.0008, 60)
    axes.legend(loc="center right", frameon=False)
    return figure


def flood(make: Callable[[], Queue]) -> Figure:
    """Draw how long tasks of quiet tenants wait beside a flood."""
    return _scatter(
        "Ten slots, 3,000 tasks of one tenant at 0 s: waiting times of five quiet tenants",
        {
            "first in, first out": (FLOOD, _wait_of_quiet(make(), is_fair=False)),
            "fair": (QUIET, _wait_of_quiet(make(), is_fair=True)),
        },
    )


def reserve(make: Callable[[], Queue]) -> Figure:
    """Draw what a reserve does where tasks are long."""
    return _scatter(
        "Ten slots full of one tenant's tasks of 10 s: waiting times of five quiet tenants",
        {
            "without a reserve": (FLOOD, _wait_of_quiet(make(), is_fair=True, flood_ms=10_000)),
            "reserve=20%": (QUIET, _wait_of_quiet(make(), is_fair=True, flood_ms=10_000, reserve=20)),
        },
    )


def shares(make: Callable[[], Queue]) -> Figure:
    """Draw who has the slots while weights change and a tenant comes and goes."""
    queue = make()
    fleet = Fleet(queue, 10)
    for name, length in (("acme", 100), ("globex", 400)):
        fleet.tenant(name, about(length), endless=True)
    fleet.tenant("initech", about(100), 600, at=20 * SECOND)
    senders = list(fleet.senders.values())
    times, parts, last = [], [], [0.0] * 3
    for second in range(1, 61):
        if second == 10:
            queue.call("set_weight", "globex", 3000)
        fleet.run(second * SECOND)
        held = [sender.held(fleet.now) for sender in senders]
        times.append(second)
        parts.append([(now - before) / SECOND for now, before in zip(held, last, strict=True)])
        last = held
    figure, axes = new_figure("Who has the ten slots, second by second", "time (s)", "slots")
    figure.set_size_inches(*SIZE_INCHES)
    labels = ("acme: tasks of 0.1 s", "globex: tasks of 0.4 s", "initech: 600 tasks of 0.1 s")
    axes.stackplot(times, *zip(*parts, strict=True), labels=labels, colors=(QUIET, FLOOD, FAIR), alpha=0.8)
    axes.set_xlim(1, 60)
    axes.set_ylim(0, 10)
    axes.annotate("weight of globex: 1 to 3", (10, 9.6), (11, 9.2), fontsize=8)
    axes.axvline(10, color="black", linewidth=0.8)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def _blank(width: float, height: float) -> tuple[Figure, Axes]:
    figure, axes = new_figure("", "", "")
    figure.set_size_inches(*WIDE_INCHES)
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    return figure, axes


def life(make: Callable[[], Queue]) -> Figure:
    """Draw the states of a task."""
    figure, axes = _blank(10, 3.3)
    places = {"delayed": (1.2, 2.2), "ready": (3.8, 2.2), "leased": (6.4, 2.2), "done": (9, 2.2), "dead": (6.4, 0.5)}
    for name, (x, y) in places.items():
        color = {"done": FAIR, "dead": FLOOD}.get(name, QUIET)
        box = {"boxstyle": "round,pad=0.5", "facecolor": color, "edgecolor": "none"}
        axes.text(x, y, name, color="white", ha="center", va="center", bbox=box)

    def arrow(since: tuple[float, float], to: tuple[float, float], text: str, at: tuple[float, float]) -> None:
        axes.annotate("", to, since, arrowprops={"arrowstyle": "->", "color": "black", "shrinkA": 0, "shrinkB": 0})
        axes.text(*at, text, ha="center", va="center", fontsize=8)

    arrow((1.9, 2.2), (3.2, 2.2), "its start", (2.55, 2.4))
    arrow((4.4, 2.2), (5.7, 2.2), "claim", (5.05, 2.4))
    arrow((7.1, 2.2), (8.4, 2.2), "acknowledged", (7.75, 2.45))
    arrow((5.7, 2.05), (4.4, 2.05), "lease lost, given back", (5.15, 1.82))
    arrow((6.4, 1.8), (6.4, 0.9), "rejected, or\nattempts used up", (7.35, 1.3))
    arrow((3.5, 1.8), (5.7, 0.4), "expired", (4.1, 1.0))
    arrow((5.8, 0.7), (3.9, 1.75), "replayed", (5.5, 1.35))
    arrow((1.2, 1.8), (5.7, 0.2), "expired", (2.9, 0.8))
    axes.annotate(
        "", (1.2, 2.6), (6.4, 2.6),
        arrowprops={"arrowstyle": "->", "connectionstyle": "arc3,rad=0.12", "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip
    axes.text(3.8, 3.2, "failed: after the backoff", ha="center", va="center", fontsize=8)
    return figure


def attempts(make: Callable[[], Queue]) -> Figure:
    """Draw three attempts of a task: one fails, one loses its worker, one succeeds."""
    figure, axes = _blank(60, 4.4)
    bars = (  # since, how long, row, text, color
        (1, 10, 3, "attempt 1, worker-1:\nan error", FLOOD),
        (11, 6, 2, "backoff", "#cccccc"),
        (17, 10, 3, "attempt 2, worker-2,\nwhich stands still", FLOOD),
        (27, 12, 2, "until its lease ends", "#cccccc"),
        (39, 13, 3, "attempt 3, worker-1:\ndone", FAIR),
    )
    for since, length, row, text, color in bars:
        axes.barh(row, length, left=since, height=0.8, color=color)
        axes.text(since + length / 2, row, text, ha="center", va="center", fontsize=7)
    axes.text(
        40, 1.8, "worker-2 goes on, and acknowledges\nattempt 2: refused, its lease is over", va="center", fontsize=7
    )
    axes.annotate("", (59, 0.6), (1, 0.6), arrowprops={"arrowstyle": "->"})
    axes.text(59, 0.2, "time", ha="right", fontsize=8)
    return figure


PICTURES = {each.__name__: each for each in (flood, reserve, shares, life, attempts)}


def draw(name: str, client: redis.Redis) -> str:
    """Draw a picture; returns its SVG."""
    from matplotlib import rc_context

    def make() -> Queue:
        client.flushdb()
        return Queue(client)

    out = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "path.simplify": True}):
        PICTURES[name](make).savefig(out, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def main() -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        store = stores.start("valkey", Path(folder))
        try:
            with stores.connect(store.url) as client:
                client.function_load(library.source())
                for name in PICTURES:
                    (FOLDER / f"{name}.svg").write_text(draw(name, client), encoding="utf-8")
        finally:
            store.stop()


if __name__ == "__main__":
    main()
