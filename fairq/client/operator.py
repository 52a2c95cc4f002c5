"""The SDK for operators: queues, tenants, limits, workers and tokens, in addition to a client's calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from attrs import define, evolve

from fairq.client import lazy
from fairq.client.client import Client
from fairq.client.requests import DEFAULT_TIMEOUT, Body, Requests, away_in, check_whole, named
from fairq.errors import NotFound, Unavailable
from fairq.model.checks import check_flag, check_weight

if TYPE_CHECKING:
    import ssl

    from fairq.model.attempts import Attempts, AttemptState
    from fairq.model.audit import AuditPage
    from fairq.model.cancelling import CancelProgress
    from fairq.model.history import History, Period
    from fairq.model.limits import Limits
    from fairq.model.operator_views import Deletion, HeldLimits, QueueRow, TokenRow
    from fairq.model.option_tables import LimitOptions, SettingOptions
    from fairq.model.places import AwayPartition
    from fairq.model.queues import Repair
    from fairq.model.tenants import TenantState
    from fairq.model.waiting import Report
    from fairq.model.webhooks import Webhook
    from fairq.model.workers import WorkerState, WorkerTasks
    from fairq.tokens import TokenRecord


def _based_on(if_version: str | None) -> Body:
    """Make a change conditional on a version."""
    return {} if if_version is None else {"if_version": lazy.versions.VERSION.check(if_version, "if_version")}


def _was(reply: Body) -> bool:
    """Read the previous value."""
    return bool(reply["previous"])


def _webhook(queue: str, url: str, name: str) -> Body:
    """Name a webhook."""
    body = named(queue) | {"url": lazy.webhooks.URL.check(url, "url")}
    return body | {"name": name} if lazy.tasks.SHORT_NAME.check(name, "name") else body


async def read_tenants(
    client: Requests, queue: str, tenant: str | None = None
) -> tuple[list[TenantState], list[AwayPartition]]:
    """Read the tenants of a queue, or one of them, and the partitions that do not answer."""
    found: dict[str, TenantState] = {}
    away: list[AwayPartition] = []
    body = named(queue, tenant)
    while True:
        page = await client.request("tenants", body)
        away += away_in(page)
        found.update({row.tenant: row for row in lazy.bodies.rows(lazy.tenants.TenantState, page["tenants"])})
        if not page.get("cursor"):
            return [found[name] for name in sorted(found)], away
        body["cursor"] = page["cursor"]


@define(eq=False)
class OperatorClient(Client):
    """A client with an operator's token. Tasks of tenants are named by their full ids, `<tenant>/<id>`.

    Changes act at once, on what waits too. Every call may be repeated safely.
    """

    async def queues(self, queue: str | None = None) -> list[QueueRow]:
        """List all queues, or the one of a name, with their counts, settings and slots."""
        body = {} if queue is None else named(queue)
        return lazy.bodies.rows(lazy.operator_views.QueueRow, (await self.request("queues", body))["queues"])

    async def configure(
        self, /, queue: str, *, if_version: str | None = None, **settings: Unpack[SettingOptions]
    ) -> None:
        """Change settings of a queue: `share`, `reserve`, `lease_ms`, `max_attempts` and so on.

        `if_version`: only if this is still the version of its settings. Raises: BadRequest, StaleVersion.
        """
        await self.request("configure", {"queue": queue, "settings": settings} | _based_on(if_version))

    async def delete_queue(self, queue: str, *, purge: bool = False) -> dict[str, int]:
        """Delete an empty queue, or (`purge`) a queue with all that it holds; returns what it held.

        Raises: NotFound, NotEmpty.
        """
        contents: dict[str, int] | None = None
        async for step in self.deleting_queue(queue, purge=purge):
            contents = step.contents if contents is None else contents
        return contents or {}

    async def deleting_queue(self, queue: str, *, purge: bool = False) -> AsyncGenerator[Deletion, None]:
        """Delete a queue step by step; each step takes up to two seconds. Raises: NotFound, NotEmpty."""
        is_first = True
        while True:
            step = lazy.bodies.structure(
                await self.request("delete_queue", {"queue": queue, "purge": purge}), lazy.operator_views.Deletion
            )
            if step.outcome == "gone" and is_first:
                raise NotFound(f"there is no queue {queue}", field="queue")
            yield step
            if step.outcome != "more":
                return
            is_first = False

    async def queue_exists(self, queue: str) -> bool:
        """True if the queue exists: something was put into it, and it was not deleted since."""
        return any(row.made_at_ms for row in await self.queues(queue))

    async def purging_queue(self, queue: str, *, dry_run: bool = False) -> AsyncGenerator[CancelProgress, None]:
        """Cancel the waiting tasks of all tenants that a queue has now; yields the progress after each step.

        `dry_run`: only count. Raises: NotFound.
        """
        rows = await self.tenants(queue)
        left = sum(row.ready + row.pending + row.delayed for row in rows)
        done = lazy.cancelling.CancelProgress(waiting=left)
        for row in rows:
            mine = row.ready + row.pending + row.delayed
            if not mine:
                continue
            previous, left = done, left - mine
            async with aclosing(self.cancelling_all(queue, tenant=row.tenant, dry_run=dry_run)) as steps:
                async for step in steps:
                    done = previous.plus(evolve(step, cursor="", waiting=left + step.waiting))
                    yield done

    async def delete_tenant(self, queue: str, tenant: str) -> None:
        """Delete a tenant that has nothing, with its weight, limits, opening hours, pause and feed.

        A task enqueued later makes it anew. Raises: NotFound, also if the answer was lost and the call was made again;
        NotEmpty.
        """
        if (await self.request("drop_tenant", named(queue, tenant)))["outcome"] != "ok":
            raise NotFound(f"there is no tenant {tenant} in queue {queue}", field="tenant")

    async def empty_tenant(self, queue: str, tenant: str) -> None:
        """Delete a tenant's schedules, waiting tasks and dead letters; running tasks go on.

        Its open batches are closed. They are kept for a day when they are complete, its results and dedupe keys for as
        long as was asked for.
        """
        for schedule in await self.schedules(queue, tenant=tenant):
            await self.unschedule(queue, schedule.name, tenant=tenant)
        async for batch in self.batches(queue, tenant=tenant, state="open"):
            await self.batch(queue, batch.id).close()
        await self.cancel_all(queue, tenant=tenant)
        async with aclosing(self.dead_letters(queue).purge_all(tenant=tenant)) as sweeps:
            async for _ in sweeps:
                pass

    async def repair_queue(self, queue: str) -> Repair:
        """Rebuild a queue's derived data; returns how many tasks and tenants it has.

        Raises: NotFound; Unavailable at the end if a partition did not answer.
        """
        async for step in self.repairing_queue(queue):
            last = step
        return last

    async def repairing_queue(self, queue: str) -> AsyncGenerator[Repair, None]:
        """Repair a queue step by step; each step takes about a second.

        Raises: NotFound; Unavailable at the end if a partition did not answer.
        """
        away: list[AwayPartition] = []
        number, outcome = None, "more"
        while outcome == "more":
            reply = await self.request("repair", {"queue": queue, "number": number})
            step = lazy.bodies.structure(reply, lazy.queues.Repair)
            yield step
            number, outcome = step.number, step.outcome
            away += step.away
        check_whole(queue, away, "repaired")

    async def tenants(self, queue: str, *, tenant: str | None = None) -> list[TenantState]:
        """List the tenants of a queue, or the one of a name: an empty list if there is none.

        Raises: NotFound; Unavailable if some tenants cannot be read, since their partition does not answer.
        """
        found, away = await read_tenants(self, queue, tenant)
        check_whole(queue, away)
        return found

    async def set_weight(self, queue: str, tenant: str, weight: float, *, if_version: str | None = None) -> float:
        """Set a tenant's weight (0.001 to 10,000; 1 by default); returns the previous one.

        `if_version`: only if this is still the version that `tenants` returns. Raises: StaleVersion.
        """
        body = {"queue": queue, "tenant": tenant, "weight": check_weight(weight)} | _based_on(if_version)
        return float((await self.request("set_weight", body))["previous"])

    async def limits(self, queue: str, tenant: str | None = None) -> HeldLimits:
        """Read the limits and opening hours of a tenant, or (None) the common ones."""
        return lazy.bodies.structure(
            await self.request("limits", {"queue": queue, "tenant": tenant}), lazy.operator_views.HeldLimits
        )

    async def set_limits(
        self, /, queue: str, tenant: str | None = None, *, if_version: str | None = None, **limits: Unpack[LimitOptions]
    ) -> Limits:
        """Set limits of a tenant, or (None) the defaults for all tenants; returns the previous limits.

        0: no limit; None: the default for all tenants. See `fairq.model.limits.Limits`. `if_version`: only if this is
        still the version that `limits` returns. Raises: StaleVersion.
        """
        body = {"queue": queue, "tenant": tenant, "limits": limits} | _based_on(if_version)
        return lazy.bodies.structure((await self.request("set_limits", body))["previous"], lazy.limits.Limits)

    async def set_opening_hours(
        self, queue: str, text: str, tenant: str | None = None, *, if_version: str | None = None
    ) -> str:
        """Say when a tenant, or (None) the whole queue, is open, such as `mon-fri 8:00-17:00 Europe/Copenhagen`.

        An empty text: always. Returns the text before. `if_version`: only if this is still the `hours_version` that
        `limits` returns. Raises: BadRequest, StaleVersion.
        """
        body = {"queue": queue, "tenant": tenant, "opening_hours": text} | _based_on(if_version)
        return str((await self.request("set_opening_hours", body))["previous"])

    async def pause(self, queue: str, tenant: str | None = None) -> bool:
        """Start no more tasks of a tenant, or (None) of the queue; returns whether it was paused before."""
        return _was(await self.request("set_paused", named(queue, tenant) | {"paused": True}))

    async def resume(self, queue: str, tenant: str | None = None) -> bool:
        """Undo `pause`; returns whether it was paused before."""
        return _was(await self.request("set_paused", named(queue, tenant) | {"paused": False}))

    async def report(self, queue: str, tenant: str) -> Report:
        """Read for what a tenant's tasks waited in the last minutes, at all servers with workers, and its share."""
        return lazy.bodies.structure(
            (await self.request("report", named(queue, tenant)))["report"], lazy.waiting.Report
        )

    async def history(
        self, queue: str, period: Period = "1h", *, tenants: Sequence[str] | None = None, since_ms: int = 0
    ) -> History:
        """Read a queue's history, of all servers, for the last `1h` (by 10 s), `24h` (1 min) or `14d` (15 min).

        `tenants`: up to 20 names; None: the ten with the most service. One row more sums up the others; its name is
        empty. `since_ms`: only intervals that begin then or later. A queue without history has no intervals.
        """
        body = named(queue) | {"period": lazy.history.PERIOD.check(period, "period"), "since_ms": since_ms}
        if tenants is not None:
            body["tenants"] = lazy.history.TENANTS.check(list(tenants), "tenants")
        return lazy.bodies.structure(await self.request("history", body), lazy.history.History)

    async def add_webhook(
        self, queue: str, url: str, *, name: str = "", fan_out: bool = False, secrets: Sequence[str] = ()
    ) -> str:
        """Post tasks to a URL: all of a queue, or those of one name; returns `created`, `changed` or `same`.

        `fan_out`: each of these tasks is copied for it when it is taken. `secrets` sign the requests, the newest first;
        none: the worker's. Raises: BadRequest, TooLarge, StoreFull.
        """
        body = _webhook(queue, url, name)
        body |= {
            "has_fan_out": check_flag(fan_out, "fan_out"),
            "secrets": lazy.webhooks.SECRETS.check(list(secrets), "secrets"),
        }
        return str((await self.request("add_webhook", body))["outcome"])

    async def remove_webhook(self, queue: str, url: str, *, name: str = "") -> bool:
        """Post no more tasks to a URL; tasks for it fail. Returns whether it was registered."""
        return _was(await self.request("remove_webhook", _webhook(queue, url, name)))

    async def pause_webhook(self, queue: str, url: str, *, name: str = "") -> bool:
        """Make the tasks of a webhook wait; returns whether they did already. Raises: NotFound."""
        return _was(await self.request("set_webhook_paused", _webhook(queue, url, name) | {"paused": True}))

    async def resume_webhook(self, queue: str, url: str, *, name: str = "") -> bool:
        """Undo `pause_webhook`; returns whether it was paused. Raises: NotFound."""
        return _was(await self.request("set_webhook_paused", _webhook(queue, url, name) | {"paused": False}))

    async def webhooks(self, queue: str) -> list[Webhook]:
        """List the webhooks of a queue, oldest first, without their secrets."""
        reply = await self.request("webhooks", named(queue))
        return lazy.bodies.rows(lazy.webhooks.Webhook, reply["webhooks"])

    async def workers(self) -> list[WorkerState]:
        """List the workers that are attached to any server, up to some seconds ago.

        Raises: Unavailable if those of some servers cannot be read.
        """
        reply = await self.request("workers")
        if servers := reply.get("unanswered"):
            raise Unavailable(lazy.texts.say_unlisted(servers))
        return lazy.bodies.rows(lazy.workers.WorkerState, reply["workers"])

    async def worker_tasks(self, worker: str, count: int = 100) -> WorkerTasks:
        """Read up to `count` (500) workers of a name, and as many of their tasks, held longest. Raises: NotFound."""
        return lazy.bodies.structure(
            await self.request("worker_tasks", {"worker": worker, "count": count}), lazy.workers.WorkerTasks
        )

    async def attempts(
        self,
        queue: str,
        *,
        state: AttemptState | None = None,
        tenant: str | None = None,
        name: str | None = None,
        error: str | None = None,
        count: int = 100,
    ) -> Attempts:
        """Read up to `count` (500) attempts that run and match, the oldest first, and as many of the last that ended.

        `error`: text that the error contains. Servers keep the last 500 ends of a queue in memory, so they are gone
        when a server stops.
        """
        which = {"state": state, "tenant": tenant, "name": name, "error": error}
        body = named(queue) | {"count": count} | {key: value for key, value in which.items() if value is not None}
        return lazy.bodies.structure(await self.request("attempts", body), lazy.attempts.Attempts)

    async def drain_worker(self, worker: str) -> int:
        """Let the workers of a name finish their running tasks, and end; returns how many there are."""
        return int((await self.request("drain_worker", {"worker": worker}))["workers"])

    async def create_token(self, record: TokenRecord, *, expires_in_ms: int | None = None) -> None:
        """Register a token by its hash (`fairq.tokens.make_token` makes one), which may expire. Raises: BadRequest."""
        given = ("id", "role", "hash", "tenant", "queues", "label")
        body = {name: value for name in given if (value := getattr(record, name))}
        await self.request("create_token", body | ({} if expires_in_ms is None else {"expires_in_ms": expires_in_ms}))

    async def list_tokens(self) -> list[TokenRow]:
        """List tokens, without their hashes, and when each was last used (to a minute)."""
        return lazy.bodies.rows(lazy.operator_views.TokenRow, (await self.request("list_tokens"))["tokens"])

    async def revoke_token(self, id: str) -> None:
        """Delete a token; its connections end within a second. Raises: NotFound."""
        await self.request("revoke_token", {"id": id})

    async def audit(
        self,
        *,
        token: str = "",
        verb: str = "",
        queue: str = "",
        tenant: str = "",
        since_ms: int = 0,
        by_tenants: bool = False,
        cursor: str = "",
        after: str = "",
        count: int = 100,
    ) -> AuditPage:
        """Read changes by operators that match, the newest first; `cursor` goes on with the page before in time.

        `by_tenants`: those by tenants and producers instead. `after`: the `newest` of an earlier page; reads those
        that have ended since, the oldest first. `since_ms`: a time. The newest 10,000 or so are kept.
        """
        lazy.rules.check_fields(lazy.audit.AuditFilter(token, verb, queue, tenant, since_ms))
        body: dict[str, Any] = {"since_ms": since_ms, "by_tenants": by_tenants, "count": count}
        texts = {"token": token, "verb": verb, "queue": queue, "tenant": tenant, "cursor": cursor, "after": after}
        body |= {name: text for name, text in texts.items() if text}
        return lazy.bodies.structure(await self.request("audit", body), lazy.audit.AuditPage)


@asynccontextmanager
async def open_operator(
    url: str | Sequence[str] | None = None,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> AsyncIterator[OperatorClient]:
    """Open an operator's client, as `fairq.open_client` opens a tenant's."""
    from fairq.client.driver import connected

    async with connected(url, token, tls) as driver:
        yield OperatorClient(driver, timeout)
