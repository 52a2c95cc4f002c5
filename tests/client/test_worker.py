"""The SDK for those who do the work: what a handler does decides what becomes of its task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

import fairq
from tests.store.cases import case, raises_for


def test_mistakes_in_the_program_are_reported_where_they_are_made() -> None:
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: fairq.Worker(token="x").task("Emails"), "queue"),
        (lambda: fairq.Retry(delay=-1), "delay"),
        (lambda: fairq.Postpone(delay=-1), "delay"),
        (lambda: fairq.Postpone(delay=float("nan")), "delay"),
        (lambda: fairq.Retry(delay=1e12), "delay"),
    ]
    for make, field in cases:
        with case(make, field), raises_for(field):
            make()


async def test_a_worker_that_could_do_nothing_does_not_run() -> None:
    for concurrency, handlers, field in [(5, 0, "queues"), (0, 1, "concurrency")]:
        with case(concurrency, handlers, field):
            app = fairq.Worker(token="x", concurrency=concurrency)
            if handlers:
                app.task("emails")(print)
            with trio.fail_after(30), raises_for(field):
                await app.run()


def test_a_worker_does_not_show_its_token() -> None:
    assert "secret" not in repr(fairq.Worker(token="secret"))
