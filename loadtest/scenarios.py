"""What can be measured: the scenarios, by name, in the order in which `all` runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from loadtest import (
    abuse,
    clients,
    connections,
    dashboard,
    delayed,
    fairness,
    features,
    latency,
    longest,
    scale,
    simulate,
    soak,
    tenants,
    throughput,
)
from loadtest.faults import scenario as faults
from loadtest.peers import picture as peers_picture
from loadtest.peers import scenario as peers
from loadtest.report import Table


def no_pictures(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw nothing."""
    return []


@frozen
class Scenario:
    """One part of the load test.

    `run(directory, progress, *, quick, fsync)` measures and returns its part of the report, in which `verdicts` (name
    -> Verdict) says what became of every task; it raises RunFailed with the remedy if it cannot run here. `tables`
    shows that part to people, `draw` makes PNG files of it in a directory and returns their paths.
    """

    run: Callable[..., Awaitable[dict[str, Any]]]
    tables: Callable[[Mapping[str, Any]], Iterable[Table]]
    draw: Callable[[Mapping[str, Any], Path], list[Path]] = no_pictures


SCENARIOS = {
    "throughput": Scenario(throughput.run, throughput.tables),
    "clients": Scenario(clients.run, clients.tables),
    "latency": Scenario(latency.run, latency.tables, latency.draw),
    "fairness": Scenario(fairness.run, fairness.tables, fairness.draw),
    "tenants": Scenario(tenants.run, tenants.tables, tenants.draw),
    "simulate": Scenario(simulate.run, simulate.tables),
    "features": Scenario(features.run, features.tables),
    "longest": Scenario(longest.run, longest.tables),
    "delayed": Scenario(delayed.run, delayed.tables, delayed.draw),
    "connections": Scenario(connections.run, connections.tables),
    "dashboard": Scenario(dashboard.run, dashboard.tables),
    "abuse": Scenario(abuse.run, abuse.tables),
    "scale": Scenario(scale.run, scale.tables),
    "soak": Scenario(soak.run, soak.tables, soak.draw),
    "faults": Scenario(faults.run, faults.tables),
    "peers": Scenario(peers.run, peers.tables, peers_picture.draw),
}
