"""The tour in eight steps, without an event loop."""

from __future__ import annotations

import time

import fairq
import fairq.sync

with fairq.sync.open_client() as client:
    task = client.enqueue("tour", {"add": [1, 2]}, id="first")
    again = client.enqueue("tour", {"add": [1, 2]}, id="first")
    print("enqueue:", task.id, again.is_duplicate)

    with fairq.sync.open_client(token="dev-producer") as producer:
        tasks = producer.enqueue_many("tour", [1, 2, 3], ids=["a", "b", "c"], tenant=["x", "y", "x"])
        print("many tenants:", *(each.id for each in tasks))

    began = time.time()
    task = client.enqueue("tour", {"ask": "time"}, delay=0.5, result_ttl=60)
    print("delay:", task.result(timeout=30) - began >= 0.5)

    task = client.enqueue("tour", {"add": [20, 22]}, result_ttl=60)
    print("result:", task.result(timeout=30))

    batch = client.open_batch("tour", id="report", max_running=2)
    batch.add_many([1, 2, 3])
    batch.close()
    print("batch:", batch.wait(timeout=30).done)

    fires = client.schedule("tour", "nightly", {"add": []}, cron="0 3 * * *", zone="Europe/Copenhagen")
    print("schedule:", len(fires), client.unschedule("tour", "nightly"))

    task = client.enqueue("tour", {"refuse": "once"}, id="odd", result_ttl=60)
    try:
        task.result(timeout=30)
    except fairq.TaskFailed:
        letters = client.dead_letters("tour")
        print("dead letter:", [(letter.id, letter.reason, letter.error) for letter in letters.walk()])
        print("replay:", *letters.replay(["odd"]), task.result(timeout=30))
