"""What each request does: checks that need more than the frame, then one call of the store.

No rule of the queue lives here (they are in lua/), only who may do it and how it is said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson
import trio
from attrs import NOTHING, asdict, fields

from fairq.errors import BadRequest, Draining, FairqError, Forbidden, NotFound, TooLarge
from fairq.model import (
    MAX_ATTEMPT,
    MAX_BATCH,
    MAX_CALLBACK_BYTES,
    MAX_CAP,
    MAX_CURSOR_CHARS,
    MAX_EVENT_ID,
    MAX_SPAN_MS,
    MAX_TIME_MS,
    WORKER_PATTERN,
    BatchState,
    DeadFilter,
    DeadLetter,
    EventPage,
    NewTask,
    Settlement,
    TaskState,
    bare_id,
    check_batch_id,
    check_fraction,
    check_full_id,
    check_int,
    check_name,
    check_progress_text,
    check_settings,
    check_task_id,
    check_weight,
    full_id,
)
from fairq.scopes import open_plain_nursery
from fairq.server.app import App
from fairq.server.limits import limits, set_limits, set_windows
from fairq.server.peer import Peer
from fairq.server.reports import tenant_report, why
from fairq.server.schedules import pause_schedule, resume_schedule, schedule, schedules, unschedule
from fairq.store import keys
from fairq.tokens import TokenRecord
from fairq.wire import messages as wire
from fairq.wire.messages import MAX_CREDIT, MAX_QUEUES, State
from fairq.wire.slots import Slots

Body = dict[str, Any]
T = TypeVar("T")
_BRIEF = tuple(field.name for field in fields(DeadLetter) if field.default is NOTHING)


async def enqueue(app: App, peer: Peer, request: wire.Enqueue) -> Body:
    """Store tasks of the token's tenant."""
    queue = peer.identity.check_queue(request.queue)
    tenant = peer.identity.tenant
    tasks = [
        NewTask(full_id(tenant, task.id), *task[1:-1], task.batch and full_id(tenant, task.batch))
        for task in request.tasks
    ]
    app.hint(queue)  # now: a claim that leaves right behind the tasks shares their turn of the store, and its fsync
    outcomes = [_bare_outcome(outcome) for outcome in await app.store.enqueue(queue, tenant, tasks)]
    for task in request.tasks:
        if task.delay_ms or task.start_at_ms:
            app.ticker.expect(queue, task.delay_ms)
    return {"outcomes": outcomes}


def _bare_outcome(outcome: str) -> str:
    """Spell the id behind `duplicate` as the tenant did."""
    word, _, first = outcome.partition(" ")
    return f"{word} {bare_id(first)}" if first else word


def _full_ids(peer: Peer, ids: Sequence[str], what: str = "ids") -> list[str]:
    """Read ids as their sender spells them: a tenant its own bare ones, an operator full ones."""
    if mine := peer.identity.tenant:
        return [full_id(mine, check_task_id(id, what)) for id in ids]
    return [check_full_id(id, what) for id in ids]


def _once(ids: list[str]) -> list[str]:
    if len(set(ids)) < len(ids):
        raise BadRequest("ids must name each task once", field="ids")
    return ids


async def tasks(app: App, peer: Peer, request: wire.Tasks) -> Body:
    """Tell what is known of tasks; a tenant hears only of its own."""
    queue, ids = peer.identity.check_queue(request.queue), _full_ids(peer, request.ids)
    states = await app.store.tasks(queue, ids)
    rows = [{name: value for name, value in asdict(state).items() if value not in ("", 0)} for state in states]
    return {"tasks": [{**row, "id": id} for row, id in zip(rows, request.ids, strict=True)]}


async def cancel(app: App, peer: Peer, request: wire.Cancel) -> Body:
    """Cancel tasks."""
    queue = peer.identity.check_queue(request.queue)
    return {"outcomes": await app.store.cancel(queue, _once(_full_ids(peer, request.ids)))}


