"""From a method of the async SDK to one that blocks.

The async method's object stands in `_inner`. Its coroutine waits for nothing but a `fairq.client.caller.Caller`; that
of threads blocks inside, so that the coroutine ends in its first step.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from fairq.client import lazy

if TYPE_CHECKING:
    import ssl

    from fairq.sync.driver import Driver

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W")


def finish(step: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never waits for an event loop, and return its result."""
    try:
        step.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        step.close()
    raise RuntimeError("a call of fairq.sync waited for an event loop: a fault of fairq")


def call(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Make a method that blocks."""

    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return finish(method(self._inner, *args, **kwargs))

    return update_wrapper(blocking, method)


def call_for(
    wrap: Callable[[R], W], method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[Any, P], W]:
    """Make a method that blocks, and makes an object for threads of the result."""

    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(finish(method(self._inner, *args, **kwargs)))

    return update_wrapper(blocking, method)


def make(wrap: Callable[[R], W], method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], W]:
    """Make a method of one that is not async, and makes an object for threads of the result."""

    def made(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(method(self._inner, *args, **kwargs))

    return update_wrapper(made, method)


def steps(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Any, P], Generator[R, None, None]]:
    """Make a generator that blocks."""

    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        inner = method(self._inner, *args, **kwargs)
        return _steps(inner)

    return update_wrapper(blocking, method)


def _steps(inner: AsyncGenerator[R, None]) -> Generator[R, None, None]:
    try:
        while True:
            try:
                step = finish(inner.__anext__())
            except StopAsyncIteration:
                return
            yield step
    finally:
        finish(inner.aclose())


def driver_to(url: str | Sequence[str] | None, token: str | None, tls: ssl.SSLContext | None) -> Driver:
    """Open a driver, which is imported here: a program that only imports fairq.sync need not pay for it."""
    with lazy.importing:
        from fairq.sync.driver import Driver

    lazy.load()
    return Driver.to(url, token, tls)


class Same(Generic[R]):
    """An attribute that is the async object's."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> R:
        value: R = self if instance is None else getattr(instance._inner, self._name)  # type: ignore[assignment]
        return value
