"""Long polls: requests that are answered later, after a message from the store.

A message may be lost, so each request reads first, and again every POLL_S.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio
from attrs import define, field

T = TypeVar("T")

POLL_S = 5.0


@define(eq=False)
class LongPolls:
    """The requests that wait for messages of one queue."""

    _events: defaultdict[str, set[trio.Event]] = field(factory=lambda: defaultdict(set), init=False)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits."""
        return not self._events

    def on_message(self, message: str) -> None:
        """Wake the requests that wait for this message; an empty one wakes all: any may have been missed."""
        for waited_for in self._events if not message else self._events.keys() & {message}:
            for event in self._events[waited_for]:
                event.set()

    async def wait(
        self, messages: Sequence[str], read: Callable[[], Awaitable[T]], is_enough: Callable[[T], bool], deadline: float
    ) -> T:
        """Read until `is_enough` is true or the deadline has passed; returns the last value read."""
        while True:
            event = trio.Event()
            for message in messages:
                self._events[message].add(event)
            try:
                found = await read()
                if is_enough(found) or trio.current_time() >= deadline:
                    return found
                with trio.move_on_at(min(deadline, trio.current_time() + POLL_S)):
                    await event.wait()
            finally:
                for message in messages:
                    self._events[message].discard(event)
                    if not self._events[message]:
                        del self._events[message]
