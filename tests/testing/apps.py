"""An app with a handler for everything that a handler can do."""

from __future__ import annotations

from collections import Counter

import trio

import fairq


def make_app(url: str = "ws://127.0.0.1:7700", token: str = "", begun: Counter[str] | None = None) -> fairq.Worker:
    """An app whose tasks say in their payload how they end, in turn; the last way stands for all further attempts.

    An attempt that was given back before it began takes no way. `begun`: counts those that did, by the task's id.
    """
    app = fairq.Worker(url, token, concurrency=4)
    begun = Counter() if begun is None else begun

    def end(task: fairq.Task) -> None:
        begun[task.id] += 1
        ways = task.payload["ways"]
        way = ways[min(begun[task.id], len(ways)) - 1]
        if way == "fail":
            raise ZeroDivisionError("division by zéro")
        if way == "postpone":
            raise fairq.Postpone("not now", delay=0.01)
        if way == "reject":
            raise fairq.Reject("bad address")
        if way != "ok":
            raise fairq.Retry("later", delay=None if way == "retry" else way)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        await trio.lowlevel.checkpoint()
        end(task)

    @app.task("images")
    def draw(task: fairq.Task) -> None:
        end(task)

    return app
