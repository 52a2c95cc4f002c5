"""Checks a backup line by line, before anything is written: each field by its rule, and references between lines.

A line is refused, naming its number and field, unless servers could have stored it for their callers. It may occur
twice, as a key may when a store is read, but not with other content.
"""

from __future__ import annotations

from hashlib import blake2b

from attrs import define, field

from fairq.errors import BadRequest, FairqError, TooLarge
from fairq.model.rules import QUEUE
from fairq.store.backup_kinds import KINDS, Kind, Line, check_home, check_payload
from fairq.store.backup_ledger import Key, Ledger
from fairq.store.backup_lines import load
from fairq.store.backup_rules import REQUIRED, LineField, check_object
from fairq.store.loading import BAD, Counts, parts_of
from fairq.store.partitions import check_place
from fairq.store.placing import Placing

_HEAD = LineField("kind", REQUIRED, lambda value, field: value, "kind")
_QUEUE = LineField("queue", REQUIRED, QUEUE.check, "queue")
_PLACE = LineField("queue", REQUIRED, check_place, "queue")
_OF_REGISTRY = ("queue", "partitions")
_OF = {name: [_QUEUE] if name in _OF_REGISTRY else [_PLACE] if kind.is_of_queue else [] for name, kind in KINDS.items()}
_FIELDS = {name: [_HEAD, *_OF[name], *kind.fields] for name, kind in KINDS.items()}
_REMEMBERED = 10_000


@define(eq=False)
class Checking:
    """Checks the lines of one backup, in their order; methods raise BadRequest, or TooLarge, for the first bad one."""

    placing: Placing = field(factory=Placing)  # it learns from the lines
    counts: Counts = field(factory=Counts, init=False)
    _number: int = field(default=1, init=False)  # of the line; the first one is the header
    _ledger: Ledger = field(factory=Ledger, init=False)
    _sought: set[Key] = field(factory=set, init=False)  # some that the ledger knows of: tasks have few tenants
    _leases: dict[str, tuple[int, int]] = field(factory=dict, init=False)  # the greatest of a queue, and its line
    _last_leases: dict[str, int] = field(factory=dict, init=False)
    _streams: dict[tuple[str, str], tuple[int, int] | None] = field(factory=dict, init=False)  # last ids; None: empty

    def add(self, text: bytes) -> None:
        """Check a line by itself, and remember its references to others."""
        self._number += 1
        kind = ""
        try:
            line, payload = load(text)
            kind = _kind_of(line)
            _check(KINDS[kind], line, payload)
            self._check_stream(kind, line)
            parts_of(line, payload)
        except (FairqError, *BAD) as error:
            raise refused(error, self._number, kind) from None
        self.counts.add(kind)
        self.placing.learn(line)
        self._note(KINDS[kind], line, text)

    def end(self) -> None:
        """Check that all references have their lines, and that no lease's number will be given again."""
        for queue, (lease, number) in self._leases.items():
            if lease > self._last_leases.get(queue, lease):
                error = BadRequest("lease must not be greater than last_lease of its queue", field="lease")
                raise refused(error, number, "")
        if fault := min(self._ledger.faults(), default=None, key=lambda fault: fault.line):
            raise refused(fault.error, fault.line, "")
        self.placing.end()

    def _check_stream(self, kind: str, line: Line) -> None:
        """Check that the entries of a stream come in their order: a store takes no others."""
        if kind not in ("event", "audit"):
            return
        of = (line.get("queue", ""), line["tenant" if kind == "event" else "stream"])
        first, _, second = line["id"].partition("-")
        id = (int(first), int(second))
        if of in self._streams and ((last := self._streams[of]) is None or id <= last or not line["fields"]):
            raise BadRequest("id must be greater than that of the entry before", field="id")
        self._streams[of] = id if line["fields"] else None

    def _note_leases(self, line: Line) -> None:
        """Remember the greatest number of a lease in a queue, and the last one that was given."""
        queue = line.get("queue", "")
        if line["kind"] == "state":
            self._last_leases[queue] = line.get("last_lease", 0)
        elif line["kind"] in ("task", "done"):
            lease = max(part.get("lease", 0) for part in (line, line.get("run", {}), line.get("death", {})))
            if lease > self._leases.get(queue, (0, 0))[0]:
                self._leases[queue] = lease, self._number

    def _note(self, kind: Kind, line: Line, text: bytes) -> None:
        self._note_leases(line)
        things, seeks = kind.things(line), kind.seeks(line)
        if things:
            content = int.from_bytes(blake2b(text, digest_size=8).digest())
            for key in things:
                self._ledger.hold(key, content, self._number)
        if kind.is_of_queue and line["kind"] not in _OF_REGISTRY:
            seeks.append(("queue", ("state", line["queue"])))
        for name, key in seeks:
            if key not in self._sought:
                self._sought.add(key)
                self._ledger.seek(key, name, self._number)
        if len(self._sought) >= _REMEMBERED:
            self._sought.clear()


def _kind_of(line: Line) -> str:
    kind = line.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadRequest(f"unknown kind {kind!r:.80}", field="kind")
    return kind


def _check(kind: Kind, line: Line, payload: bytes | None) -> None:
    if payload is not None and not kind.max_payload:
        raise BadRequest("unknown field 'payload'", field="payload")
    if "payload" in line:
        raise BadRequest("payload must stand last in its line", field="payload")
    check_object(line, _FIELDS[line["kind"]])
    kind.check(line)
    check_home(kind, line)
    if kind.max_payload:
        check_payload(payload, kind.max_payload)


def refused(error: Exception, number: int, kind: str) -> BadRequest | TooLarge:
    """Return the error of a line: its number, and the field and code of the broken rule."""
    field, what = "line", f"{type(error).__name__}: {error}"
    if isinstance(error, FairqError):
        field, what = error.field or "line", error.message
    found = TooLarge if isinstance(error, TooLarge) else BadRequest
    of = f" ({kind})" if kind else ""
    return found(f"the backup cannot be used: line {number}{of}: {what}", field=field)