async def reschedule(app: App, peer: Peer, request: wire.Reschedule) -> Body:
    """Give waiting tasks another start."""
    queue, ids = peer.identity.check_queue(request.queue), _once(_full_ids(peer, request.ids))
    delay_ms = check_int(request.delay_ms, "delay_ms", 0, MAX_SPAN_MS)
    start_at_ms = check_int(request.start_at_ms, "start_at_ms", 0, MAX_TIME_MS)
    if delay_ms and start_at_ms:
        raise BadRequest("give delay_ms or start_at_ms, not both", field="start_at_ms")
    outcomes = await app.store.reschedule(queue, ids, delay_ms=delay_ms, start_at_ms=start_at_ms)
    app.ticker.expect(queue, delay_ms)
    app.hint(queue)
    return {"outcomes": outcomes}


async def ended(app: App, peer: Peer, request: wire.Ended) -> Body:
    """Wait until one of these tasks has ended; tells of those that have."""
    queue, ids = peer.identity.check_queue(request.queue), _once(_full_ids(peer, request.ids))

    async def read() -> list[Body]:
        states, results = await app.store.tasks(queue, ids), await app.store.results(queue, ids)
        return [_end_of(*each) for each in zip(request.ids, states, results, strict=True)]

    def is_enough(rows: list[Body]) -> bool:
        return any(row["state"] in _ENDS for row in rows)

    rows = await _wait(app, peer, queue, [keys.END + id for id in ids], request.timeout_ms, read, is_enough)
    return {"tasks": _fitting([row for row in rows if row["state"] in _ENDS], "result")}


_ENDS = ("done", "dead", "cancelled", "unknown")


def _end_of(id: str, state: TaskState, result: bytes | None) -> Body:
    row: Body = {"id": id, "state": state.state, "reason": state.reason, "error": state.error}
    row = {name: value for name, value in row.items() if value}
    if result is not None:  # it outlives the memory of the task
        row |= {"state": "done", "result": orjson.Fragment(result)}
    return row


async def _wait(
    app: App,
    peer: Peer,
    queue: str,
    messages: Sequence[str],
    timeout_ms: int,
    read: Callable[[], Awaitable[T]],
    is_enough: Callable[[T], bool],
) -> T:
    """Read now, and if it takes waiting, again and again. Raises: Draining when the server stops meanwhile."""
    check_int(timeout_ms, "timeout_ms", 0, wire.MAX_WAIT_MS)
    if not timeout_ms:
        return await read()
    deadline = trio.current_time() + timeout_ms / 1000
    watchers = await app.watch(queue)
    with peer.waiting():
        found = await watchers.wait(messages, read, lambda it: is_enough(it) or app.is_draining, deadline)
    if app.is_draining and not is_enough(found):
        raise Draining("the server is stopping; connect again")
    return found


def _own_batch(peer: Peer, id: str) -> str:
    if mine := peer.identity.tenant:
        return full_id(mine, check_batch_id(id))
    return check_full_id(id)


@contextmanager
def _named(id: str) -> Iterator[None]:
    """Name the batch that the store does not have as the request does."""
    try:
        yield
    except NotFound:
        raise NotFound(f"there is no batch {id}", field="id") from None


async def open_batch(app: App, peer: Peer, request: wire.OpenBatch) -> Body:
    """Open a batch."""
    queue, id = peer.identity.check_queue(request.queue), _own_batch(peer, request.id)
    check_int(request.cap, "cap", 0, MAX_CAP)
    callbacks = []
    for name in ("on_complete", "on_success", "on_death"):
        payload = getattr(request, name)
        callbacks.append(b"" if payload is None else orjson.dumps(payload))
        if len(callbacks[-1]) > MAX_CALLBACK_BYTES:
            raise TooLarge(f"a callback's payload has {MAX_CALLBACK_BYTES} bytes at most", field=name)
    is_new = await app.store.open_batch(queue, peer.identity.tenant, id, request.cap, callbacks, events=request.events)
    return {"outcome": "ok" if is_new else "duplicate"}


async def close_batch(app: App, peer: Peer, request: wire.CloseBatch) -> Body:
    """Add no more tasks to a batch."""
    queue, id = peer.identity.check_queue(request.queue), _own_batch(peer, request.id)
    with _named(request.id):
        before = await app.store.close_batch(queue, id)
    app.hint(queue)
    return {"before": before}


