"""The traceback of a final failure: the handler's frames and its causes, bounded, and never in the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest

from fairq.client.handlers import perform, settlement_of
from fairq.client.hooks import Hooks
from fairq.client.kinds import Handler
from fairq.client.task import Postpone, Reject, Retry, Task
from fairq.client.threads import Threads
from fairq.client.tracebacks import traceback_of
from fairq.model.checks import MAX_TRACEBACK_BYTES
from fairq.model.tasks import Settlement
from fairq.wire.frames import PushedTask
from tests.logs import captured_logs
from tests.store.cases import case

from .runtimes import Service, on_both, wait_state, working

LAST = PushedTask("ada/a", 1, 3, 3, "ada", 0, {"card": "4111"})
DIRECT = "The above exception was the direct cause of the following exception:"


def look_up() -> None:
    """Fail as a library does."""
    card = "4111"
    raise KeyError(f"street of {len(card)}")


def deliver() -> None:
    """Fail as a helper of a handler does."""
    try:
        look_up()
    except KeyError as error:
        raise ValueError("no street") from error


async def fails(task: Task) -> None:
    """Fail in the event loop."""
    deliver()


def fails_in_a_thread(task: Task) -> None:
    deliver()


async def fails_in_a_group(task: Task) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(fails, task)


async def around(task: Any) -> AsyncIterator[None]:
    """Stand around a handler."""
    yield


def inside(task: Any) -> Iterator[None]:
    """Stand around a handler, in its thread."""
    yield


def in_middleware() -> Hooks:
    """Both kinds of middleware."""
    hooks = Hooks()
    hooks.add(around)
    hooks.add(inside)
    return hooks


async def never(*_: Any) -> str:
    """Enqueue nothing."""
    raise AssertionError


async def performed(handler: Callable[[Task], Any], pushed: PushedTask = LAST, **options: Any) -> Settlement:
    """Run a handler as the worker does."""
    settlement, _ = await perform(
        Handler(handler, "q", **options), "q", pushed, Threads(1), lambda *_: None, never, never
    )
    return settlement


def frames_of(text: str) -> list[str]:
    """Name the functions of a traceback's frames, in order."""
    return [line.rsplit(" in ", 1)[1] for line in text.splitlines() if line.lstrip(" |").startswith('File "')]


@on_both
@pytest.mark.parametrize(
    "options", [{}, {"hooks": in_middleware()}, {"timeout_s": 30.0}], ids=["bare", "around", "timed"]
)
@pytest.mark.parametrize("handler", [fails, fails_in_a_thread])
async def test_frames_begin_with_the_handler_and_causes_are_reported(
    handler: Callable[[Task], Any], options: dict[str, Any], runtime: str
) -> None:
    settlement = await performed(handler, **options)
    assert settlement.error == "ValueError: no street"
    first, second = settlement.traceback.split(DIRECT)
    assert (frames_of(first), first.rstrip().splitlines()[-1]) == (["deliver", "look_up"], "KeyError: 'street of 4'")
    assert frames_of(second) == [handler.__name__, "deliver"]
    assert second.endswith("ValueError: no street")
    assert "4111" not in second, "no payload, no local variable"


@on_both
async def test_errors_of_child_tasks_are_reported_with_their_frames(runtime: str) -> None:
    frames = frames_of((await performed(fails_in_a_group)).traceback)
    assert (frames[0], frames[-2:]) == ("fails_in_a_group", ["fails", "deliver"])


@on_both
async def test_only_what_is_final_has_a_traceback(runtime: str) -> None:
    assert (await performed(fails, LAST._replace(attempt=2))).traceback == ""
    assert (await performed(fails, LAST._replace(max_attempts=0))).traceback == ""
    assert (await performed(fails, LAST._replace(attempt=4))).traceback != ""


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """Raise an error while another is handled, and perhaps from it."""
    try:
        deliver()
    except ValueError:
        try:
            if cause is not None:
                raise error from cause
            raise error
        except BaseException as caught:
            return caught
    raise AssertionError


def test_a_verdict_has_a_traceback_only_if_it_was_raised_from_something() -> None:
    for verdict in [Retry("no"), Reject("no"), Postpone("no", delay=1)]:
        with case(verdict):
            assert settlement_of(LAST, raised(verdict)).traceback == ""
            text = settlement_of(LAST, raised(verdict, KeyError("street"))).traceback
            if isinstance(verdict, Postpone):
                assert text == ""
            else:
                assert text.startswith("KeyError: 'street'\n")
                assert text.endswith(f"{type(verdict).__name__}: no")


