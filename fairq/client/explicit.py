"""Options that `help()` and editors show one by one, though a function takes them as `**options`.

Type checkers read `Unpack[TaskOptions]`; people, and what asks `inspect`, find each name with its type and meaning,
from the same table. So no function repeats the list, and none lacks an option.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, cleandoc, signature
from typing import Any, TypeVar, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])


def _default_of(kind: Any) -> bool | None:
    return False if kind is bool else None


@cache
def explicit(table: type) -> Callable[[F], F]:
    """Make a decorator that shows the options of a TypedDict in a function's signature and docstring.

    Each type of the table is `Annotated[type, "what it means"]`.
    """
    hints = get_type_hints(table, include_extras=True)
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_default_of(hint.__origin__), annotation=hint.__origin__)
        for name, hint in hints.items()
    ]
    told = "\n".join(["Options:", *(f"    {name}: {hint.__metadata__[0]}" for name, hint in hints.items())])

    def show(function: F) -> F:
        found = signature(function)
        own = [each for each in found.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        function.__signature__ = found.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        function.__doc__ = f"{cleandoc(function.__doc__ or '')}\n\n{told}"
        return function

    return show