async def cancel_batch(app: App, peer: Peer, request: wire.CancelBatch) -> Body:
    """Close a batch and cancel its tasks."""
    queue, id = peer.identity.check_queue(request.queue), _own_batch(peer, request.id)
    with _named(request.id):
        before = await app.store.cancel_batch(queue, id)
    app.ticker.expect(queue, 0)
    return {"before": before}


async def batch(app: App, peer: Peer, request: wire.Batch) -> Body:
    """Tell how far a batch is, now or when it is complete."""
    queue, id = peer.identity.check_queue(request.queue), _own_batch(peer, request.id)

    async def read() -> BatchState:
        (state,) = await app.store.batches(queue, [id])
        if state is None:
            raise NotFound(f"there is no batch {request.id}", field="id")
        return state

    def is_complete(state: BatchState) -> bool:
        return state.state == "complete"

    state = await _wait(app, peer, queue, [keys.BATCH + id], request.timeout_ms, read, is_complete)
    return {"batch": {**asdict(state), "id": request.id}}


async def events(app: App, peer: Peer, request: wire.Events) -> Body:
    """Tell what came into a tenant's feed after an event, now or when there is something."""
    queue, count = peer.identity.check_queue(request.queue), check_int(request.count, "count", 1, MAX_BATCH)
    tenant, after = _own_tenant(peer, request.tenant), check_int(request.after, "after", 0, MAX_EVENT_ID)

    async def read() -> EventPage:
        return await app.store.events(queue, tenant, after, count)

    def is_enough(page: EventPage) -> bool:
        return bool(page.events)

    page = await _wait(app, peer, queue, [keys.EVENT + tenant], request.timeout_ms, read, is_enough)
    rows = [{name: value for name, value in asdict(event).items() if value not in ("", 0)} for event in page.events]
    if peer.identity.tenant:
        for row in rows:
            row |= {name: bare_id(row[name]) for name in ("task", "batch") if name in row}
    return {"oldest": page.oldest, "newest": page.newest, "events": rows}


def _own_tenant(peer: Peer, tenant: str | None) -> str:
    """Return whose things are meant: the token's tenant's, or the one's whom an operator names."""
    mine = peer.identity.tenant
    if mine and tenant not in (None, mine):
        raise Forbidden("a tenant sees its own only", field="tenant")
    return mine or check_name(tenant, "tenant")


async def peek(app: App, peer: Peer, request: wire.Peek) -> Body:
    """Show a tenant's next tasks; fewer than asked for when their payloads are long."""
    queue, count = peer.identity.check_queue(request.queue), check_int(request.count, "count", 1, MAX_BATCH)
    waiting = await app.store.peek(queue, _own_tenant(peer, request.tenant), count)
    rows = [asdict(task) for task in waiting]
    if peer.identity.tenant:
        for row in rows:
            row["id"] = bare_id(row["id"])
    return {"tasks": _fitting(rows)}


def _fitting(rows: Sequence[Body], long: str = "payload") -> list[Body]:
    """Return as many rows with something long as a reply has room for, at least one."""
    fitting: list[Body] = []
    room = wire.MAX_MESSAGE_BYTES
    for row in rows:
        room -= len(orjson.dumps(row.get(long)))
        if fitting and room < 0:
            break
        fitting.append(row)
    return fitting


def _check_worker(name: str) -> None:
    if not WORKER_PATTERN.match(name):
        raise BadRequest("worker must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'", field="worker")


