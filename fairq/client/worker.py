"""The SDK for workers, under asyncio and trio."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from attrs import define, field

from fairq.client import lazy
from fairq.client.hooks import Hook, Hooks, Middleware
from fairq.client.option_signatures import lists_options
from fairq.client.task import Function, Task
from fairq.errors import BadRequest
from fairq.model.checks import check_name

if TYPE_CHECKING:
    import ssl

    from anyio.abc import TaskStatus

    from fairq.client.declaring import Declared
    from fairq.client.kinds import QueueHandlers
    from fairq.client.worker_run import WorkerRun
    from fairq.model.option_tables import Seconds, TaskOptions

Ended = Literal["", "burst", "drained", "stopped", "cancelled", "failed"]

F = TypeVar("F", bound=Function)
H = TypeVar("H", bound=Hook)
M = TypeVar("M", bound=Middleware)


def default_name() -> str:
    """Name this worker after its machine and process, so that no other has the name."""
    node = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in platform.node() or "worker")
    return f"{node[:44]}-{os.getpid()}-{os.urandom(3).hex()}"


def default_app() -> str:
    """Name an app after the module that makes it, also where that is the program itself: `jobs`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("", "fairq"):
        frame = frame.f_back
    found = frame.f_globals
    name, spec = found.get("__name__", ""), found.get("__spec__")
    if name == "__main__":
        name = spec.name if spec else os.path.splitext(os.path.basename(found.get("__file__", "worker")))[0]
    return str(name)[:128]


