"""The pictures of the guides that are measured: the real library in virtual time (tests/lua/fleet.py), as small SVG.

`python -m tests.docs.pictures` writes them to fairq/docs/pictures. The others there are drawn by hand.
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
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "fairq" / "docs" / "pictures"
SIZE_INCHES = (7.5, 3.4)
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


PICTURES = {each.__name__: each for each in (flood, reserve, shares)}


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
