"""The SDK for those who enqueue, and for operators, on trio."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Unpack

import orjson
import trio
import uuid_utils
from attrs import define, field

from fairq.client.driver import Driver
from fairq.client.options import TaskOptions, interval_ms, pack_options
from fairq.errors import BadRequest, TooLarge
from fairq.model import (
    MAX_BATCH,
    MAX_PAYLOAD_BYTES,
    NewTask,
    ScheduleState,
    TaskState,
    check_name,
    check_schedule_name,
    check_task_id,
)
from fairq.scopes import background
from fairq.wire.client_session import ClientSession

DEFAULT_TIMEOUT = 30.0  # under the minute for which the store remembers ids that are done


@define
class EnqueuedTask:
    """A task that the service has taken over. `is_duplicate`: it knew the id already, and changed nothing."""

    id: str
    queue: str
    is_duplicate: bool = False
    _client: Client | None = field(default=None, repr=False, eq=False)

    async def state(self) -> TaskState:
        """Ask what has become of it."""
        assert self._client is not None
        return (await self._client.tasks(self.queue, [self.id]))[0]


def encode_payload(payload: Any) -> bytes:
    """Write a payload as JSON. Raises: BadRequest if it is none, TooLarge."""
    try:
        text = orjson.dumps([[[[payload]]]])[4:-4]  # a frame holds it as deep, and may be no deeper than orjson writes
    except (TypeError, orjson.JSONEncodeError) as error:
        raise BadRequest(f"the payload is not JSON: {error}", field="payload") from None
    if len(text) > MAX_PAYLOAD_BYTES:
        raise TooLarge(f"the payload has {len(text)} bytes; {MAX_PAYLOAD_BYTES} are the limit", field="payload")
    return text


@define(eq=False)
class Client:
    """A connection to the service that mends itself. Calls may be made by many tasks at once; they share frames.

    Every call gives up after `timeout` seconds (the client's, where the call names none) with Unavailable (nothing was
    done) or OutcomeUnknown (it may have been; the same call with the same ids is safe to repeat).
    """

    _driver: Driver[ClientSession]
    timeout: float = DEFAULT_TIMEOUT

    def _deadline(self, timeout: float | None) -> float:
        return trio.current_time() + (self.timeout if timeout is None else timeout)

    async def enqueue(
        self,
        queue: str,
        payload: Any,
        *,
        id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> EnqueuedTask:
        """Enqueue one task; it is durable when this returns. `id`: yours, if repeating the call must make no second.

        Raises: BadRequest, TooLarge, StoreFull, Unavailable, OutcomeUnknown.
        """
        ids = None if id is None else [id]
        return (await self.enqueue_many(queue, [payload], ids=ids, timeout=timeout, **options))[0]

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> list[EnqueuedTask]:
        """Enqueue many tasks, as `enqueue` does one; any number, sent in frames of up to 500.

        Not atomic: on an error some may have been taken; repeat the call with the same `ids`.
        """
        check_name(queue, "queue")
        values = pack_options(options) if options else ()
        texts = [encode_payload(payload) for payload in payloads]
        if ids is None:
            ids = [str(uuid_utils.uuid7()) for _ in texts]
        elif len(ids) != len(texts):
            raise BadRequest(f"{len(ids)} ids were given for {len(texts)} payloads", field="ids")
        else:
            for id in ids:
                check_task_id(id)
        if not texts:
            return []
        tasks = [NewTask(id, text, *values) for id, text in zip(ids, texts, strict=True)]
        outcomes = await self._driver.wait(self._driver.session.enqueue(queue, tasks, self._deadline(timeout)))
        if "expired" in outcomes:
            raise BadRequest("the window is over already; the task was not enqueued", field="expires_at")
        return [
            EnqueuedTask(task.id, queue, outcome == "duplicate", self)
            for task, outcome in zip(tasks, outcomes, strict=True)
        ]

    async def tasks(self, queue: str, ids: Sequence[str], *, timeout: float | None = None) -> list[TaskState]:
        """Ask what is known of tasks."""
        body = await self.request("tasks", {"queue": queue, "ids": list(ids)}, timeout=timeout)
        return [TaskState(**row) for row in body["tasks"]]

    async def schedule(
        self,
        queue: str,
        name: str,
        payload: Any,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: float | None = None,
        missed: str = "skip",
        expires_in: float | None = None,
        max_attempts: int | None = None,
        tenant: str | None = None,
        timeout: float | None = None,
    ) -> list[datetime]:
        """Enqueue a task again and again, or change how; returns the next three fires. The same again changes nothing.

        `cron`: five fields, read in the time zone (`Europe/Copenhagen`; None: UTC), or `every`: seconds. `missed`: what
        becomes of fires when the service was down: `skip` them, or make up for all of them `once`. A task's `start_at`
        is the time of its fire. `tenant`: whose, for operators; so in the other calls.

        Raises: BadRequest, naming the argument; TooLarge for the payload, or when there are 1,000 of them.
        """
        _, _, expires_in_ms, _, attempts = pack_options({"expires_in": expires_in, "max_attempts": max_attempts})
        body = _schedule_body(queue, name, tenant) | {
            "payload": orjson.Fragment(encode_payload(payload)),
            "cron": cron or "",
            "zone": zone or "",
            "every_ms": interval_ms(every),
            "missed": missed,
            "expires_in_ms": expires_in_ms,
            "max_attempts": attempts,
        }
        reply = await self.request("schedule", body, timeout=timeout)
        return [datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in reply["fires_at_ms"]]

    async def unschedule(
        self, queue: str, name: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> bool:
        """Delete a schedule; returns whether there was one. Tasks that it has enqueued stay."""
        body = _schedule_body(queue, name, tenant)
        return bool((await self.request("unschedule", body, timeout=timeout))["before"])

    async def pause_schedule(
        self, queue: str, name: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> bool:
        """Let a schedule fire no more until it is resumed; returns whether it was paused already. Raises: NotFound."""
        body = _schedule_body(queue, name, tenant)
        return bool((await self.request("pause_schedule", body, timeout=timeout))["before"])

    async def resume_schedule(
        self, queue: str, name: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> bool:
        """Let a schedule fire again, next at the first time still to come; returns whether it was paused."""
        body = _schedule_body(queue, name, tenant)
        return bool((await self.request("resume_schedule", body, timeout=timeout))["before"])

    async def schedules(
        self, queue: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> list[ScheduleState]:
        """List all schedules (an operator's client: all tenants' unless one is named), the next to fire first."""
        found: dict[tuple[str, str], ScheduleState] = {}
        offset, asked = 0, _schedule_body(queue, None, tenant)
        while True:
            body = {**asked, "offset": offset, "count": MAX_BATCH}
            page = (await self.request("schedules", body, timeout=timeout))["schedules"]
            found.update({(row["tenant"], row["name"]): ScheduleState(**row) for row in page})
            if len(page) < MAX_BATCH:
                return list(found.values())
            offset += len(page)

    async def read_schedule(
        self, queue: str, name: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> ScheduleState:
        """Read one schedule, with its payload. Raises: NotFound."""
        body = _schedule_body(queue, name, tenant)
        return ScheduleState(**(await self.request("schedules", body, timeout=timeout))["schedules"][0])

    async def request(
        self, verb: str, body: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send any request of PROTOCOL.md and return the reply's body."""
        session = self._driver.session
        result: dict[str, Any] = await self._driver.wait(session.request(verb, body or {}, self._deadline(timeout)))
        return result


def _schedule_body(queue: str, name: str | None, tenant: str | None) -> dict[str, Any]:
    body = {"queue": check_name(queue, "queue")}
    if name is not None:
        body["name"] = check_schedule_name(name)
    if tenant is not None:
        body["tenant"] = check_name(tenant, "tenant")
    return body


@asynccontextmanager
async def open_client(
    url: str | Sequence[str], *, token: str, tls: ssl.SSLContext | None = None, timeout: float = DEFAULT_TIMEOUT
) -> AsyncIterator[Client]:
    """Open a client for the URL of a server (or several of servers on one store), while the context lasts.

    It connects in the background, again and again. Raises: SettingsError for a URL that is none; Unauthorized or
    Forbidden when the server will not have the token.
    """
    driver = Driver.to(url, token, ClientSession(), tls)
    async with background(driver.run):
        yield Client(driver, timeout)
