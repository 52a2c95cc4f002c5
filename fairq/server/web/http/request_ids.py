"""The id of a request: what its answer and the server's log share. A caller may bring its own in X-Request-Id."""

from __future__ import annotations

import re
import secrets

from attrs import define
from starlette.datastructures import Headers
from starlette.types import Scope

from fairq.errors import FairqError

HEADER = "x-request-id"
_NOTE = "fairq.note"  # its name in the scope
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+/=@-]{0,127}")


@define
class Note:
    """A request's id, and the code of the error that it was answered with, if any."""

    id: str
    code: str = ""


def note_of(scope: Scope) -> Note | None:
    """Return the note of a request; None outside of a listener, in tests."""
    found: Note | None = scope.get(_NOTE)
    return found


def failure_of(scope: Scope) -> FairqError:
    """Make the error of a request in which the server failed: it names the request."""
    note = note_of(scope)
    return FairqError("internal error; the server's log says why" + (f": request {note.id}" if note else ""))


def sane_id(brought: str) -> str:
    """Return the id that a request brought, if it is sane, else a new one."""
    return brought if _SANE.fullmatch(brought) else secrets.token_hex(8)


def begin(scope: Scope, headers: Headers) -> Note:
    """Give a request its note."""
    note = Note(sane_id(headers.get(HEADER, "")))
    scope[_NOTE] = note
    return note
