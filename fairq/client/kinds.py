"""The handlers of a worker's queues: one for each kind of task, by the tasks' names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial, update_wrapper
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from math import inf
from types import MethodType, MethodWrapperType
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from fairq.client.hooks import Around, Hooks
from fairq.client.retries import AS_QUEUED, Retries
from fairq.client.timeouts import within
from fairq.client.typed import MAX_VALUES, PayloadType, has_more_values
from fairq.errors import BadRequest
from fairq.io.forks import OwnProcess
from fairq.log import name_of

if TYPE_CHECKING:
    from fairq.client.threads import Threads

_MAX_SHOWN = 20  # names in an error


class NoHandler(Exception):
    """The queue has no handler for tasks of this name here. The attempt fails; another worker may have one."""


def _layers(function: Any) -> Iterator[Any]:
    """Go from a callable to what it calls: that of a partial or a method, an object's `__call__`, and so on."""
    while True:
        yield function
        if isinstance(function, partial):
            function = function.func
        elif isinstance(function, MethodType | staticmethod):
            function = function.__func__
        else:
            call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
            if isinstance(call, MethodWrapperType | None):  # Python's own
                return
            function = call


def check_function(function: Any) -> None:
    """Check that a handler runs when it is called with a task. Raises: BadRequest."""
    has_yield = any(isgeneratorfunction(each) or isasyncgenfunction(each) for each in _layers(function))
    if has_yield or not callable(function):
        raise BadRequest(f"a handler must be a function without `yield`, not {function!r:.80}", field="function")
    with suppress(ValueError, TypeError):  # some builtins and mocks have no signature
        takes = signature(function, follow_wrapped=False)
        try:
            takes.bind(None)
        except TypeError as error:
            message = f"handler {name_of(function)} must accept exactly one argument, the task: {error}"
            raise BadRequest(message, field="function") from None


@frozen(eq=False)
class Handler:
    """The function for tasks of one kind: `async def` runs in the event loop, `def` in a thread."""

    function: Callable[[Any], Any]
    queue: str
    name: str = ""
    payload_type: PayloadType | None = None
    timeout_s: float = inf
    retries: Retries = AS_QUEUED
    hooks: Hooks = field(factory=Hooks)
    is_async: bool = field(init=False)
    _in_thread: Callable[[Any], Any] = field(init=False)

    @is_async.default
    def _is_async(self) -> bool:
        return any(map(iscoroutinefunction, _layers(self.function)))

    @_in_thread.default
    def _named(self) -> Callable[[Any], Any]:
        return update_wrapper(partial(self._call), self.function)  # it goes by the function's name

    @property
    def title(self) -> str:
        """Its function's name."""
        return name_of(self.function)

    def run(self, task: Any, threads: Threads, run_timeout_s: float = inf) -> Awaitable[Any]:
        """Run the function inside the app's middleware, for no longer than its timeout and the queue's.

        Raises, when awaited: what it does; Misfit, TimedOut.
        """
        is_limited = self.timeout_s != inf or run_timeout_s != inf
        if self.is_async and not is_limited and self.payload_type is None and not self.hooks.has_middleware:
            found: Awaitable[Any] = self.function(task)  # the most frequent case, at no cost
            return found
        return self._run(task, threads, min(self.timeout_s, run_timeout_s))

    async def _run(self, task: Any, threads: Threads, limit_s: float) -> Any:
        if self.payload_type is not None:
            task = await self._typed(self.payload_type, task, threads)
        if self.hooks.has_middleware:
            return await self._around(iter(self.hooks.around), task, threads, limit_s)
        call = partial(self.function, task)
        return await (within(limit_s, call) if self.is_async else threads.run(self._in_thread, task, limit_s))

    async def _around(self, middleware: Iterator[Around], task: Any, threads: Threads, limit_s: float) -> Any:
        for enter in middleware:  # nested calls, since an ExitStack would keep what they raise
            async with enter(task):
                with OwnProcess():  # a forked child does not run the code around it
                    return await self._around(middleware, task, threads, limit_s)
            return None  # the middleware suppressed the error
        if not self.is_async:
            return await threads.run(self._in_thread, task, limit_s)
        with ExitStack() as stack:
            self._enter(stack, task)
            return await within(limit_s, partial(self.function, task))
        return None  # a middleware suppressed the error

    def _call(self, task: Any) -> Any:
        if not self.hooks.inside:
            return self.function(task)
        with ExitStack() as stack:
            self._enter(stack, task)
            return self.function(task)
        return None

    def _enter(self, stack: ExitStack, task: Any) -> None:
        for enter in self.hooks.inside:
            stack.enter_context(enter(task))
            stack.enter_context(OwnProcess())  # a forked child does not run the code around it

    async def _typed(self, payload_type: PayloadType, task: Any, threads: Threads) -> Any:
        """Return the task with its payload converted to the function's type; a long payload in a thread."""
        if has_more_values(task.payload, MAX_VALUES):
            return evolve(task, payload=await threads.run(payload_type.make, task.payload))
        return evolve(task, payload=payload_type.make(task.payload))


@define(eq=False)
class QueueHandlers:
    """The handlers of one queue, by the task's name; the handler of the empty name takes all other tasks."""

    queue: str
    by_name: dict[str, Handler] = field(factory=dict, init=False)
    _unknown: Handler = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._unknown = Handler(self._refuse, self.queue)

    def add(self, handler: Handler) -> None:
        """Add a handler. Raises: BadRequest."""
        if handler.name in self.by_name:
            kind = f" for tasks named {handler.name!r}" if handler.name else ""
            raise BadRequest(f"queue {self.queue} already has a handler{kind}", field="queue")
        self.by_name[handler.name] = handler

    def find(self, name: str) -> Handler:
        """Return the handler of tasks of a name; one that raises NoHandler if there is none."""
        return self.by_name.get(name) or self.by_name.get("") or self._unknown

    async def _refuse(self, task: Any) -> None:
        names = sorted(self.by_name)
        more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        known = ", ".join(map(repr, names[:_MAX_SHOWN])) + more
        kind = f"for tasks named {task.name!r:.200}" if task.name else "for tasks without a name"
        raise NoHandler(f"queue {self.queue} has no handler {kind} in this worker; it has handlers for {known}")
