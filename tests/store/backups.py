"""Lines of backups for tests, of every kind, as a dump writes them; and stores that are loaded from lines."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import redis
import trio

from fairq.store.backup_check import Checking
from fairq.store.backup_file import read_lines
from fairq.store.backup_lines import dump, load
from fairq.store.backup_rules import fields_of
from fairq.store.dumping import write_lines
from fairq.store.loading import Loading
from fairq.store.partitions import place_in, places_of
from fairq.store.placing import Placing
from tests.upgrade.make import FOLDER, WALKED
from tests.upgrade.served import write_served

BACKUP = FOLDER / "backup-20.jsonl.gz"
_MORE: list[dict[str, Any]] = [  # what the walk has come by without leaving any
    {"kind": "token_use", "id": "66669528e6dc", "value": 1795683277123},
    {"kind": "cancelling", "queue": WALKED, "id": "dan/b1", "at": 1735689681150},
    {"kind": "result", "queue": WALKED, "id": "ada/id4", "until": 1795686876481, "value": '{"ok":[1.5,null,"é"]}'},
    {"kind": "kept", "queue": WALKED, "id": "ada/id4", "of": "r", "tag": 1, "bytes": 444, "until": 1795686876481},
    {
        "kind": "batch_result", "queue": WALKED, "batch": "ada/b2", "id": "ada/id4", "until": 1795686876481, "order": 3,
    },
    {"kind": "audit", "stream": "begun", "id": "1795683908097-0", "fields": {}},
    {"kind": "fire", "queue": WALKED, "id": "dan/s1", "at": "inf"},
    {"kind": "declared", "queue": WALKED, "id": "dan/s1", "at": 1735689680150},
    {
        "kind": "schedule", "queue": WALKED, "tenant": "dan", "id": "s1", "app": "jobs", "paused": 1, "misfire": 0,
        "next_at": 1735689680150, "last_fired_at": 0, "timing": {"every": 0, "zone": "UTC", "cron": "0 3 * * *"},
    },
]  # fmt: skip
_TEMPLATE = (
    b'{"kind":"template","queue":"mail","id":"dan/s1","options":null,"payload":{"payload":[1,",\\"payload\\":"]}}'
)


@cache
def good_lines() -> tuple[bytes, ...]:
    """Return the lines of a backup that a restore takes, of every kind."""
    with tempfile.TemporaryDirectory() as folder:
        write_served(BACKUP, to := Path(folder) / "served", WALKED)
        with to.open("rb") as file:
            _, *lines = read_lines(file)
    found = [*(_whole(line) for line in lines), *(orjson.dumps(line) for line in _MORE), _TEMPLATE]
    return (*found, *_partitioned(found))


def _partitioned(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines of a queue with partitions that has the tasks of `emails`."""
    places = places_of("many", 2)
    found = [
        b'{"kind":"queue","queue":"many","made":"1795683276160 "}',
        b'{"kind":"partitions","queue":"many","count":2}',
    ]
    for text in lines:
        line, payload = load(text)
        if line.get("queue") != "emails":
            continue
        if line["kind"] == "state":
            found += [dump(line | {"queue": place}) for place in places]
        elif line["kind"] in ("tenant", "task"):
            tenant = line["account"]["name"] if line["kind"] == "tenant" else line["tenant"]
            found.append(dump(line | {"queue": place_in(places, tenant)}, payload))
    return found


def check(lines: Sequence[bytes], placing: Placing | None = None) -> None:
    """Check lines as a restore does."""
    checking = Checking(placing or Placing())
    for line in lines:
        checking.add(line)
    checking.end()


_FLAT = {
    "state": "QUEUE", "task": "HEADER", "done": "MARK", "batch": "BATCH", "schedule": "SCHEDULE", "webhook": "WEBHOOK",
    "opening_hours": "HOURS", "template": "TEMPLATE", "slot": "SLOT",
}  # fmt: skip
_INNER = {
    "account": "ACCOUNT",
    "details": "DETAILS",
    "run": "RUN",
    "death": "DEATH",
    "books": "BOOKS",
    "options": "OPTIONS",
}


def _fill(values: dict[str, Any], record: str) -> None:
    for each in fields_of(record):
        empty = {"settings": {}, "books": None, "options": None, "waits": []}.get(each.name, each.nothing)
        if each.name != "more":
            values.setdefault(each.name, empty)
        elif values.get("more") == "":  # a dump leaves it out
            del values["more"]


def whole(text: bytes) -> tuple[Any, bytes | None]:
    """Read a line, with the defaults of the fields that it lacks."""
    line, payload = load(text)
    if record := _FLAT.get(line["kind"]):
        _fill(line, record)
    for inner in (line, line.get("account", {})):
        for name, record in _INNER.items():
            if isinstance(inner.get(name), dict) and (line["kind"], name) != ("task", "options"):
                _fill(inner[name], record)
    for row in line.get("rows", ()):
        _fill(row, "SLOT_ROW")
    return line, payload


def _whole(text: bytes) -> bytes:
    return dump(*whole(text))


Calls = Callable[..., Awaitable[Any]]


def _run(client: redis.Redis, work: Callable[[Calls], Awaitable[None]]) -> None:
    """Let something use a store by plain commands."""
    connection = redis.Connection(**client.connection_pool.connection_kwargs | {"protocol": 2})

    async def call(*words: Any) -> Any:
        connection.send_command(*(words[:3] if words[0] == "SET" else words))  # not until a time by the store's clock
        return connection.read_response()

    try:
        trio.run(work, call)
    finally:
        connection.disconnect()


def dumped(client: redis.Redis) -> list[bytes]:
    """Return the lines of a store."""
    lines = list[bytes]()
    _run(client, lambda call: write_lines(call, lines.append))
    return lines


def reloaded(client: redis.Redis, lines: Sequence[bytes], placing: Placing | None = None) -> list[bytes]:
    """Load lines into an empty store, and dump what it has then."""

    async def load_all(call: Calls) -> None:
        loading = Loading(call, placing=placing or Placing())
        for line in lines:
            await loading.add(line)
        await loading.end()

    client.flushdb()
    _run(client, load_all)
    return dumped(client)
