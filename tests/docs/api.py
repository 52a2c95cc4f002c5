"""The page of the SDK's reference, made of its docstrings: `python -m tests.docs.api > fairq/docs/api.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import fairq
import fairq.sync
import fairq.testing
import fairq.testing.sync

HEAD = """\
# Reference

Every public name of the SDK, made of its docstrings. `fairq.sync` has the same clients with the same methods, which
block. Times are seconds; a `timedelta` is taken too where an option says so."""
PARTS = {
    "Clients": ("open_client", "Client", "EnqueuedTask", "Batch", "EventStream", "DeadLetters"),
    "Workers": ("Worker", "Task", "Retry", "Postpone", "Reject"),
    "Operators": ("open_operator", "OperatorClient"),
    "Errors": (),
}
RAISED = (fairq.Retry, fairq.Postpone)
SHOWN: dict[str, str] = {}  # the function whose options are listed, by the options
OTHERS = {"DeadLetters": fairq.client.dead_letters.DeadLetters}
INSIDE = {"ask_of_each", "request_until", "clock", "sleep_until", "pass_turn", "wait_task", "enqueue_tasks", "log"}


def page() -> str:
    SHOWN.clear()
    errors = sorted(name for name in fairq.__all__ if _is_error(getattr(fairq, name)))
    parts = [HEAD]
    for title, names in PARTS.items():
        parts.append(f"## {title}")
        if title == "Errors":
            parts.append(_errors(errors))
        for name in names:
            parts += _of_name(f"fairq.{name}", OTHERS.get(name) or getattr(fairq, name))
    parts.append("## In tests")
    parts += _of_name("fairq.testing.run", fairq.testing.run)
    parts += _of_name("fairq.testing.MemoryService", fairq.testing.MemoryService)
    parts += _of_name("fairq.testing.TrackedTask", fairq.testing.TrackedTask)
    parts += _of_name("fairq.testing.sync.run", fairq.testing.sync.run)
    return "\n\n".join(parts) + "\n"


def _is_error(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, fairq.FairqError)


def _errors(names: list[str]) -> str:
    rows = ["All are `fairq.FairqError`.", "", "| error | code | when |", "|---|---|---|"]
    for name in names:
        kind = getattr(fairq, name)
        found = " ".join((inspect.getdoc(kind) or "").split())
        code = f"`{kind.code}`" if "code" in vars(kind) else "their own"
        rows.append(f"| `{name}` | {code} | {found} |".replace("\\", ""))
    return "\n".join(rows)


def _of_name(name: str, found: Any) -> Iterator[str]:
    yield f"### `{name}{_signature(found) if _is_called(found) else ''}`"
    yield _shown(found)
    if not isinstance(found, type):
        return
    for member, value in _members(found):
        if isinstance(value, property):
            yield f"#### `.{member}`"
        else:
            yield f"#### `{'await ' * inspect.iscoroutinefunction(inspect.unwrap(value))}.{member}{_signature(value)}`"
        yield _shown(value)


def _is_called(found: Any) -> bool:
    """True if programs call it: the objects of other classes come from calls."""
    return not isinstance(found, type) or found is fairq.Worker or ("__init__" in vars(found) and found in RAISED)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Find what a class offers, beside what the clients of other roles offer too."""
    known = dir(fairq.Client) if kind is not fairq.Client and issubclass(kind, fairq.Client) else []
    for base in kind.__mro__:
        for name, value in vars(base).items():
            value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if name.startswith("_") or name in INSIDE or name in known or getattr(kind, name) is not vars(base)[name]:
                continue
            if isinstance(value, FunctionType | property):
                yield name, value


def _shown(found: Any) -> str:
    """Write a docstring; its options as a list, or by naming the function that has the same ones."""
    text, mark, options = (inspect.getdoc(found.fget if isinstance(found, property) else found) or "").partition(
        "\n\nOptions:\n"
    )
    if not mark:
        return text
    first = SHOWN.setdefault(options, found.__qualname__)
    if first != found.__qualname__:
        return f"{text}\n\nOptions: as in `{first}`."
    rows = [line.strip().partition(": ") for line in options.splitlines()]
    return f"{text}\n\nOptions:\n\n" + "\n".join(f"- `{name}`: {meaning}" for name, _, meaning in rows)


def _signature(found: Any) -> str:
    """Write a signature; options that the docstring lists are `**options`."""
    options = (inspect.getdoc(found) or "").partition("\nOptions:\n")[2]
    listed = {line.strip().partition(":")[0] for line in options.splitlines()}
    parts: list[str] = []
    has_star = False
    for name, each in inspect.signature(found).parameters.items():
        if name == "self" or name.startswith("_") or name in listed:
            continue
        if each.kind is each.KEYWORD_ONLY and not has_star:
            parts, has_star = [*parts, "*"], True
        stars = "**" if each.kind is each.VAR_KEYWORD else "*" if each.kind is each.VAR_POSITIONAL else ""
        default = "" if each.default is each.empty else f"={_written(each.default)}"
        parts.append(stars + name + default)
    return f"({', '.join([*parts, *(['**options'] if listed else [])])})"


def _written(default: Any) -> str:
    text = repr(default)
    return "…" if text.startswith("<") or "NOTHING" in text else text


if __name__ == "__main__":
    print(page(), end="")
