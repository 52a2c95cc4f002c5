"""`fairq enqueue --lines`: one task per line of a file, all in one batch.

A task's id consists of the batch's id and the line's number, so repeating the command with the same `--id` continues
an interrupted one and makes no task twice. When the tenant reaches a quota, the command waits for room and continues.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import trio

from fairq.cli.output import progress
from fairq.errors import BadRequest, QuotaExceeded
from fairq.model.checks import MAX_BATCH

if TYPE_CHECKING:
    from fairq.client.batch import Batch
    from fairq.client.client import Client
    from fairq.client.options import TaskOptions
    from fairq.model.batches import BatchState

_ROOM_MS = 1000  # wait for room if the server does not say how long


@contextmanager
def _open_lines(path: str) -> Iterator[tuple[Iterable[bytes], int]]:
    """Open a file, or standard input (`-`); yields its lines and its size in bytes (0: unknown)."""
    if path == "-":
        yield sys.stdin.buffer, 0
        return
    try:
        with Path(path).open("rb") as file:
            yield file, Path(path).stat().st_size
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}", field="lines") from None


def _payload_of(line: bytes, number: int, *, as_json: bool) -> Any:
    try:
        return orjson.loads(line) if as_json else line.decode()
    except (orjson.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"line {number} is not {'JSON' if as_json else 'UTF-8'}: {error}", field="lines") from None


async def _add(batch: Batch, payloads: list[Any], ids: list[str], options: TaskOptions) -> None:
    """Add tasks, in smaller and smaller parts while they exceed the tenant's quota."""
    added, size = 0, len(ids)
    while added < len(ids):
        part = slice(added, added + size)
        try:
            await batch.add_many(payloads[part], ids=ids[part], **options)
            added += size
        except QuotaExceeded as error:
            size = max(1, size // 2)
            await trio.sleep((error.retry_in_ms or _ROOM_MS) / 1000)


async def enqueue_lines(
    client: Client,
    queue: str,
    path: str,
    *,
    id: str | None,
    max_running: int,
    as_json: bool,
    options: TaskOptions,
    wait: float | None,
) -> BatchState:
    """Open a batch, add the lines that are not empty, close it; returns its state, with `wait` (s) once complete."""
    with _open_lines(path) as (lines, size), progress(f"enqueue {queue}") as show:
        batch = await client.open_batch(queue, id=id, max_running=max_running, events=bool(options.get("events")))
        numbered = ((number, line.strip(b"\r\n")) for number, line in enumerate(lines, 1))
        filled = ((number, line) for number, line in numbered if line)
        added = taken = 0
        try:
            while some := list(islice(filled, MAX_BATCH)):
                payloads = [_payload_of(line, number, as_json=as_json) for number, line in some]
                await _add(batch, payloads, [f"{batch.id}-{number}" for number, _ in some], options)
                added, taken = added + len(some), taken + sum(len(line) + 1 for _, line in some)
                show(*((taken, max(size, taken)) if size else (added, 0)))
            await batch.close()
        except BaseException:
            print(f"{added} lines were added; to continue, repeat the command with --id {batch.id}", file=sys.stderr)
            raise
    return await (batch.state() if wait is None else batch.wait(timeout=wait))
