"""Who is noisy, and how alike tenants are served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fairq.model.fairness import jain_index, noisy_ones
from fairq.model.tenants import TenantState


def state(name: str, ready: int, leased: int = 0, weight: float = 1.0) -> TenantState:
    """A tenant with so many tasks."""
    return TenantState(name, weight, ready, 0, 0, leased, 0, 0, 0, 0, False, False, False, False, False, 0)


def test_noisy_is_who_asks_for_far_more_than_its_weight_is_worth() -> None:
    assert noisy_ones([state("flood", 5_000), *(state(f"q{n}", 3) for n in range(4))]) == {"flood"}
    for quiet in (
        [state("alone", 5_000)],
        [state("a", 100), state("b", 100), state("c", 100)],
        [state("paid", 900, weight=9), state("b", 100)],
        [state("few", 20), *(state(f"q{n}", 1) for n in range(9))],
        [state("done", 0, 90), *(state(f"q{n}", 1) for n in range(9))],
    ):
        assert noisy_ones(quiet) == set(), quiet


@given(some.lists(some.floats(0.01, 100), min_size=1, max_size=30))
def test_jains_index_is_one_only_when_all_are_served_alike(ratios: list[float]) -> None:
    index = jain_index(ratios)
    assert 1 / len(ratios) - 1e-9 <= index <= 1 + 1e-9
    assert jain_index([7.0] * len(ratios)) == pytest.approx(1)
    assert jain_index([1.0, *[0.0] * 9]) == pytest.approx(0.1)


def test_where_nobody_got_anything_all_are_alike() -> None:
    assert (jain_index([]), jain_index([0.0, 0.0])) == (1.0, 1.0)
