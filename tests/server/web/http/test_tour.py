"""The eight-step tour as an HTTP program."""

from __future__ import annotations

from fairq.server.run import Served
from tests.server.harness import PRODUCER, WORKER

from .harness import api, check


async def test_the_tour(served: Served) -> None:
    async with api(served) as ada, api(served, PRODUCER) as product, api(served, WORKER) as worker:
        # 1. enqueue
        made = await ada.post("/v1/queues/emails/tasks", json={"payload": {"to": "ada"}, "result_ttl": 60})
        task = check(made, 201)
        assert task["outcome"] == "ok"
        assert made.headers["location"] == f"/v1/queues/emails/tasks/{task['id']}"
        assert check(await ada.get(made.headers["location"]))["state"] == "ready"
        # 2. many tenants
        many = [{"payload": n, "tenant": name, "id": f"t{n}"} for n, name in enumerate(["acme", "org_2AbC"])]
        told = check(await product.post("/v1/queues/emails/tasks", json={"tasks": many}), 201)
        assert [row["id"] for row in told["tasks"]] == ["acme/t0", "org_2AbC/t1"]
        assert check(await product.get("/v1/queues/emails/tasks/org_2AbC/t1"))["state"] == "ready"
        # 3. delay
        late = check(await ada.post("/v1/queues/later/tasks", json={"payload": 1, "delay": 3600}), 201)
        assert check(await ada.get(f"/v1/queues/later/tasks/{late['id']}"))["state"] == "delayed"
        # 4. result
        claimed = check(await worker.post("/v1/queues/emails/claims", json={"count": 10, "wait": 20}))
        assert len(claimed["tasks"]) == 3
        acks = [
            {"action": "ack", "id": t["id"], "lease": t["lease"], "result": {"ok": t["id"]}} for t in claimed["tasks"]
        ]
        ended = check(await worker.post("/v1/leases", json={"queue": "emails", "settlements": acks}))
        assert ended == {"outcomes": ["ok"] * 3}
        state = check(await ada.get(made.headers["location"], params={"wait": 20}))
        assert (state["state"], state["result"]) == ("done", {"ok": f"ada/{task['id']}"})
        # 5. batch
        batch = check(await ada.post("/v1/queues/parts/batches", json={"id": "b1"}), 201)
        assert batch == {"outcome": "ok", "id": "b1"}
        lines = b'{"payload": 1, "batch": "b1"}\n{"payload": 2, "batch": "b1"}\n'
        kind = {"Content-Type": "application/x-ndjson"}
        check(await ada.post("/v1/queues/parts/tasks", content=lines, headers=kind), 201)
        check(await ada.post("/v1/queues/parts/batches/b1/close"))
        parts = check(await worker.post("/v1/queues/parts/claims", json={"count": 2, "wait": 20}))["tasks"]
        acks = [{"action": "ack", "id": t["id"], "lease": t["lease"]} for t in parts]
        check(await worker.post("/v1/leases", json={"queue": "parts", "settlements": acks}))
        assert check(await ada.get("/v1/queues/parts/batches/b1", params={"wait": 20}))["done"] == 2
        # 6. schedule
        daily = {"payload": {"kind": "report"}, "cron": "0 9 * * *", "zone": "UTC"}
        assert check(await ada.put("/v1/queues/reports/schedules/daily", json=daily), 201)["outcome"] == "created"
        assert check(await ada.get("/v1/queues/reports/schedules/daily"))["payload"] == {"kind": "report"}
        listed = check(await ada.get("/v1/queues/reports/schedules", params={"name": "daily"}))["schedules"]
        assert [each["name"] for each in listed] == ["daily"]
        # 7. dead letter
        poison = check(await ada.post("/v1/queues/bad/tasks", json={"payload": "x", "max_attempts": 1}), 201)
        (leased,) = check(await worker.post("/v1/queues/bad/claims", json={"wait": 20}))["tasks"]
        reject = [{"action": "reject", "id": leased["id"], "lease": leased["lease"], "error": "no such address"}]
        check(await worker.post("/v1/leases", json={"queue": "bad", "settlements": reject}))
        (letter,) = check(await ada.get("/v1/queues/bad/dead"))["dead"]
        assert (letter["id"], letter["error"], letter["payload"]) == (poison["id"], "no such address", "x")
        # 8. replay
        replay = {"ids": [poison["id"]]}
        assert check(await ada.post("/v1/queues/bad/dead/replay", json=replay)) == {"outcomes": ["ok"]}
        assert check(await ada.get(f"/v1/queues/bad/tasks/{poison['id']}"))["state"] == "ready"
