"""The schedules that an app declares in its code: its workers send them to the service.

A worker declares them when it starts and every few seconds after that. So the service knows what code still runs, and
changes or deletes a schedule only when no worker declares its old form any more (lua/features/schedules.lua). The
worker that made a change logs it, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
from attrs import define, field, frozen

from fairq.errors import BadRequest, Closed, FairqError, Forbidden, TooLarge, UnknownVerb
from fairq.log import Log, name_of

if TYPE_CHECKING:
    from fairq.client.driver import Driver
    from fairq.client.kinds import Handler, QueueHandlers
    from fairq.client.requests import Body

log = Log("fairq.worker")

AGAIN_S = 5.0  # a declaration counts for three times as long
ASK_S = 30.0  # how long to wait for an answer
_FINAL = (BadRequest, Forbidden, TooLarge)  # the code, or the token, is wrong
_SAID = {
    "created": "schedule created",
    "changed": "schedule changed",
    "kept": "schedule stays as it is while another worker of the app declares it so",
    "other": "schedule was not made by this app, and stays as it is",
}
_QUIET = ("created", "changed", "kept")


@frozen
class Declared:
    """A schedule in the code: its handler's function, its queue, tenants and name, and the rest of its frame."""

    function: Callable[..., Any]
    queue: str | None
    tenants: tuple[str, ...]
    name: str
    body: Body

    def rows(self, handlers: Mapping[str, QueueHandlers]) -> list[Body]:
        """Return the declarations, one for each tenant. Raises: BadRequest if tasks would not reach its function."""
        handler = self._handler(handlers)
        named = {"name": self.name, "task_name": self.body.get("task_name") or handler.name}
        if handlers[handler.queue].find(named["task_name"] or self.name) is not handler:
            remedy = "give this one a name of its own: @app.schedule(..., schedule=...)"
            message = f"another handler takes tasks named {self.name!r}, as the schedule is; {remedy}"
            raise BadRequest(message, field="schedule")
        return [self.body | named | {"queue": handler.queue, "tenant": tenant} for tenant in self.tenants]

    def _handler(self, handlers: Mapping[str, QueueHandlers]) -> Handler:
        found = [
            each
            for kinds in handlers.values()
            for each in kinds.by_name.values()
            if each.function is self.function and self.queue in (None, each.queue)
        ]
        if len(found) == 1:
            return found[0]
        which = "is a handler several times: give @app.schedule the queue" if found else "is no handler: use @app.task"
        message = f"schedule {self.name} has no handler of its own: {name_of(self.function)} {which}"
        raise BadRequest(message, field="queue")


def rows_of(declared: Iterable[Declared], handlers: Mapping[str, QueueHandlers], queues: Iterable[str]) -> list[Body]:
    """Return the declarations of a worker of these queues. Raises: BadRequest."""
    mine, found = set(queues), dict[tuple[str, str, str], dict[str, Any]]()
    for row in (row for each in declared for row in each.rows(handlers) if row["queue"] in mine):
        if (key := _key(row)) in found:
            raise BadRequest(f"tenant {key[1]} has two schedules {key[2]} in queue {key[0]}", field="schedule")
        found[key] = row
    return list(found.values())


def _key(row: Body) -> tuple[str, str, str]:
    return row["queue"], row["tenant"], row["name"]


@define(eq=False)
class Declaring:
    """Declares the schedules of one app, until `is_over()`; `fail(error)` ends a worker that may not do it."""

    app: str
    rows: list[Body]
    driver: Driver[Any]
    is_over: Callable[[], bool]
    fail: Callable[[FairqError], object]
    _logged: dict[tuple[str, str, str], str] = field(factory=dict, init=False)  # the last outcome of each
    _trouble: str = field(default="", init=False)  # the code of the last error, until it is over

    async def keep(self) -> None:
        """Declare again and again, as long as the app has, or had, schedules."""
        goes_on = True
        while goes_on and not self.is_over():
            goes_on = await self.once()
            await anyio.sleep(AGAIN_S if goes_on else 0)

    async def once(self) -> bool:
        """Declare; returns whether to do so again."""
        body = {"app": self.app, "schedules": self.rows}
        try:
            reply = await self.driver.wait(self.driver.session.request("declare", body, self.driver.now() + ASK_S))
        except (Closed, *_FINAL) as error:
            if self.rows and not isinstance(error, Closed):
                self.fail(error)
            return False
        except FairqError as error:
            if self.rows and self._trouble != error.code:
                log.warning("cannot declare schedules", app=self.app, error=error.message)
            self._trouble = error.code
            return bool(self.rows) or not isinstance(error, UnknownVerb)
        self._trouble = ""
        for row, outcome in zip(self.rows, reply["outcomes"], strict=True):
            self._tell(row, outcome)
        for row in reply["removed"]:
            log.info("schedule removed: the code of the app declares it no more", **_labels(row), app=self.app)
        return not reply["is_over"]

    def _tell(self, row: Body, outcome: str) -> None:
        key = _key(row)
        if self._logged.get(key) != outcome and outcome != "same":
            say = log.info if outcome in _QUIET else log.warning
            say(_SAID.get(outcome, "schedule was refused"), **_labels(row), app=self.app, **_why(outcome))
        self._logged[key] = outcome


def _labels(row: Body) -> Body:
    return {"schedule": row["name"], "queue": row["queue"], "tenant": row["tenant"]}


def _why(outcome: str) -> Body:
    return {} if outcome in _SAID else {"error": outcome}
