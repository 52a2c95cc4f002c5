"""The event loop that async handlers are written for, by the imports of their modules or by their errors.

A task uses up an attempt when its handler fails. A fault that every task would meet in this worker is the worker's: it
gives its tasks back, which costs them no attempt, and ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from fairq.client.typed import names_around
from fairq.errors import SettingsError
from fairq.io.exception_groups import unwrap
from fairq.io.interrupts import bearing_its_own_code

if TYPE_CHECKING:
    from fairq.client.kinds import Handler

Loop = Literal["asyncio", "trio"]

_MOST_CAUSES = 10  # of an error, that are looked at
_NO_LOOP = ("no running event loop", "There is no current event loop")  # says asyncio
_NOT_OURS = "trio.run received unrecognized yield message"  # says trio of what asyncio waits for
_THREADS = {  # the functions that call others in a thread, which has no loop
    ("concurrent.futures.thread", "run"),
    ("anyio._backends._asyncio", "run"),
    ("trio._threads", "worker_fn"),
}


def choose_loop(handlers: Iterable[Handler]) -> Loop:
    """Return the loop for async handlers: trio if their modules import that, else asyncio.

    Raises: SettingsError if they import both.
    """
    imported: dict[str, Handler] = {}
    for handler in handlers:
        if handler.is_async:
            imported |= dict.fromkeys(_loops_in(names_around(handler.function)), handler)
    if len(imported) == 2:
        both = " and ".join(f"{loop} (as {handler.title} does)" for loop, handler in sorted(imported.items()))
        raise SettingsError(f"modules of async handlers import {both}: say --loop asyncio or --loop trio", field="loop")
    return "trio" if "trio" in imported else "asyncio"


def _loops_in(names: Mapping[str, Any]) -> set[str]:
    found = set()
    for value in list(names.values()):
        if isinstance(value, ModuleType):
            found.add(value.__name__.partition(".")[0])
        elif isinstance(value, type | FunctionType | BuiltinFunctionType):
            found.add(str(value.__module__).partition(".")[0])
    return found & {"asyncio", "trio"}


def fault_of(error: BaseException, loop: str, handler: Handler) -> SettingsError | None:
    """Return the worker's error if an async handler failed because it is written for another event loop."""
    is_fault = False
    with bearing_its_own_code():
        is_fault = any(_is_of_another_loop(cause, loop) for cause in islice(_causes_of(error), _MOST_CAUSES))
    if not is_fault:
        return None
    other = "asyncio" if loop == "trio" else "trio"
    return SettingsError(
        f"handler {handler.title} of queue {handler.queue} is written for {other}, and this worker runs {loop}:"
        f" start it with --loop {other}",
        field="loop",
    )


def _causes_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        error = unwrap(error)
        yield error
        error = error.__cause__


def _is_of_another_loop(error: BaseException, loop: str) -> bool:
    if not isinstance(error, RuntimeError | AttributeError | TypeError):
        return False
    module, at = "", error.__traceback__
    while at is not None:
        module = str(at.tb_frame.f_globals.get("__name__"))
        if (module, at.tb_frame.f_code.co_name) in _THREADS:
            return False
        at = at.tb_next
    raised_by = module.partition(".")[0]
    if loop == "asyncio":
        return raised_by == "trio"
    return raised_by == "asyncio" or str(error).startswith((*_NO_LOOP, _NOT_OURS))
