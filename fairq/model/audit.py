"""The audit's record of a change: who made it, from where, when, and what it changed."""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

from attrs import field, frozen

from fairq.model.rules import MOMENT, matching, or_empty
from fairq.model.token_rules import TOKEN_ID

UNKNOWN, BEGUN = "unknown", "begun"  # outcomes of changes that their servers have not ended
TEXT_BYTES = 1_000  # a longer target, new value or previous value is cut
TOKEN = or_empty(TOKEN_ID)
VERB = or_empty(
    matching(re.compile(r"[a-z_]{1,40}\Z"), "the type of a frame, such as set_weight", "Pause", "a" * 41, "set weight")
)
PLACE = matching(
    re.compile(r"(0|[1-9][0-9]{0,15})-(0|[1-9][0-9]{0,9})\Z"),
    "the one of the previous page",
    *("", "1", "1-", "-1", "x-1", "1-1 ", "1-" + "1" * 11),
)
NO_CHANGE = "0-0"  # the place of the newest change where there is none


@frozen
class Change:
    """A change that was asked for.

    `outcome`: `ok`; the code of the error by which it was refused, or failed; `begun`: it is under way, or its server
    has died; `unknown`: it has been `begun` for minutes, and may or may not have been carried out. `via`: `websocket`,
    `http`, `dashboard` or `store` (a command that used the store itself). `token` is empty for development tokens and
    commands that need none; `queue` and `tenant` are empty where the change is not of one.
    """

    id: str
    at_ms: int
    token: str
    label: str
    role: str
    address: str
    via: str
    verb: str
    queue: str
    tenant: str
    target: str
    outcome: str
    new: Any = None
    previous: Any = None
    result: Any = None


class Draft(NamedTuple):
    """A change that is about to be carried out: the fields that it is found by, and the others as JSON."""

    token: str
    verb: str
    queue: str
    tenant: str
    rest: bytes

    def named(self) -> list[str | bytes]:
        """Return its fields as a stream entry has them: name, value, ..."""
        return ["token", self.token, "verb", self.verb, "queue", self.queue, "tenant", self.tenant, "change", self.rest]


@frozen
class AuditPage:
    """Changes that have ended, the newest first (after a change: the oldest first), and those that have only begun.

    `cursor`: where the next older page begins; None at the oldest. `newest`: where to continue for later changes.
    """

    changes: list[Change]
    begun: list[Change] = field(factory=list)
    cursor: str | None = None
    newest: str = ""


@frozen
class AuditFilter:
    """A filter of changes; empty fields match all. `queues` are the queues of the caller's token."""

    token: Annotated[str, TOKEN] = ""
    verb: Annotated[str, VERB] = ""
    queue: str = ""
    tenant: str = ""
    since_ms: Annotated[int, MOMENT] = 0
    queues: frozenset[str] | None = None

    def takes(self, row: dict[str, str]) -> bool:
        """True if the filter matches a change, as it is stored."""
        if self.queues is not None and row["queue"] not in self.queues:
            return False
        return all(getattr(self, name) in ("", row[name]) for name in ("token", "verb", "queue", "tenant"))


def cut(text: str, most: int = TEXT_BYTES) -> str:
    """Return a text without control characters, cut to `most` bytes."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    packed = clean.encode(errors="replace")
    return clean if len(packed) <= most and len(text) <= most else packed[: most - 3].decode(errors="ignore") + "…"
