"""An app with a handler for everything that a handler can do."""

from __future__ import annotations

import trio

import fairq


def make_app(url: str = "ws://127.0.0.1:7700", token: str = "") -> fairq.Worker:
    """An app whose tasks say in their payload how they end, in turn; the last way stands for all further attempts."""
    app = fairq.Worker(url, token, concurrency=4)

    def end(task: fairq.Task) -> None:
        ways = task.payload["ways"]
        way = ways[min(task.attempt, len(ways)) - 1]
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
