"""Long polls: requests that are answered later, after a message from the store.

A message may be lost, so each request reads first, and again every POLL_S.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import trio
from attrs import define, field

T = TypeVar("T")

POLL_S = 5.0


@define(eq=False)
class Watch:
    """The messages that one request waits for, and those it has heard."""

    messages: frozenset[str]
    heard: set[str] = field(factory=set, init=False)
    _polls_at: float = field(factory=lambda: trio.current_time() + POLL_S, init=False)
    _woken: trio.Event = field(factory=trio.Event, init=False)

    def hear(self, message: str) -> None:
        """Handle a message; an empty one stands for all."""
        if message:
            self.heard.add(message)
        else:
            self.heard.update(self.messages)
        self._woken.set()

    async def listen(self, deadline: float) -> set[str]:
        """Wait for messages until the deadline; returns those since the last call, or all if some may be lost."""
        if not self.heard:
            self._woken = trio.Event()
            with trio.move_on_at(min(deadline, self._polls_at)):
                await self._woken.wait()
        if trio.current_time() >= min(deadline, self._polls_at):
            self.hear("")
            self._polls_at = trio.current_time() + POLL_S
        heard, self.heard = self.heard, set()
        return heard


@define(eq=False)
class LongPolls:
    """The requests that wait for messages of one queue."""

    _watches: defaultdict[str, set[Watch]] = field(factory=lambda: defaultdict(set), init=False)

    @property
    def is_idle(self) -> bool:
        """True if no request waits."""
        return not self._watches

    def on_message(self, message: str) -> None:
        """Wake the requests that wait for this message; an empty one wakes all: any may have been missed."""
        if message:
            for watch in self._watches.get(message, ()):
                watch.hear(message)
        else:
            for watch in set().union(*self._watches.values()):
                watch.hear("")

    @contextmanager
    def watch(self, messages: Sequence[str]) -> Iterator[Watch]:
        """Hear messages while the context lasts."""
        watch = Watch(frozenset(messages))
        for message in watch.messages:
            self._watches[message].add(watch)
        try:
            yield watch
        finally:
            for message in watch.messages:
                self._watches[message].discard(watch)
                if not self._watches[message]:
                    del self._watches[message]

    async def wait(
        self, messages: Sequence[str], read: Callable[[], Awaitable[T]], is_enough: Callable[[T], bool], deadline: float
    ) -> T:
        """Read until `is_enough` is true or the deadline has passed; returns the last value read."""
        with self.watch(messages) as watch:
            while True:
                found = await read()
                if is_enough(found) or trio.current_time() >= deadline:
                    return found
                await watch.listen(deadline)