def test_a_verdict_without_a_reason_says_so() -> None:
    for verdict in [Retry(), Retry(delay=1), Reject(), Postpone(delay=1)]:
        with case(verdict):
            assert settlement_of(LAST, verdict).error == f"{type(verdict).__name__} without a reason"


@on_both
async def test_what_the_sdk_finds_out_has_none(runtime: str) -> None:
    async def hangs(task: Task) -> None:
        await anyio.sleep_forever()

    late = await performed(hangs, timeout_s=0.01)
    assert (late.error, late.traceback) == ("timeout: the handler did not end within 0.01 s", "")


def deep(most: int, left: int) -> None:
    """Raise from far below."""
    if left == 0:
        raise ValueError("at the bottom")
    (deep if left % 2 else deeper)(most, left - 1)


def deeper(most: int, left: int) -> None:
    """Go on, so that no frame is that of the line above."""
    deep(most, left - 1)


@pytest.mark.parametrize("make", [lambda: deep(300, 300), lambda: deep(10**5, 10**5)], ids=["deep", "too deep"])
def test_a_long_traceback_loses_its_middle(make: Callable[[], None]) -> None:
    try:
        make()
    except Exception as error:
        text = traceback_of(error)
        end = f"{type(error).__name__}: {error}"
    assert MAX_TRACEBACK_BYTES - 100 < len(text.encode()) <= MAX_TRACEBACK_BYTES
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "test_a_long_traceback_loses_its_middle" in lines[1]
    assert lines.count("[... the middle is left out ...]") == 1
    assert lines.index("[... the middle is left out ...]") < len(lines) / 2, "the last lines matter more"
    assert lines[-1] == end


def test_a_long_message_does_not_push_the_frames_out() -> None:
    for text in ["x" * 100_000, "é" * 50_000, "\U0001f600" * 9_999, "\ud800\0\x1b" * 9_999]:
        with case(text):
            error = raised(ValueError(text))
            written = traceback_of(error)
            assert len(written.encode()) <= MAX_TRACEBACK_BYTES, "and it is UTF-8"
            assert frames_of(written)[-1] == "raised"
            assert written.count("[... the middle is left out ...]") == 1


class Hostile(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("not this either")


class MoreHostile(Hostile):
    """An error that cannot even be looked at."""

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("nor this")


class HostileFault(Hostile, TypeError):
    """An error of a kind that the worker may raise itself, so it looks at the text."""

    def __repr__(self) -> str:
        raise RuntimeError("nor this")

    def with_traceback(self, tb: object) -> Any:
        raise RuntimeError("nor this")


@on_both
async def test_an_error_whose_text_cannot_be_read_is_a_failure_like_others(runtime: str) -> None:
    async def hostile(task: Task) -> None:
        raise Hostile

    settlement = await performed(hostile)
    assert (settlement.action, settlement.error) == ("nack", "Hostile: (its text raised RuntimeError)")
    assert settlement.traceback.endswith(".Hostile: <exception str() failed>")


class Exits(HostileFault):
    """An error whose text ends the process."""

    def __str__(self) -> str:
        raise SystemExit(1)


class Interrupts(Hostile):
    """An error that has no truth value, and raises KeyboardInterrupt as its text."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __bool__(self) -> bool:
        raise SystemExit(1)


class Textless(Exception):
    """An error with a `str` that returns no text."""

    def __str__(self) -> str:
        return 1  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("fault", "why"),
    [(HostileFault, "RuntimeError"), (Exits, "SystemExit"), (Interrupts, "KeyboardInterrupt"), (Textless, "TypeError")],
)
@on_both
async def test_a_worker_goes_on_after_an_error_whose_own_code_raises(
    service: Service, fault: type[Exception], why: str
) -> None:
    app = service.worker()

    @app.task("emails")
    async def hostile(task: Task) -> None:
        raise fault

    @app.task("emails", name="group")
    async def hostile_group(task: Task) -> None:
        raise ExceptionGroup("one", [fault()])

    @app.task("emails", name="thread")
    def hostile_thread(task: Task) -> None:
        raise fault

    with captured_logs() as lines:
        async with service.client() as client, working(app):
            for name in ("", "group", "thread"):
                state = await wait_state(await client.enqueue("emails", 1, name=name, max_attempts=1), "dead")
                assert (state.reason, state.error) == ("exhausted", f"{fault.__name__}: (its text raised {why})")
    assert [line["raised"] is not None for line in lines if line["event"] == "task failed"] == [True] * 3


def test_an_error_that_cannot_be_looked_at_has_no_traceback() -> None:
    error = MoreHostile()
    text = traceback_of(error)
    del error
    assert text == ""