async def attach(app: App, peer: Peer, request: wire.Attach) -> Body:
    """Begin to feed a worker, which may bring along leases from an earlier connection."""
    _check_worker(request.worker)
    if not 1 <= len(request.queues) <= MAX_QUEUES:
        raise BadRequest(f"queues must name 1 to {MAX_QUEUES}", field="queues")
    queues = tuple(dict.fromkeys(peer.identity.check_queue(queue, "queues") for queue in request.queues))
    check_int(request.credit, "credit", 0, MAX_CREDIT)
    if request.weights and len(request.weights) != len(request.queues):
        raise BadRequest("weights must be as many as queues, or none", field="weights")
    weights = {
        queue: check_weight(weight, "weights") for queue, weight in zip(request.queues, request.weights, strict=False)
    }
    check_int(request.started_at_ms, "started_at_ms", 0, MAX_TIME_MS)
    if any(lease.queue not in queues for lease in request.leases):
        raise BadRequest("leases must be of the queues attached to", field="leases")
    outcomes, brought = ["gone"] * len(request.leases), {}
    for queue in queues:
        at = [i for i, lease in enumerate(request.leases) if lease.queue == queue]
        held = [Settlement("extend", request.leases[i].id, request.leases[i].attempt) for i in at]
        if held:
            for i, outcome in zip(at, await app.store.settle(queue, held), strict=True):
                outcomes[i] = outcome
                if outcome == "ok":
                    brought[queue, request.leases[i].id] = request.leases[i].attempt
    if request.started_at_ms:
        await app.roster.take_name(peer.identity.token_id, request.worker, request.started_at_ms, brought.items())
    if peer.session.state is State.DRAINING:
        raise Draining("the server is stopping; connect again")
    if peer.session.state is not State.OPEN:
        raise BadRequest("the connection is attached already", field="type")
    app.move_leases(brought, peer)
    peer.name, peer.queues, peer.started_at_ms = request.worker, queues, request.started_at_ms
    peer.session.state, peer.session.credit = State.ATTACHED, request.credit
    if weights:
        peer.session.slots = Slots(weights, lambda queue: app.dispatchers[queue].may_have_work)
    app.attach(peer)
    return {"leases": outcomes}


async def credit(app: App, peer: Peer, request: wire.Credit) -> Body:
    """Change how many tasks the worker may hold."""
    peer.session.credit = check_int(request.credit, "credit", 0, MAX_CREDIT)
    app.credit_changed(peer)
    return {}


def _check_attached(peer: Peer, queue: str) -> None:
    if queue not in peer.queues:
        raise BadRequest(f"the worker is not attached to queue {queue!r:.80}", field="queue")


async def _settle(app: App, peer: Peer, queue: str, settlements: Sequence[Settlement]) -> Body:
    _check_attached(peer, queue)
    # What ends is off the worker's account at once, so that the claim it makes room for shares the store's next turn.
    ended = {(queue, s.id): s.attempt for s in settlements if s.action != "extend"}
    ended = {token: attempt for token, attempt in ended.items() if peer.session.held.get(token) == attempt}
    for token in ended:
        peer.session.drop(token, trio.current_time())
    if ended:
        app.credit_changed(peer)
    try:
        outcomes = await app.store.settle(queue, settlements)
    except FairqError:
        peer.session.held.update(ended)
        raise
    if told := peer.session.reported.intersection(ended):
        peer.session.reported -= told
        await app.store.forget_progress(queue, [id for _, id in told])
    for settlement, outcome in zip(settlements, outcomes, strict=True):
        if settlement.action == "nack":
            app.ticker.expect(queue, settlement.delay_ms or 0)
        elif settlement.action == "extend" and outcome != "ok":
            app.drop_lease(peer, (queue, settlement.id), settlement.attempt)
    return {"outcomes": outcomes}


async def settle(app: App, peer: Peer, request: wire.Settle) -> Body:
    """End leases."""
    return await _settle(app, peer, request.queue, request.settlements)


async def extend(app: App, peer: Peer, request: wire.Extend) -> Body:
    """Renew leases."""
    tokens = [
        Settlement("extend", check_full_id(lease.id, "leases"), check_int(lease.attempt, "leases", 1, MAX_ATTEMPT))
        for lease in request.leases
    ]
    if not tokens:
        raise BadRequest("leases must hold at least 1", field="leases")
    return await _settle(app, peer, request.queue, tokens)


async def progress(app: App, peer: Peer, request: wire.Progress) -> Body:
    """Note how far tasks have come; leases that the worker does not hold are passed over."""
    _check_attached(peer, request.queue)
    if not request.reports:
        raise BadRequest("reports must hold at least 1", field="reports")
    for report in request.reports:
        check_fraction(report.fraction)
        check_progress_text(report.text)
    for report in request.reports:
        token = (request.queue, report.id)
        if peer.session.held.get(token) == report.attempt:
            peer.session.reported.add(token)
            await app.store.write_progress(request.queue, report.id, report.attempt, report.fraction, report.text)
    return {}


