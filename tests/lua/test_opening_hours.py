"""Opening hours: shares hold beside tenants that are closed now and then, and servers hear of what opens."""

from __future__ import annotations

from .calls import Queue

TEXT = "mon-fri 12:00-15:00 UTC"


def put(queue: Queue, tenant: str, is_open: bool, in_ms: int = 1000) -> None:
    """Set opening hours that change in so many ms."""
    queue.call("set_opening_hours", tenant, TEXT, int(is_open), queue.now + in_ms, "")


def test_a_fair_alternation_holds_between_those_that_are_open(queue: Queue) -> None:
    """bob opens and closes: ada has all that bob cannot take, and no debt for it; bob saves nothing up."""
    queue.configure(share=1)
    queue.call("set_weight", "bob", 3000)
    for name in ("ada", "bob"):
        queue.enqueue(name, *(f"{name}-{n}" for n in range(400)))

    def serve(count: int) -> dict[str, int]:
        served = {"ada": 0, "bob": 0}
        for _ in range(count):
            (lease,) = queue.claim()
            served[lease.id.split("-")[0]] += 1
            queue.end("ack", lease)
        return served

    for _ in range(3):
        put(queue, "bob", is_open=False)
        assert serve(60) == {"ada": 60, "bob": 0}
        put(queue, "bob", is_open=True)
        assert abs(serve(80)["bob"] - 60) <= 3
