"""`fairq enqueue`: one task, or one task or request per line of a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from attrs import asdict
from cyclopts import Parameter

from fairq.cli.options import Json, Moment, Server, Span, run_with, seconds_of
from fairq.cli.output import print_json
from fairq.cli.payloads import read_payload
from fairq.cli.task_flags import TaskFlags
from fairq.errors import BadRequest

if TYPE_CHECKING:
    from fairq.cli.lines import Stored
    from fairq.client.client import Client
    from fairq.client.tasks import EnqueuedTask
    from fairq.model.option_tables import TaskOptions

_RESULT_TTL = 3600.0  # s, added to --wait: how long the result is kept


def enqueue(
    queue: str,
    payload: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    *,
    id: str | None = None,
    tenant: str | None = None,
    delay: Span | None = None,
    start_at: Moment | None = None,
    expires_at: Moment | None = None,
    dedupe_payload: Annotated[bool, Parameter(negative=())] = False,
    replace: Annotated[bool, Parameter(negative=())] = False,
    name: str | None = None,
    batch: str | None = None,
    result_ttl: Span | None = None,
    flags: TaskFlags | None = None,
    lines: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    text_lines: Annotated[bool, Parameter(negative=())] = False,
    requests: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    max_running: int = 0,
    wait: Span | None = None,
    json: Json = False,
    server: Server | None = None,
) -> int:
    """Enqueue one task, or one task or request per line of a file, and print its id or the id of all.

    With --wait, exits with 1 if the task, or any task of the file, fails. If a command with --lines or --requests is
    interrupted, repeat it with the same file and --id: it adds the missing tasks. It counts the tasks in its batches,
    so no other program may add tasks to them.

    Example: `fairq enqueue emails '{"to": "ada"}' --delay 5m --wait 60`

    Parameters
    ----------
    queue
        Queue to enqueue into.
    payload
        Any JSON value; `-` reads it from standard input.
    id
        Id of the task or batch; with --requests, the beginning of its batches' ids, at most 30 characters. Repeating
        the command with the same id makes no second task or batch (default: a new id).
    tenant
        Tenant of the task; for producers' tokens only.
    delay
        Time before the task may start, as 90, 90s, 5m, 1h30m or 7d (default: 0).
    start_at
        Or when it may start: 2027-01-31T09:00:00+01:00 (with its time zone), or seconds since 1970.
    expires_at
        Time from which it no longer starts, likewise; instead of --expires-in (default: never).
    dedupe_payload
        Use the payload's hash as the dedupe key. With --lines, an interrupted command sends all lines again when
        repeated, so it needs a --dedupe-period from the first run on.
    replace
        If a task with the dedupe key waits, cancel it, and enqueue this one.
    name
        The kind of task, passed to its worker (default: none).
    batch
        Id of an open batch of the queue that the task joins.
    result_ttl
        Time to keep the handler's return value, as 1h (default: not at all; with --wait, an hour more than that).
    lines
        File with one payload, as JSON, per line (`-`: standard input): the tasks of one batch; empty lines are skipped.
    text_lines
        Read each line as text, not as JSON.
    requests
        File with one request per line (`-`: standard input), each a batch of its own; blank lines are skipped. A line
        is JSON, `{"priority": 3, "max_running": 2, "tasks": [...]}`, or plain: a priority and sub-requests, as in
        `3:first:second`.
    max_running
        Tasks of the batch that may run at once; with --requests, of each batch that does not say (0: no limit).
    wait
        Time to wait for the task's result, which is printed, or for all tasks to end, as 90 or 5m (default: no wait).
    """
    _check_source(payload, lines, requests)
    given = flags or TaskFlags()
    if (lines or requests) is not None and tenant is not None:
        raise BadRequest("--tenant cannot be used with a file: use a token of that tenant", field="tenant")
    if (lines or requests) is not None and given.dedupe_key is not None:
        raise BadRequest(
            "--dedupe-key cannot be used with a file: only the first task would be made", field="dedupe_key"
        )
    if requests is not None and (dedupe_payload or given.dedupe_period is not None):
        raise BadRequest("--dedupe-payload and --dedupe-period cannot be used with --requests", field="dedupe_payload")
    if lines is None and text_lines:
        raise BadRequest("--text-lines needs --lines", field="lines")
    if payload is None and batch is not None:
        raise BadRequest("--batch cannot be used with a file: its tasks form their own batch", field="batch")
    if payload is not None and max_running:
        raise BadRequest("--max-running needs --lines or --requests", field="max_running")
    options: TaskOptions = {**asdict(given), "delay": delay, "replace": replace, "name": name}  # type: ignore[typeddict-item]
    options |= {"dedupe_payload": dedupe_payload, "start_at": start_at, "expires_at": expires_at, "batch": batch}
    options["result_ttl"] = result_ttl
    wait_s = seconds_of(wait)
    if payload is None:

        async def store(client: Client) -> Stored:
            common: dict[str, Any] = {"id": id, "max_running": max_running, "options": options, "wait": wait_s}
            if lines is None:
                from fairq.cli.requests import enqueue_requests

                return await enqueue_requests(client, queue, str(requests), **common)
            from fairq.cli.lines import enqueue_lines

            return await enqueue_lines(client, queue, lines, as_text=text_lines, **common)

        return _print_stored(run_with(server, store), json, is_waited_for=wait_s is not None)
    value = read_payload(str(payload))
    if wait_s is not None and result_ttl is None:
        options["result_ttl"] = wait_s + _RESULT_TTL

    async def work(client: Client) -> tuple[EnqueuedTask, Any]:
        task = await client.enqueue(queue, value, id=id, tenant=tenant, **options)
        return task, None if wait_s is None else await task.result(timeout=wait_s)

    task, result = run_with(server, work)
    row: dict[str, Any] = {"id": task.id, "queue": task.queue}
    row |= {"duplicate": task.is_duplicate, "replaced": task.is_replaced}
    if task.duplicate_of_state:
        row["duplicate_of_state"] = task.duplicate_of_state
        print(f"fairq: not enqueued: task {task.id} is known, and is {task.duplicate_of_state}", file=sys.stderr)
    if json:
        print_json(row if wait is None else row | {"result": result})
    elif wait is None:
        print(task.id)
    else:
        print_json(result)
    return 0


def _check_source(payload: str | None, lines: str | None, requests: str | None) -> None:
    given = sum(source is not None for source in (payload, lines, requests))
    if not given:
        raise BadRequest("missing payload: give a payload, --lines or --requests", field="payload")
    if given > 1:
        raise BadRequest("give one of a payload, --lines and --requests", field="payload")


def _print_stored(stored: Stored, as_json: bool, *, is_waited_for: bool) -> int:
    if as_json:
        print_json(stored.row)
    else:
        print(stored.id)
        if stored.summary:
            print(stored.summary, file=sys.stderr)
    return int(is_waited_for and stored.counts.done < stored.counts.total)