async def idle(app: App, peer: Peer, request: wire.Idle) -> Body:
    """Tell whether the worker's queues have nothing for it, by one more tick and claim of each."""
    empty: list[bool] = []

    async def look_into(queue: str) -> None:
        await app.store.tick(queue)
        empty.append(await app.dispatchers[queue].is_empty())

    async with open_plain_nursery() as nursery:
        for queue in peer.queues:
            nursery.start_soon(look_into, queue)
    return {"is_idle": all(empty)}


async def queues(app: App, peer: Peer, request: wire.Queues) -> Body:
    """List all queues, also those that have workers here and had no task yet."""
    rows = []
    served = {queue for queue, dispatcher in app.dispatchers.items() if dispatcher.room.workers}
    for queue in sorted(served.union(await app.store.queues())):
        if peer.identity.queues is not None and queue not in peer.identity.queues:
            continue
        rows.append({**asdict(await app.store.queue(queue)), "workers": app.count_workers(queue)})
    return {"queues": rows}


async def configure(app: App, peer: Peer, request: wire.Configure) -> Body:
    """Change settings of a queue."""
    changes = check_settings(request.settings)
    await app.store.configure(peer.identity.check_queue(request.queue), changes)
    return {}


async def tenants(app: App, peer: Peer, request: wire.Tenants) -> Body:
    """List a queue's tenants."""
    rows = await app.store.tenants(await _known_queue(app, peer, request.queue))
    return {"tenants": [asdict(row) for row in rows]}


async def _known_queue(app: App, peer: Peer, name: str) -> str:
    queue = peer.identity.check_queue(name)
    if queue not in await app.store.queues():
        raise NotFound(f"there is no queue {queue}", field="queue")
    return queue


async def set_weight(app: App, peer: Peer, request: wire.SetWeight) -> Body:
    """Give a tenant a weight."""
    queue, tenant = peer.identity.check_queue(request.queue), check_name(request.tenant, "tenant")
    before = await app.store.set_weight(queue, tenant, check_weight(request.weight))
    return {"before": before}


async def workers(app: App, peer: Peer, request: wire.Workers) -> Body:
    """List the workers of all servers, those of the token's queues."""
    rows = [asdict(row) for row in await app.roster.all_workers()]
    mine = peer.identity.queues
    return {"workers": [row for row in rows if mine is None or mine.issuperset(row["queues"])]}


async def drain_worker(app: App, peer: Peer, request: wire.DrainWorker) -> Body:
    """Drain the workers of a name, wherever they are attached."""
    _check_unlimited(peer)
    _check_worker(request.worker)
    return {"workers": await app.roster.drain(request.worker)}


async def pause(app: App, peer: Peer, request: wire.Pause) -> Body:
    """Hold back a tenant, or the whole queue."""
    queue, tenant = _target(peer, request)
    return {"before": await app.store.pause(queue, tenant)}


async def resume(app: App, peer: Peer, request: wire.Resume) -> Body:
    """Undo `pause`."""
    queue, tenant = _target(peer, request)
    before = await app.store.resume(queue, tenant)
    app.hint(queue)
    return {"before": before}


def _target(peer: Peer, request: wire.Pause | wire.Resume) -> tuple[str, str]:
    queue = peer.identity.check_queue(request.queue)
    return queue, "" if request.tenant is None else check_name(request.tenant, "tenant")


async def dead(app: App, peer: Peer, request: wire.Dead) -> Body:
    """List dead letters; a tenant sees only its own."""
    queue, mine = peer.identity.check_queue(request.queue), peer.identity.tenant
    if mine and request.tenant not in (None, mine):
        raise Forbidden("a tenant sees its own dead letters only", field="tenant")
    tenant, ages = mine or request.tenant, (request.older_than_ms, request.younger_than_ms)
    which = DeadFilter(tenant, request.reason, request.error, *ages)
    which.check()
    if request.cursor is not None and not 1 <= len(request.cursor) <= MAX_CURSOR_CHARS:
        raise BadRequest("cursor must be one that a page ended with", field="cursor")
    count = check_int(request.count, "count", 1, MAX_BATCH)
    page = await app.store.dead(queue, which, request.cursor or "", count, brief=request.brief)
    rows = [_letter(peer, letter, brief=request.brief) for letter in page.letters]
    return {"dead": rows, "cursor": page.cursor or None, "left": page.left}


