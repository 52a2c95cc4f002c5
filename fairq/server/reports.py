"""The verbs that tell why work waits."""

from __future__ import annotations

from typing import Any

from attrs import asdict

from fairq.errors import NotFound
from fairq.model import check_full_id, check_task_id, full_id
from fairq.server.app import App
from fairq.server.peer import Peer
from fairq.why import explain
from fairq.wire import messages as wire

Body = dict[str, Any]


async def why(app: App, peer: Peer, request: wire.Why) -> Body:
    """Tell why a task waits, and when it may start."""
    queue, mine = peer.identity.check_queue(request.queue), peer.identity.tenant
    id = full_id(mine, check_task_id(request.id)) if mine else check_full_id(request.id)
    task = await app.store.why(queue, id)
    if task.state == "unknown":
        raise NotFound(f"nothing is known of a task {request.id} in queue {queue}", field="id")
    found = asdict(explain(request.id, task, await _count_slots(app, queue)))
    if task.facts is None:
        return {name: found[name] for name in ("id", "state", "now_ms")}
    return {name: value for name, value in found.items() if value not in (0, False) or name == "starts_at_ms"}


async def _count_slots(app: App, queue: str) -> float:
    """Count the tasks of a queue that its workers take at once, each worker's divided among its queues."""
    attached = await app.roster.all_workers()
    return sum(each.credit / len(each.queues) for each in attached if queue in each.queues and not each.is_draining)
