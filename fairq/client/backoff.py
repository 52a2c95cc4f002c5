"""How a handler's failed tasks are tried again, in place of what the task or its queue says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairq.client import later
from fairq.errors import BadRequest

if TYPE_CHECKING:
    from fairq.model.option_tables import Seconds

_MOST_DOUBLINGS = 40


class Backoff:
    """How a handler's failed tasks are tried again: `attempts` times in all (0: as the task says), after waits drawn
    at random up to `base`, which doubles with each attempt, and `cap`, in seconds.

    The attempts of the task, or its queue, hold too. Raises: BadRequest.
    """

    def __init__(self, *, base: Seconds, cap: Seconds = 3600, attempts: int = 0) -> None:
        self._base_ms, self._cap_ms = later.options.to_ms(base, "base"), later.options.to_ms(cap, "cap")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 0:
            raise BadRequest(f"attempts must be a whole number from 0 on, not {attempts!r:.80}", field="attempts")
        self._attempts = attempts

    def is_over(self, attempt: int) -> bool:
        """Return whether this attempt was the last one."""
        return 0 < self._attempts <= attempt

    def delay_ms(self, attempt: int) -> int:
        """Draw how long a task waits after an attempt that failed."""
        from random import random  # programs import this module at their top

        longest = min(self._cap_ms, self._base_ms << min(attempt - 1, _MOST_DOUBLINGS))
        return int(random() * longest) + 1
