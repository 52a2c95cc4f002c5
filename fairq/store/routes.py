"""Which places of a queue a verb of the store works on: the place of a tenant, those of some tasks, or all.

A method of the store is written for one place, and marked with its route. Callers name the queue; those that work on
one place (a dispatcher, the ticker) name that. A queue with one partition costs one look into a dictionary.

While a primary is away, its places do not answer. A reader that can use the answers of the others gives `away`: then
the missing places and their errors are noted there. If no place answers, and for other callers, the error is raised.
What all places have alike is read from the first one that answers.

A change of what all places have alike begins in the first one, which decides: if it refuses the change, or is away,
nothing is changed. Then the others get it, whatever version theirs has. If some of these cannot be reached, the outcome
is unknown. Repeating the change completes it, since the first place has it already. Changes take turns (changing.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from itertools import takewhile
from typing import Any, TypeVar, cast

from fairq.errors import BadRequest, FairqError, OutcomeUnknown, Unavailable
from fairq.io.scopes import begin_all, run_all
from fairq.model.checks import owner_of
from fairq.model.places import is_partition, partition_of, queue_of
from fairq.store.changing import change_in_turn
from fairq.store.partitions import Places, place_in

Verb = TypeVar("Verb", bound=Callable[..., Any])
Route = Callable[..., Awaitable[Any]]  # (verb, store, places, *arguments of the verb)
Away = dict[str, FairqError]  # places that do not answer, and why
_NAMED = 5  # partitions that an error names
NO_ANSWER = (Unavailable, OutcomeUnknown)


def _by(route: Route) -> Callable[[Verb], Verb]:
    """Mark a verb with its route."""

    def mark(verb: Verb) -> Verb:
        async def find(store: Any, queue: str, *args: Any, **options: Any) -> Any:
            places: Places = await store.registry.places(queue)
            if len(places) == 1:
                return await verb(store, places[0], *args, **options)
            return await route(verb, store, places, *args, **options)

        @wraps(verb)
        def routed(store: Any, queue: str, *args: Any, **options: Any) -> Any:
            registry = store.registry
            if not registry.making and (places := registry.known.get(queue)) and len(places) == 1:
                return verb(store, queue, *args, **options)
            return find(store, queue, *args, **options)

        return cast(Verb, routed)

    return mark


async def everywhere(
    verb: Route, store: Any, places: Places, *args: Any, away: Away | None = None, **options: Any
) -> list[Any]:
    """Call a verb for each of some places side by side; returns the answers in order. Raises: the first error.

    `away`: places that do not answer are noted there, unless none does.
    """
    answers: dict[str, Any] = {}
    lost: Away = {}

    async def call(place: str) -> None:
        try:
            answers[place] = await verb(store, place, *args, **options)
        except NO_ANSWER as error:
            lost[place] = error

    await run_all(*(partial(call, place) for place in places))
    if lost and (away is None or not answers):
        raise error_of(lost)
    if away is not None:
        away |= lost
    return [answers[place] for place in places if place in answers]


def error_of(lost: Away) -> FairqError:
    """Return the error of partitions that do not answer; it names the first ones."""
    error = next(iter(lost.values()))
    queue, names = queue_of(next(iter(lost))), [partition_of(place) for place in lost]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    of = f"partition{'s' * (len(names) > 1)} {', '.join(sorted(names)[:_NAMED])}{more} of {queue}"
    return type(error)(f"{of}: {error.message}")


def pass_over(place: str, error: FairqError, places: Places, away: Away | None) -> None:
    """Note in `away` that one of these places does not answer. Raises: its error without `away`, or if none answers."""
    if away is not None:
        away[place] = error
    if away is None or len(away) == len(places):
        raise (error_of({place: error}) if is_partition(place) else error) from None


async def _at(verb: Route, store: Any, place: str, *args: Any, **options: Any) -> Any:
    """Call a verb for one of several places, which an error then names."""
    try:
        return await verb(store, place, *args, **options)
    except NO_ANSWER as error:
        raise error_of({place: error}) from None


async def _of_tenant(verb: Route, store: Any, places: Places, tenant: str, *args: Any, **options: Any) -> Any:
    return await _at(verb, store, place_in(places, tenant), tenant, *args, **options)


async def _of_task(verb: Route, store: Any, places: Places, id: str, *args: Any, **options: Any) -> Any:
    return await _at(verb, store, place_in(places, owner_of(id)), id, *args, **options)


of_tenant: Callable[[Verb], Verb] = _by(_of_tenant)  # verb(queue, tenant, ...)
of_task: Callable[[Verb], Verb] = _by(_of_task)  # verb(queue, id, ...): the id of a task or batch


def of_tasks(id_of: Callable[[Any], str] = str) -> Callable[[Verb], Verb]:
    """Mark a verb as one of some tasks: verb(queue, tasks, ...), which answers for each, the first ones or none.

    Its calls leave in the caller's turn, so a settlement leaves before the claim that takes its slots.
    """

    async def route(verb: Route, store: Any, places: Places, tasks: Sequence[Any], *args: Any, **options: Any) -> Any:
        numbers: dict[str, list[int]] = {}
        for n, task in enumerate(tasks):
            numbers.setdefault(place_in(places, owner_of(id_of(task))), []).append(n)
        if len(numbers) == 1:
            return await _at(verb, store, *numbers, tasks, *args, **options)  # without a task
        answers: dict[int, Any] = {}

        async def call(place: str) -> None:
            some = [tasks[n] for n in numbers[place]]
            found = await _at(verb, store, place, some, *args, **options)
            answers.update(zip(numbers[place], found or (), strict=False))

        await begin_all(*(partial(call, place) for place in numbers))
        return [answers[n] for n in takewhile(answers.__contains__, range(len(tasks)))]

    return _by(route)


def of_all(join: Callable[[list[Any]], Any]) -> Callable[[Verb], Verb]:
    """Mark a verb as one of the whole queue: verb(queue, ...), whose answers are joined."""

    async def route(verb: Route, store: Any, places: Places, *args: Any, **options: Any) -> Any:
        return join(await everywhere(verb, store, places, *args, **options))

    return _by(route)


async def _of_first(verb: Route, store: Any, places: Places, *args: Any, **options: Any) -> Any:
    for place in places[:-1]:
        with suppress(*NO_ANSWER):
            return await verb(store, place, *args, **options)
    return await verb(store, places[-1], *args, **options)


of_first: Callable[[Verb], Verb] = _by(_of_first)  # verb(queue, ...), which reads what all places have alike


def of_tenant_or_first(verb: Verb) -> Verb:
    """Mark a verb that reads what a tenant has, or if its name is empty what all places have alike."""

    async def route(verb: Route, store: Any, places: Places, tenant: str, *args: Any, **options: Any) -> Any:
        way = _of_tenant if tenant else _of_first
        return await way(verb, store, places, tenant, *args, **options)

    return _by(route)(verb)


async def _of_first_then_all(
    verb: Route, store: Any, places: Places, *args: Any, if_version: str = "", **options: Any
) -> list[Any]:
    based = {"if_version": if_version} if if_version else {}
    async with change_in_turn(store, places[0]):
        answers = [await verb(store, places[0], *args, **based, **options)]
        try:
            return answers + await everywhere(verb, store, places[1:], *args, **options)
        except NO_ANSWER as error:
            why = f"some partitions of the queue have the change, others cannot be reached: repeat it ({error.message})"
            raise OutcomeUnknown(why) from None


def changes_all(join: Callable[[list[Any]], Any]) -> Callable[[Verb], Verb]:
    """Mark a verb that changes what all places have alike: verb(queue, ..., if_version=...)."""

    async def route(verb: Route, store: Any, places: Places, *args: Any, **options: Any) -> Any:
        return join(await _of_first_then_all(verb, store, places, *args, **options))

    return _by(route)


def changes_tenant_or_all(
    join: Callable[[list[Any]], Any], tenant_of: Callable[[Any], str] = str
) -> Callable[[Verb], Verb]:
    """Mark a verb that changes what a tenant has, which its first argument names; if that is empty, what all have."""

    async def route(verb: Route, store: Any, places: Places, whose: Any, *args: Any, **options: Any) -> Any:
        if tenant := tenant_of(whose):
            return await _at(verb, store, place_in(places, tenant), whose, *args, **options)
        return join(await _of_first_then_all(verb, store, places, whose, *args, **options))

    return _by(route)


def of_tenants(join: Callable[[list[Any]], Any]) -> Callable[[Verb], Verb]:
    """Mark a verb as one of some tenants: verb(queue, tenants), or without any of the whole queue.

    One tenant without a name stands for what all places have alike.
    """

    async def route(
        verb: Route, store: Any, places: Places, tenants: Sequence[str] = (), *args: Any, away: Away | None = None
    ) -> Any:
        if not tenants:
            return join(await everywhere(verb, store, places))
        if list(tenants) == [""]:
            return join([await _of_first(verb, store, places, tenants, *args)])
        named: dict[str, list[str]] = {}
        for tenant in tenants:
            named.setdefault(place_in(places, tenant), []).append(tenant)

        async def call(store: Any, place: str) -> Any:
            return await verb(store, place, named[place], *args)

        return join(await everywhere(call, store, tuple(named), away=away))

    return _by(route)


async def walk(
    read: Callable[[str, str, int], Awaitable[tuple[list[Any], str]]],
    places: Places,
    cursor: str,
    count: int,
    away: Away | None = None,
) -> tuple[list[Any], str]:
    """Read about `count` rows from a cursor on, place after place; returns them, and where to go on (empty: the end).

    `read(place, cursor, count)` does the same in one place; its cursors are numbers, and empty at the end. `away`:
    places that do not answer are noted there and passed over, unless none does. Raises: BadRequest for an invalid
    cursor.
    """
    if not (cursor or "0").isdecimal() or not cursor.isascii():
        raise BadRequest("invalid cursor: use the one of the previous page", field="cursor")
    inner, at = divmod(int(cursor or 0), len(places))
    rows: list[Any] = []
    while at < len(places) and len(rows) < count:
        try:
            some, following = await read(places[at], str(inner), count - len(rows))
        except NO_ANSWER as error:
            pass_over(places[at], error, places, away)
            some, following = [], ""
        rows += some
        inner, at = int(following or 0), at if following else at + 1
        if following:
            break
    return rows, "" if at == len(places) else str(inner * len(places) + at)
