"""Dialogs of the dashboard: their fields, what they tell, and what their forms send back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

from attrs import frozen

from fairq.errors import BadRequest
from fairq.server.web.dashboard.view import Context, View

_MAX_FIELDS = 1_000

Form = dict[str, list[str]]


@frozen
class Field:
    """A field of a dialog: its name, and a note (its unit, what 0 means)."""

    name: str
    label: str
    note: str = ""
    kind: str = "number"
    value: Any = ""
    choices: Sequence[str] = ()


@frozen
class Action:
    """One change: its dialog's title, button and text, and the function that carries it out."""

    name: str
    title: str
    button: str
    describe: Callable[[View], Awaitable[Context]]
    handle: Callable[[View, Form], Awaitable[str]]
    is_dangerous: bool = False


def read_form(body: bytes) -> Form:
    """Read a form that was sent. Raises: BadRequest."""
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise BadRequest("the form cannot be read", field="body") from None


def form_of(text: str, *fields: Field, **hidden: Any) -> Context:
    """Make the text of a dialog."""
    return {"text": text, "fields": fields, "hidden": {name: value for name, value in hidden.items() if value}}


def one(form: Form, name: str) -> str:
    """Return a field of a form; empty if it was left empty."""
    return form.get(name, [""])[0].strip()


def as_number(form: Form, name: str, kind: type[int] | type[float] = int) -> Any:
    """Return a field as a number, None if it was left empty. Raises: BadRequest, naming it."""
    text = one(form, name)
    try:
        return kind(text) if text else None
    except ValueError:
        raise BadRequest(f"{name} must be a number, not {text!r:.40}", field=name) from None
