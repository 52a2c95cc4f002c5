"""Versions: a change that is based on another value than the current one is refused, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.model.limits import LIMIT_RANGES, Limits
from fairq.model.queues import SHARES, QueueSettings
from fairq.model.versions import hours_version, limits_version, settings_version, weight_version
from fairq.store.rows import limits_of, settings_of

from .calls import Queue, refused


def weight(queue: Queue, value: int, *version: str) -> Any:
    """Set ada's weight."""
    return queue.call("set_weight", "ada", value, *version)


def hours(queue: Queue, text: str, *version: str) -> Any:
    """Set ada's opening hours."""
    return queue.call("set_opening_hours", "ada", text, 1, queue.now + 1000, "", *version)


def limits(queue: Queue, value: int, *version: str) -> Any:
    return queue.call("set_limits", "ada", *(("if_version", *version) if version else ()), "max_running", value)


def configure(queue: Queue, value: int, *version: str) -> Any:
    """Change a setting."""
    return queue.call("configure", "max_attempts", value, *(("if_version", *version) if version else ()))


def current(queue: Queue, change: Callable[..., Any]) -> str:
    if change is weight:
        return weight_version(queue.tenant("ada").weight / 1000 if queue.client.exists(queue.key("tenants")) else 1)
    if change is limits:
        return limits_version(limits_of(queue.call("limits", "ada")))
    if change is hours:
        rows = queue.call("opening_hours", "ada")[1:]
        return hours_version(rows[0][1].decode(errors="replace")[-3:] if rows else "")
    return settings_version(settings_of(queue.call("configure")))


CHANGES: dict[Callable[..., Any], tuple[Any, Any, Any]] = {
    weight: (2000, 3000, 4000), limits: (2, 3, 4), configure: (2, 3, 4), hours: ("h-1", "h-2", "h-3"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_of_two_that_have_read_the_same_the_second_is_refused(queue: Queue, change: Callable[..., Any]) -> None:
    first, second, third = CHANGES[change]
    version = current(queue, change)
    change(queue, first, version)
    now = current(queue, change)
    assert now != version
    args: Any = {
        weight: ("set_weight", "ada", second, version),
        limits: ("set_limits", "ada", "if_version", version, "max_running", second),
        configure: ("configure", "max_attempts", second, "if_version", version),
        hours: ("set_opening_hours", "ada", second, 1, queue.now + 1000, "", version),
    }[change]
    refused(queue, f"stale_version if_version {now}", *args)
    change(queue, first, version)  # sent again: the first answer was lost
    assert current(queue, change) == now
    change(queue, third, now)
    change(queue, first, "")
    assert current(queue, change) == now, "the same value has the same version"


def test_a_server_that_changes_hours_by_the_clock_brings_no_version(queue: Queue) -> None:
    hours(queue, "h-1")
    revision = queue.call("opening_hours", "ada")[1][1]
    assert queue.call("set_opening_hours", "ada", "h-1", 0, queue.now + 9, revision) == b"h-1"


@given(st.integers(1, 9_999_999))
def test_weights_that_differ_by_a_thousandth_have_different_versions(thousandths: int) -> None:
    assert weight_version(thousandths / 1_000) != weight_version((thousandths + 1) / 1_000)


@given(st.dictionaries(st.sampled_from(sorted(LIMIT_RANGES)), st.one_of(st.none(), st.integers(0, 1000)), min_size=1))
def test_limits_have_one_version_each(changes: dict[str, int | None]) -> None:
    held = Limits(**changes)
    assert (limits_version(held) == limits_version(Limits())) == (held == Limits())


def test_settings_have_one_version_each() -> None:
    fresh = settings_version(QueueSettings())
    assert settings_version(QueueSettings(share=SHARES[1])) != fresh
    assert settings_version(QueueSettings(lease_ms=31_000)) != fresh
