"""A request that is repeated, late or wrong through the SDK has one answer, and undoes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import fairq
from fairq.errors import NotFound, TaskFailed
from fairq.model.tasks import MAX_RESULT_BYTES
from fairq.model.workers import WorkerTasks
from fairq.server.run import Served
from tests.logs import captured_logs
from tests.server.harness import OPERATOR, WORKER, raw, tenant
from tests.store.proxy import open_proxy

from .harness import worker_of


async def test_a_result_over_its_limit_makes_a_dead_letter_and_a_line_in_the_workers_log(
    served: Served, ada: fairq.Client
) -> None:
    worker = worker_of(served)
    worker.task("emails")(lambda task: "x" * MAX_RESULT_BYTES)
    with captured_logs() as lines:
        task = await ada.enqueue("emails", "a long result", result_ttl=60)
        plain = await ada.enqueue("emails", "a long result")
        await worker.run(burst=True)
        with pytest.raises(TaskFailed, match=f"rejected: the result has {MAX_RESULT_BYTES + 2} bytes"):
            await task.result(timeout=30)
        assert (await task.state()).reason == "rejected"
        assert (await plain.state()).state == "done"  # its result was not asked for
    (line,) = (line for line in lines if line["event"] == "result refused")
    assert (line["log_level"], line["task"], line["queue"], line["attempt"]) == ("warning", task.id, "emails", 1)
    assert str(MAX_RESULT_BYTES) in line["error"]


def new_task(ada: fairq.Client, **options: Any) -> Awaitable[fairq.EnqueuedTask]:
    return ada.enqueue("emails", "new", id="new", **options)


async def batches_of(ada: fairq.Client) -> list[str]:
    return [state.id async for state in ada.batches("emails")]


async def delete_idle(op: fairq.OperatorClient) -> str:
    """Delete a tenant that has nothing; returns the field of the refusal."""
    with pytest.raises(NotFound) as caught:  # the first time, which had no answer, did it
        await op.delete_tenant("emails", "idle")
    return caught.value.field or ""


Call = Callable[[fairq.OperatorClient, fairq.Client], Awaitable[Any]]
# A call whose first answer is lost, what the second one says, and tasks enqueued, ready, delayed and cancelled then.
LOST: dict[str, tuple[Call, Any, tuple[int, int, int, int]]] = {
    "enqueue, of a group": (lambda _, ada: new_task(ada, group="g", name="n"), ..., (7, 6, 1, 0)),
    "enqueue, endless": (lambda _, ada: new_task(ada, max_attempts=0, expires_after_start=60), ..., (7, 6, 1, 0)),
    "enqueue, replacing": (lambda _, ada: new_task(ada, dedupe_key="k", replace=True, group="g"), ..., (7, 6, 0, 1)),
    "cancel_all": (lambda _, ada: ada.cancel_all("emails"), 0, (6, 0, 0, 6)),
    "cancel_all, an operator's": (lambda op, _: op.cancel_all("emails", tenant="ada"), 0, (6, 0, 0, 6)),
    "cancel_all, matching none": (lambda _, ada: ada.cancel_all("emails", error="none"), 0, (6, 5, 1, 0)),
    "cancel_batch": (lambda _, ada: ada.batch("emails", "b").cancel(), "complete", (6, 3, 1, 2)),
    "batches": (lambda _, ada: batches_of(ada), ["b"], (6, 5, 1, 0)),
    "configure": (lambda op, _: op.configure("emails", max_attempts=0), None, (6, 5, 1, 0)),
    "worker_tasks": (lambda op, _: op.worker_tasks("mill"), ..., (6, 5, 1, 0)),
    "drop_tenant": (lambda op, _: delete_idle(op), "tenant", (6, 5, 1, 0)),
}


@pytest.mark.parametrize("name", LOST)
async def test_a_call_whose_answer_is_lost_changes_things_once(served: Served, name: str) -> None:
    call, answer, counts = LOST[name]
    async with (
        open_proxy(served.port) as proxy,
        fairq.open_client(f"ws://127.0.0.1:{proxy.port}", token=tenant("ada")) as ada,
        fairq.open_operator(f"ws://127.0.0.1:{proxy.port}", token=OPERATOR) as op,
        raw(served, WORKER) as worker,
    ):
        await ada.enqueue("emails", "held", dedupe_key="k", delay=3600)
        await ada.enqueue_many("emails", range(3), group="g")
        await (await ada.open_batch("emails", id="b")).add_many(range(2))
        await op.set_weight("emails", "idle", 2)
        await worker.attach("emails", name="mill", credit=0)
        proxy.lose_next_reply()
        reply = await call(op, ada)
        assert proxy.lost == 1
        match reply:
            case fairq.EnqueuedTask():
                assert (reply.id, reply.is_replaced) == ("new", False)
            case WorkerTasks():
                assert [(each.worker, each.queues) for each in reply.workers] == [("mill", ["emails"])]
            case _:
                assert reply == answer
        row = await served.app.store.queue("emails")
        assert (row.enqueued, row.ready, row.delayed, row.cancelled) == counts
