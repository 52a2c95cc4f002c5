"""The calls of the async SDK for threads: the same names, options, errors and results.

Each class here stands before the one of its name in fairq.client, which has the text and the work of its methods; a
test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Self

from attrs import define, field

from fairq.client import batch, client, dead_letters, events, tasks
from fairq.client.requests import DEFAULT_TIMEOUT
from fairq.errors import TenantsRefused
from fairq.sync.blocking import P, R, Same, W, call, call_for, driver_to, finish, make, steps

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from fairq.client.tasks import T
    from fairq.model.events import Event
    from fairq.sync.driver import Driver


@define(repr=False)
class EnqueuedTask:
    """A task that the service has taken over; see `fairq.EnqueuedTask`."""

    _inner: tasks.EnqueuedTask

    id = Same[str]()
    queue = Same[str]()
    is_duplicate = Same[bool]()
    is_replaced = Same[bool]()
    duplicate_of_state = Same[str]()
    state = call(tasks.EnqueuedTask.state)
    cancel = call(tasks.EnqueuedTask.cancel)
    if TYPE_CHECKING:  # mypy knows no default of a type that `call` passes on

        def result(self, kind: type[T] | None = None, *, timeout: float | None = None) -> T:
            """Wait for what its handler returned."""
    else:
        result = call(tasks.EnqueuedTask.result)
    reschedule = call(tasks.EnqueuedTask.reschedule)

    def __repr__(self) -> str:
        return repr(self._inner)


def _enqueued(found: Sequence[tasks.EnqueuedTask]) -> list[EnqueuedTask]:
    return [EnqueuedTask(task) for task in found]


def enqueues(
    wrap: Callable[[R], W],
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
    kind: Callable[[Any], EnqueuedTask] = EnqueuedTask,
) -> Callable[Concatenate[Any, P], W]:
    """Make a method as `call_for` does; of the tasks that an error says were taken it makes objects of this kind."""

    def enqueuing(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> W:
        try:
            return wrap(finish(method(self._inner, *args, **kwargs)))
        except TenantsRefused as error:
            error.taken = [task and kind(task) for task in error.taken]
            raise

    return update_wrapper(enqueuing, method)


@define(repr=False)
class Batch:
    """An open batch; tasks are added until it is closed. See `fairq.Batch`."""

    _inner: batch.Batch

    id = Same[str]()
    queue = Same[str]()
    add = call_for(EnqueuedTask, batch.Batch.add)
    add_many = call_for(_enqueued, batch.Batch.add_many)
    close = call(batch.Batch.close)
    cancel = call(batch.Batch.cancel)
    state = call(batch.Batch.state)
    watch = steps(batch.Batch.watch)
    wait = call(batch.Batch.wait)

    def __repr__(self) -> str:
        return repr(self._inner)


@define(eq=False)
class EventStream(Iterator["Event"]):
    """An endless iterator over events, for one thread at a time; see `fairq.EventStream`."""

    _inner: events.EventStream

    queue = Same[str]()
    after = Same[int]()
    tenant = Same[str | None]()
    __next__ = call(events.EventStream.__anext__)


@define(eq=False)
class DeadLetters:
    """The dead letters of one queue; see `fairq.Client.dead_letters`."""

    _inner: dead_letters.DeadLetters

    queue = Same[str]()
    page = call(dead_letters.DeadLetters.page)
    pages = steps(dead_letters.DeadLetters.pages)
    walk = steps(dead_letters.DeadLetters.walk)
    show = call(dead_letters.DeadLetters.show)
    replay = call(dead_letters.DeadLetters.replay)
    purge = call(dead_letters.DeadLetters.purge)
    replay_all = steps(dead_letters.DeadLetters.replay_all)
    purge_all = steps(dead_letters.DeadLetters.purge_all)


@define(eq=False)
class Client:
    """A connection to the service that mends itself; any number of threads may use it, and share its frames.

    It connects at its first call, again when the connection is lost, and anew in a process that was forked off. Every
    call gives up as those of `fairq.Client` do, after the same time.
    """

    _inner: client.Client
    _driver: Driver = field(repr=False)

    timeout = Same[float]()
    enqueue = enqueues(EnqueuedTask, client.Client.enqueue)
    enqueue_many = enqueues(_enqueued, client.Client.enqueue_many)
    enqueue_tasks = enqueues(_enqueued, client.Client.enqueue_tasks)
    task = make(EnqueuedTask, client.Client.task)
    tasks = call(client.Client.tasks)
    cancel = call(client.Client.cancel)
    cancel_all = call(client.Client.cancel_all)
    cancelling_all = steps(client.Client.cancelling_all)
    reschedule = call(client.Client.reschedule)
    peek = call(client.Client.peek)
    why = call(client.Client.why)
    open_batch = call_for(Batch, client.Client.open_batch)
    batch = make(Batch, client.Client.batch)
    batches = steps(client.Client.batches)
    read_batches = call(client.Client.read_batches)
    events = make(EventStream, client.Client.events)
    read_events = call(client.Client.read_events)
    wait_task = call(client.Client.wait_task)
    dead_letters = make(DeadLetters, client.Client.dead_letters)
    schedule = call(client.Client.schedule)
    unschedule = call(client.Client.unschedule)
    pause_schedule = call(client.Client.pause_schedule)
    resume_schedule = call(client.Client.resume_schedule)
    schedules = call(client.Client.schedules)
    read_schedule = call(client.Client.read_schedule)
    request = call(client.Client.request)

    def close(self) -> None:
        """Close the connection; calls that wait, and later ones, fail with Closed."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_client(
    url: str | Sequence[str] | None = None,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Client:
    """Open a client for the URL of a server (or several of servers on one store); close it, or use it in a `with`.

    For threads, scripts, Django, Flask: its calls block. URL and token are those of FAIRQ_URL and FAIRQ_TOKEN unless
    they are given. A module may open it where there is no token: only its first call raises that.
    Raises: SettingsError for an invalid URL or token; RuntimeError inside an event loop.
    """
    driver = driver_to(url, token, tls)
    return Client(client.Client(driver, timeout), driver)