def _letter(peer: Peer, letter: DeadLetter, *, brief: bool = False) -> Body:
    row = asdict(letter)
    if peer.identity.tenant:
        row["id"] = bare_id(letter.id)
    return {name: row[name] for name in _BRIEF} if brief else row


async def letter(app: App, peer: Peer, request: wire.Letter) -> Body:
    """Read one dead letter."""
    queue, (id,) = peer.identity.check_queue(request.queue), _full_ids(peer, [request.id], "id")
    found = await app.store.letter(queue, id)
    if found is None:
        raise NotFound(f"there is no dead letter {request.id} in queue {queue}", field="id")
    return {"letter": _letter(peer, found)}


async def replay(app: App, peer: Peer, request: wire.Replay) -> Body:
    """Give dead letters a fresh set of attempts."""
    queue = peer.identity.check_queue(request.queue)
    outcomes = await app.store.replay(queue, _full_ids(peer, request.ids))
    app.hint(queue)
    return {"outcomes": outcomes}


async def purge(app: App, peer: Peer, request: wire.Purge) -> Body:
    """Delete dead letters."""
    queue = peer.identity.check_queue(request.queue)
    return {"outcomes": await app.store.purge(queue, _full_ids(peer, request.ids))}


def _check_unlimited(peer: Peer) -> None:
    if peer.identity.queues is not None:
        raise Forbidden("an operator of some queues has no say over tokens and workers", field="type")


async def create_token(app: App, peer: Peer, request: wire.CreateToken) -> Body:
    """Register a token."""
    _check_unlimited(peer)
    await app.auth.create(TokenRecord(request.id, request.role, request.hash, request.tenant, request.queues))
    return {}


async def list_tokens(app: App, peer: Peer, request: wire.ListTokens) -> Body:
    """List tokens, without their hashes."""
    _check_unlimited(peer)
    return {"tokens": [{k: v for k, v in asdict(t).items() if k != "hash"} for t in await app.auth.tokens()]}


async def revoke_token(app: App, peer: Peer, request: wire.RevokeToken) -> Body:
    """Delete a token and close the connections that use it."""
    _check_unlimited(peer)
    if not await app.auth.revoke(request.id):
        raise NotFound(f"there is no token {request.id!r:.80}", field="id")
    return {}


VERBS: dict[type[Any], Callable[..., Awaitable[Body]]] = {
    wire.Enqueue: enqueue,
    wire.Tasks: tasks,
    wire.Cancel: cancel,
    wire.Ended: ended,
    wire.OpenBatch: open_batch,
    wire.CloseBatch: close_batch,
    wire.CancelBatch: cancel_batch,
    wire.Batch: batch,
    wire.Events: events,
    wire.Reschedule: reschedule,
    wire.Peek: peek,
    wire.Why: why,
    wire.TenantReport: tenant_report,
    wire.Attach: attach,
    wire.Credit: credit,
    wire.Settle: settle,
    wire.Extend: extend,
    wire.Progress: progress,
    wire.Idle: idle,
    wire.Queues: queues,
    wire.Configure: configure,
    wire.Tenants: tenants,
    wire.SetWeight: set_weight,
    wire.SetLimits: set_limits,
    wire.Limits: limits,
    wire.SetWindows: set_windows,
    wire.Workers: workers,
    wire.DrainWorker: drain_worker,
    wire.Pause: pause,
    wire.Resume: resume,
    wire.Dead: dead,
    wire.Letter: letter,
    wire.Replay: replay,
    wire.Purge: purge,
    wire.Schedule: schedule,
    wire.Unschedule: unschedule,
    wire.PauseSchedule: pause_schedule,
    wire.ResumeSchedule: resume_schedule,
    wire.Schedules: schedules,
    wire.CreateToken: create_token,
    wire.ListTokens: list_tokens,
    wire.RevokeToken: revoke_token,
}


async def carry_out(app: App, peer: Peer, request: Any) -> Body:
    """Do what a request asks. Raises: FairqError."""
    return await VERBS[type(request)](app, peer, request)
