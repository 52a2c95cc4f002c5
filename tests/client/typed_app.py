"""Payload classes and handlers of them, at the level of a module, where annotations are looked up."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import datetime
from typing import Any, Literal, NotRequired, Required, TypedDict
from uuid import UUID

from attrs import field, frozen, validators

import fairq


@frozen
class Address:
    """One receiver."""

    to: str
    copies: int = 1


@frozen
class Welcome:
    """A mail."""

    addresses: list[Address]
    kind: Literal["short", "long"] = "short"
    at: datetime | None = None
    weight: float = field(default=1.0, validator=validators.ge(0))


@dataclass
class Point:
    """A dataclass."""

    x: int
    tags: set[str] = dataclass_field(default_factory=set)


class Move(TypedDict):
    """A typed dictionary."""

    by: int
    points: NotRequired[list[Point]]


class Jump(Move, total=False):
    """A typed dictionary with keys of each kind."""

    height: Required[int]
    spin: float


@frozen
class Node:
    """A class that holds itself."""

    children: list[Node] = field(factory=list)


@frozen
class Linked:
    """A class that may hold itself."""

    id: UUID
    next: Linked | None = None


def make_app(worker: fairq.Worker, seen: list[Any]) -> fairq.Worker:
    """Register a handler of each kind of class."""

    @worker.task("typed", name="welcome")
    async def welcome(task: fairq.Task[Welcome]) -> str:
        seen.append(task.payload)
        return task.payload.addresses[0].to

    @worker.task("typed", name="point")
    def point(task: fairq.Task[Point]) -> int:
        seen.append(task.payload)
        return task.payload.x

    @worker.task("typed", name="move")
    async def move(task: fairq.Task[Move]) -> int:
        seen.append(task.payload)
        return task.payload["by"]

    @worker.task("typed", name="node")
    async def node(task: fairq.Task[Node]) -> int:
        seen.append(task.payload)
        return len(task.payload.children)

    return worker
