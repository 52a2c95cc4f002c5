"""Who is noisy, and how alike tenants are served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fairq.model.fairness import NOTHING, Service, Share, added, jain_index, noisy_ones, shares, split_service
from fairq.model.history import OTHERS
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


BOOKED = some.dictionaries(some.sampled_from("abcde"), some.tuples(some.integers(0, 50), some.integers(0, 50)))


@given(BOOKED)
def test_contested_service_is_what_dues_add_up_to_and_the_rest_is_free(booked: dict[str, tuple[int, int]]) -> None:
    found = split_service(booked)
    whole, due = added(found.values()), sum(claim for _, claim in booked.values())
    for name, each in found.items():
        assert each.delivered == booked[name][0]
        assert -1e-9 <= each.free <= each.delivered
        assert each.contested >= min(each.delivered, each.due) - 1e-9, "its due comes first"
    if whole.due:
        assert whole.due == due
        assert whole.contested == pytest.approx(min(due, sum(given for given, claim in booked.values() if claim)))
    else:
        assert whole.free == whole.delivered


@pytest.mark.parametrize(
    ("booked", "contested"),
    [
        ({"ada": (8.0, 8.0), "bob": (2.0, 0.0)}, {"ada": 0.0, "bob": 0.0}),  # one had a backlog, the other one none
        ({OTHERS: (4.0, 4.0)}, {OTHERS: 4.0}),
        ({"idle": (48.6, 0.3), "too": (51.4, 0.2)}, {"idle": 0.3, "too": 0.2}),
        ({"batch": (14.0, 3.0), "ada": (3.0, 3.0)}, {"batch": 3.0, "ada": 3.0}),  # with a limit of its own
        ({"ada": (9.0, 5.0), "bob": (1.0, 5.0)}, {"ada": 9.0, "bob": 1.0}),
        ({"ada": (9.0, 5.0), "bob": (1.0, 5.0), "cleo": (7.0, 0.0)}, {"ada": 9.0, "bob": 1.0, "cleo": 0.0}),
    ],
)
def test_what_nobody_waited_for_is_no_injustice(
    booked: dict[str, tuple[float, float]], contested: dict[str, float]
) -> None:
    found = {name: each.contested for name, each in split_service(booked).items()}
    assert found == {name: pytest.approx(value) for name, value in contested.items()}


def test_shares_are_parts_of_all_that_was_given() -> None:
    assert shares({}) == {}
    assert shares(split_service({"ada": (0.0, 0.0)})) == {"ada": NOTHING}
    alone = shares(split_service({"ada": (8.0, 8.0), "bob": (2.0, 0.0)}))
    assert alone == {"ada": Share(0.8, None, 0.8), "bob": Share(0.2, None, 0.2)}
    assert alone["ada"].contested is None
    both = shares({"ada": Service(6.0, 3.0, 2.0), "bob": Service(4.0, 3.0, 2.0)})
    assert both["ada"] == Share(0.6, 0.3, 0.2)
    assert (both["ada"].fair, both["bob"].contested) == (0.5, 0.2)
