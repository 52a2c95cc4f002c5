"""The verb `tick`: how much one call does, and for whom."""

from __future__ import annotations

from .calls import Queue


def test_a_herd_of_one_tenant_does_not_hold_up_the_others(queue: Queue) -> None:
    for batch in range(3):
        queue.enqueue("herd", *(f"herd{batch}-{n}" for n in range(400)), delay=10)
    queue.enqueue("small", "small", delay=11)
    queue.advance(11)
    assert queue.tick(100).promoted == 21
    assert queue.state("small") == "ready"
    total = 21
    while total < 1201:
        total += queue.tick(100).promoted
    assert queue.queue_state()["delayed"] == 0


def test_tasks_of_one_start_begin_in_the_order_in_which_they_came(queue: Queue) -> None:
    """Whatever their ids, in how many calls they come, and where there are more than a millisecond has fractions."""
    ids = [f"{n}" for n in range(2200)]
    for at in range(0, 2200, 440):
        queue.enqueue("ada", *ids[at : at + 440], delay=10)
    queue.enqueue("ada", "next", delay=11)
    assert {queue.tasks(id)[0].at for id in ids[:1000]} == {queue.now + 10}
    queue.advance(9)
    assert queue.tick(500).promoted == 0
    queue.advance(20)
    begun: list[str] = []
    while len(begun) < 2201:
        queue.tick(500)
        begun += [lease.id for lease in queue.claim(500)]
    assert [id for id in begun if id != "next"] == ids


def test_a_herd_of_many_tenants_is_promoted_twenty_by_twenty_in_turns(queue: Queue) -> None:
    """Their accounts are most of the price: so a tick has two of them, not all."""
    tenants = [f"t{n:02}" for n in range(50)]
    for name in tenants:
        queue.enqueue(name, *(f"{name}-{n}" for n in range(40)), delay=10)
    queue.enqueue("small", "small", delay=11)
    queue.advance(11)
    assert [queue.tick(500).promoted for _ in range(26)] == [40] * 26
    ready = sorted(share.ready for share in queue.tenants().values())
    assert ready == [1, *[20] * 48, 39, 40], "what the small one left goes on to the next"
    assert queue.state("small") == "ready"


def test_one_server_at_a_time_promotes_what_its_ticks_leave(queue: Queue) -> None:
    """So a caller waits behind one tick, however many servers there are. The turn of one that dies lasts for 50 ms."""
    queue.enqueue("ada", *(f"a{n}" for n in range(300)), delay=10)
    queue.advance(10)
    assert queue.tick(server="one").promoted == 40
    other = queue.tick(server="two")
    assert (other.promoted, other.next_due) == (0, queue.now + 50)
    assert queue.tick().promoted == 40, "a tick of no server waits for no turn"
    queue.advance(49)
    assert queue.tick(server="two").promoted == 0
    assert queue.tick(server="one").promoted == 40, "its turn goes on"
    queue.advance(49)
    assert queue.tick(server="two").promoted == 0
    queue.advance(1)
    assert [queue.tick(server=name).promoted for name in ("two", "one", "two")] == [40, 0, 40]
    queue.enqueue("ada", "late", expires_in=1)
    queue.advance(1)
    assert queue.tick(server="one").expired == 1, "what is not promotion has no turns"


def test_a_turn_that_a_wrong_clock_left_is_over(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(50)), delay=10)
    queue.advance(3_600_000)
    assert queue.tick(server="one").promoted == 40
    queue.advance(-3_599_000)
    assert [queue.tick(server="two").promoted for _ in range(2)] == [0, 10], "the first one looks at all tenants anew"


def test_a_flood_of_dead_letters_pushes_out_its_own_only(queue: Queue) -> None:
    queue.bury("ada", "a0", "a1")
    queue.bury("bob", "b0", "b1", "b2")
    queue.advance(1)
    for batch in range(3):
        queue.bury("flood", *(f"f{batch}{n:03}" for n in range(100)))
    queue.configure(dead_keep=10)
    assert [queue.tick(100).trimmed for _ in range(5)] == [80, 80, 80, 55, 0]
    assert {name: share.dead for name, share in queue.tenants().items()} == {"ada": 2, "bob": 3, "flood": 5}
    assert [letter.id for letter in queue.dead(tenant="flood")] == [f"f2{n:03}" for n in range(95, 100)]
    queue.configure(dead_keep=6)
    assert queue.tick(100).trimmed == 4
    assert {name: share.dead for name, share in queue.tenants().items()} == {"ada": 2, "bob": 2, "flood": 2}
