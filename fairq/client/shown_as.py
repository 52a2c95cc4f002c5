"""Show options one by one to people, editors and type checkers, of a method that takes them as `**options`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def shown_as(shown: F) -> Callable[[Callable[..., Any]], F]:
    """Give a method the signature and docstring of a function that is never called, from a module `signatures`."""

    def show(method: Any) -> Any:
        method.__doc__, method.__signature__ = shown.__doc__, signature(shown)
        return method

    return show