@define(eq=False)
class Worker:
    """An app of handlers, by queue and by the name of the task, that is attached to the service while `run` runs.

    `concurrency` tasks run at once; plain functions run in threads, and cannot be cancelled when their lease is lost:
    they keep their slot until they return.
    `prefetch` more tasks are held, and begin as soon as a slot is free: for tasks of a few ms, or where the server is
    far away. To the queue they are running: they count in limits and shares, and a tenant that comes later waits.
    A worker that comes back under its `name` ends its older connections: what they held is ready again at once. No two
    workers may have the same.

    It runs under asyncio and trio. `url` and `token` are those of FAIRQ_URL and FAIRQ_TOKEN unless they are given.

    `queues` are those to work for, if they are not all that have handlers; those with tasks share the slots.
    `app` is the name under which its schedules are declared: that of the module which makes it, unless it is given.
    `log_tasks` gives each task a line in the log when it ends. `counts` says how they ended: `done`, `retry`,
    `postponed`, `dead`, `lost` (the lease, while the handler ran), `cancelled` (the task was) or `released` (the worker
    was cancelled).
    """

    url: str | Sequence[str] | None = None
    token: str | None = field(default=None, repr=False)
    concurrency: int = 10
    name: str = field(factory=default_name)
    tls: ssl.SSLContext | None = None
    queues: Sequence[str] | None = None
    log_tasks: bool = False
    prefetch: int = 0
    app: str = field(factory=default_app)
    counts: Counter[str] = field(factory=Counter, init=False)
    handlers: dict[str, QueueHandlers] = field(factory=dict, init=False)
    hooks: Hooks = field(factory=Hooks, init=False)
    declared: list[Declared] = field(factory=list, init=False)
    _run: WorkerRun = field(init=False)  # the newest run
    _is_stopped: bool = field(default=False, init=False)  # in advance of the first run

    def task(
        self,
        queue: str,
        *,
        name: str = "",
        timeout: float | None = None,
        max_attempts: int = 0,
        retry_base: Seconds | None = None,
        retry_cap: Seconds | None = None,
    ) -> Callable[[F], F]:
        """Register a handler of a queue; `async def` runs in the event loop, `def` in a thread.

        With a `name` it is for the tasks that were enqueued under it (`enqueue(..., name="welcome")`); without, for all
        others, whatever their name. A task that no handler takes has failed: another worker may have one.

        A handler that has run for `timeout` seconds, or the queue's `run_timeout_ms`, has failed: `async def` is
        cancelled; the thread of a `def` goes on, and keeps its slot until the function returns.

        `max_attempts`: how many attempts a task has here; if the task or its queue allows fewer, those. The last
        failure rejects it. `retry_base` and `retry_cap`, in place of the task's and the queue's: the longest wait after
        the first failure, which doubles with each further one, and the longest of all (1 s, an hour if one is given).
        """
        from fairq.client.kinds import Handler, QueueHandlers, check_function
        from fairq.client.retries import Retries
        from fairq.client.timeouts import check_timeout
        from fairq.client.typed import payload_type_of

        if callable(queue):
            raise BadRequest('a handler needs its queue: @app.task("emails")', field="queue")
        check_name(queue, "queue")
        lazy.tasks.SHORT_NAME.check(name, "name")
        timeout_s, retries = check_timeout(timeout), Retries.of(max_attempts, retry_base, retry_cap)

        def register(function: F) -> F:
            check_function(function)
            kinds = self.handlers.get(queue) or QueueHandlers(queue)
            payload_type = payload_type_of(function, Task)
            kinds.add(Handler(function, queue, name, payload_type, timeout_s, retries, self.hooks))
            self.handlers[queue] = kinds
            return function

        return register

    @lists_options
    def schedule(
        self,
        cron: str | None = None,
        *,
        tenant: str | Sequence[str],
        payload: Any = None,
        schedule: str = "",
        queue: str | None = None,
        zone: str | None = None,
        every: Seconds | None = None,
        misfire: str = "skip",
        **options: Unpack[TaskOptions],
    ) -> Callable[[F], F]:
        """Declare a schedule for this handler: as `Client.schedule`, for one tenant or each of several.

        The schedule is named as the function, unless `schedule` says otherwise. `queue`: of a function that is the
        handler of several. Workers put the schedule when they start. A worker with another form of it in its code, or
        none, changes or deletes it once no worker of the `app` has declared the old form for 15 seconds. Schedules
        made by hand, or by another app, stay. The worker's token names the tenants: `fairq tokens create worker
        --tenant`.

            @app.task("reports")
            @app.schedule("0 3 * * *", tenant="acme", zone="Europe/Copenhagen")
            async def nightly(task): ...

        Raises: BadRequest.
        """
        from fairq.client.declaring import Declared
        from fairq.client.schedules import terms_of
        from fairq.model.checks import check_tenant

        tenants = (tenant,) if isinstance(tenant, str) else tuple(tenant)
        for each in tenants:
            check_tenant(each)
        if bool(cron) == (every is not None):
            raise BadRequest("give cron or every", field="cron")
        terms = terms_of(payload, cron, zone, every, misfire, options)

        def register(function: F) -> F:
            name = lazy.schedules.check_schedule_name(schedule or getattr(function, "__name__", ""), "schedule")
            self.declared.append(Declared(function, queue, tenants, name, terms))
            return function

        return register

    def on_startup(self, function: H) -> H:
        """Call a function when `run` begins, ahead of the first task; `def` in a thread.

        Several are called in the order registered. If one fails, `run` raises that, and takes no task. Each handler
        begins in a copy of the context that they leave: it sees the context variables that they set.
        """
        self.hooks.startup.append(function)
        return function

    def on_shutdown(self, function: H) -> H:
        """Call a function when `run` ends, after the last task, unless on_startup failed; `def` in a thread.

        Several are called the last one first. Together they have five seconds, also where `run` is cancelled.
        """
        self.hooks.shutdown.append(function)
        return function

    def middleware(self, function: M) -> M:
        """Run a function with one `yield` around each task; `def` where the handler runs, `async def` in the loop.

        So `def` runs in the handler's own thread, with its thread-locals, or in the event loop around `async def`.
        Several nest, the first outside, and those of `async def` outside the others. What the handler raises comes out
        of the `yield`, as in contextlib: what it raises instead decides, and a task whose error it takes is done. The
        timeout of a plain handler counts for `def` around it too, and is seen by `async def` only. An exception that is
        kept has no traceback when its task has ended. To send errors to Sentry, for example:

            @app.middleware
            async def report(task):
                with sentry_sdk.new_scope() as scope:
                    scope.set_tag("queue", task.queue)
                    try:
                        yield
                    except fairq.Retry:
                        raise
                    except Exception as error:
                        sentry_sdk.capture_exception(error)
                        raise
        """
        self.hooks.add(function)
        return function

    async def run(self, *, burst: bool = False, task_status: TaskStatus[None] | None = None) -> None:
        """Work until cancelled or stopped. Cancelled: handlers are cancelled too, and their tasks given back.

        So they are if a signal raises an exception, as ctrl-C does. What handlers raise or cancel ends them only.

        `burst`: stop by itself when it holds nothing and a claim on its queues finds nothing; what is delayed, also for
        its next attempt, is not waited for.
        Raises: BadRequest without handlers; Unauthorized or Forbidden when the server will not have the token;
        Superseded when a worker that came later attached under this name; Unavailable when a burst has no server for
        30 s, or is stopped before it had one; and what a function of on_startup raises.
        """
        from fairq.client.worker_run import WorkerRun

        self._run = WorkerRun(self)
        if self._is_stopped:
            self._is_stopped = False
            self._run.stop("stopped")
        await self._run.run(burst, task_status)

    @property
    def ended(self) -> Ended:
        """Why the newest run takes no more tasks; empty while it does.

        Its burst is over, an operator has drained it, `stop` was called, it was cancelled, or it has failed.
        """
        return self._run.ended if hasattr(self, "_run") else ""

    @property
    def running(self) -> int:
        """How many tasks run."""
        return len(self._run.runners.running) if hasattr(self, "_run") else 0

    @property
    def is_leaving(self) -> bool:
        """True once the newest run has cancelled all handlers, at its end; it waits for those that go on."""
        return hasattr(self, "_run") and self._run.is_leaving

    def tell_running(self) -> int:
        """Log each task that runs, for a process that ends without waiting for it; returns how many."""
        return self._run.runners.tell_running() if hasattr(self, "_run") else 0

    def stop(self) -> None:
        """Take no more tasks; `run` returns when the held tasks are settled, and at once if it has not begun."""
        if hasattr(self, "_run"):
            self._run.stop("stopped")
        else:
            self._is_stopped = True
