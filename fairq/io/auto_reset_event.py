"""An event for one task that is woken again and again."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from fairq.io.runtime import Event


@define(eq=False)
class AutoResetEvent:
    """An event that its one waiter resets: `set` ends the wait under way, or else the next one."""

    make_event: Callable[[], Event]
    _event: Event = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._event = self.make_event()

    def set(self) -> None:
        """End the wait under way, or else the next one at once."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until it is set, and reset it. Cancelled: it stays as it is."""
        await self._event.wait()
        self._event = self.make_event()
