"""Which of two faults of a request is told: refusal_order.json has the places of each verb, the first told first.

`<place>:type` is a value of a wrong type there, `<place>` the first value that refusals.py has for it. The order is
frozen, so that checks may move from the verbs to the fields' declarations. Each verb is asked by the first of its roles
that may. Where two places give the same answer, either may be first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from fairq.server.run import Served
from fairq.wire.terms import Role
from tests.test_documents import fields_in_code

from .refusals import REQUESTS, RULES, Row, Together, good, parts_of, put
from .test_refusals import WRONG, World, of, open_world, quiet_server, refusal_by_codec

__all__ = ["quiet_server"]
TABLE = Path(__file__).with_name("refusal_order.json")


class Fault(NamedTuple):
    """A value in a place of a request, and how it is refused."""

    place: str
    value: object
    answer: tuple[str, str]  # code and field


def faults_of(verb: str, role: Role) -> dict[str, Fault]:
    """Return a value of a wrong type for each field of a verb, and the first value that breaks a rule of a place."""
    found = dict[str, Fault]()
    for outer, cls in parts_of(verb).items():
        for name, kind in fields_in_code(cls).items():
            place = f"{outer}.{name}".lstrip(".")
            word = "any" if name in ("payload", "result") else "list" if kind.type.startswith("list") else kind.type
            if WRONG[word]:
                found[f"{place}:type"] = Fault(place, WRONG[word][0], ("bad_request", name))
    for rule in RULES:
        value = rule.values[0]
        if verb in rule.verbs and role in rule.roles and not isinstance(value, Together) and value is not ...:
            answer = rule.code, rule.field or rule.place.rpartition(".")[2]
            found.setdefault(rule.place, Fault(rule.place, value, answer))
    return found


def pairs_of(faults: dict[str, Fault]) -> Iterator[tuple[str, str]]:
    """Pair the faults that one request can have, and whose answers differ."""
    for one, other in combinations(faults, 2):
        (first, _, answer), (second, _, another) = faults[one], faults[other]
        if answer != another and not f"{first}.".startswith(f"{second}.") and not f"{second}.".startswith(f"{first}."):
            yield one, other


async def answer_to(world: World, row: Row) -> tuple[str, str | None]:
    """Return code and field of a refusal, by the codec or a server."""
    if refusal := refusal_by_codec(row):
        return refusal
    frame = await world.answer(row)
    assert frame["type"] == "error", row
    return frame["code"], frame["field"]


async def order_of(world: World, verb: str, role: Role) -> list[str]:
    """Find the order in which a verb tells its faults. Raises: CycleError if it has none."""
    faults = faults_of(verb, role)
    sorter = TopologicalSorter[str]({name: () for name in faults})
    for one, other in pairs_of(faults):
        a, b = faults[one], faults[other]
        body = put(put(good(verb, role), a.place, a.value), b.place, b.value)
        told = await answer_to(world, Row(verb, role, body, "", ""))
        assert told in (a.answer, b.answer), f"{verb}: {one} and {other} together are {told}"
        sorter.add(*((other, one) if told == a.answer else (one, other)))
    return list(sorter.static_order())


async def test_the_first_fault_of_a_request_is_told(served: Served, server_store: str) -> None:
    known: dict[str, list[str]] = json.loads(TABLE.read_text())
    async with open_world(served, server_store) as world:
        found = {verb: await order_of(world, verb, of(verb)[0]) for verb in REQUESTS}
    rows = ",\n".join(f"{json.dumps(verb)}: {json.dumps(order)}" for verb, order in found.items())
    assert found == known, f"if this is meant, {TABLE.name} is\n{{\n{rows}\n}}"
