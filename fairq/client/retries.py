"""A handler's rules for its tasks' attempts: how many, and the waits between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from fairq.client import lazy

if TYPE_CHECKING:
    from fairq.model.option_tables import Seconds
    from fairq.model.tasks import Settlement
    from fairq.wire.frames import PushedTask


@frozen
class Retries:
    """How many attempts a handler's tasks have, and their longest waits; 0: as the task and its queue have it."""

    max_attempts: int = 0
    base_ms: int = 0
    cap_ms: int = 0

    @classmethod
    def of(cls, max_attempts: int, retry_base: Seconds | None, retry_cap: Seconds | None) -> Retries:
        """Check what a handler says; if one wait is given, the other is that of a new queue. Raises: BadRequest."""
        lazy.tasks.ATTEMPTS.check(max_attempts, "max_attempts")
        if retry_base is None and retry_cap is None:
            return cls(max_attempts)
        new, some = lazy.queues.QueueSettings(), lazy.rules.SOME_SPAN
        return cls(
            max_attempts,
            new.retry_base_ms if retry_base is None else lazy.options.to_ms(retry_base, "retry_base", some),
            new.retry_cap_ms if retry_cap is None else lazy.options.to_ms(retry_cap, "retry_cap", some),
        )

    def limit(self, task: PushedTask) -> PushedTask:
        """Return a task as the handler sees it: of two limits the lower one holds."""
        if not self.max_attempts:
            return task
        mine = self.max_attempts + task.uncounted_attempts
        return task._replace(max_attempts=min(mine, task.max_attempts or mine))

    def settle(self, task: PushedTask, settlement: Settlement) -> Settlement:
        """Return how a failed attempt ends: for good if it was the handler's last, else after the handler's wait."""
        is_last_attempt = lazy.tasks.is_last_attempt
        if settlement.action != "nack" or is_last_attempt(task.attempt, task.max_attempts):
            return settlement
        if is_last_attempt(task.attempt, self.limit(task).max_attempts):
            return settlement._replace(action="reject", delay_ms=None)
        if not self.base_ms or settlement.delay_ms is not None:
            return settlement
        from random import Random

        failed = task.attempt - task.uncounted_attempts
        longest_ms = lazy.queues.longest_wait_ms(self.base_ms, self.cap_ms, failed)
        drawn = Random(f"{task.id} {task.attempt}").random()  # the same in each run of a test
        return settlement._replace(delay_ms=int(drawn * longest_ms) + 1)


AS_QUEUED = Retries()
