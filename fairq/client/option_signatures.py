"""List the options of a method that takes them as `**options`, for `help()` and the reference.

Editors and type checkers read the table itself, which the annotation names: `Unpack[TaskOptions]`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, cleandoc, signature
from typing import Any, TypeVar, get_type_hints

from fairq.model import option_tables

F = TypeVar("F", bound=Callable[..., Any])


def lists_options(method: F) -> F:
    """Write out the last parameter of a method, `**name: Unpack[Table]`, in its signature and docstring."""
    shown, doc = signature(method), [cleandoc(method.__doc__ or ""), "", "Options:"]
    *own, table = shown.parameters.values()
    listed, meanings = _listed(table.annotation.removeprefix("Unpack[").removesuffix("]"))
    method.__signature__ = shown.replace(parameters=[*own, *listed])  # type: ignore[attr-defined]
    method.__doc__ = "\n".join([*doc, *meanings])
    return method


@cache
def _listed(table: str) -> tuple[list[Parameter], list[str]]:
    hints = get_type_hints(getattr(option_tables, table), include_extras=True)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=False if hint.__origin__ is bool else None,
                  annotation=hint.__origin__)
        for name, hint in hints.items()
    ], [f"    {name}: {hint.__metadata__[0]}" for name, hint in hints.items()]  # fmt: skip
