"""The model behind `fairq simulate`: its rules; tests/lua/test_simulation.py checks its predictions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.errors import BadRequest, FairqError, NotFound
from fairq.model.history import OTHERS, History, QueueSeries, QueueTotals, TenantSeries, TenantTotals
from fairq.model.limits import Limits
from fairq.model.operator_views import QueueRow
from fairq.model.queues import QueueSettings
from fairq.model.simulation import run
from fairq.model.simulation.comparison import compare
from fairq.model.simulation.observed import MAX_TASKS, Observed, cut, observe
from fairq.model.simulation.queue import SimulatedQueue, Start
from fairq.model.simulation.run import Played, play
from fairq.model.simulation.setup import Proposal, Setup, Terms, check_proposal
from fairq.model.simulation.traffic import Demand, Pattern, arrival_times, batch_size
from fairq.model.tenants import TenantState

STEP_MS = 10_000
COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def demand(name: str, arrivals: Sequence[int], run_ms: float, waiting: int = 0, fails: float = 0.0) -> Demand:
    """Make what a tenant asks for."""
    return Demand(name, name, arrivals, run_ms, fails, waiting, 5_000.0 if waiting else 0.0)


@st.composite
def queues(draw: Any) -> tuple[Setup, list[Demand], Pattern]:
    demands, terms = [], {}
    for n in range(draw(st.integers(1, 4))):
        name = f"t{n}"
        fails = draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
        demands.append(
            demand(name, draw(COUNTS), draw(st.sampled_from([1, 300, 9_000])), draw(st.integers(0, 9)), fails)
        )
        terms[name] = Terms(
            draw(st.sampled_from([0.25, 1.0, 8.0])), draw(st.integers(0, 3)), draw(st.integers(0, 2)),
            draw(st.sampled_from([0.0, 0.0, 0.5, 20.0])), draw(st.integers(0, 3)),
        )  # fmt: skip
    share, reserve = draw(st.sampled_from(["time", "count"])), draw(st.sampled_from([0, 0, 30]))
    setup = Setup(draw(st.integers(1, 5)), terms, share, reserve)
    batches = {each.tenant: draw(st.integers(2, 9)) for each in demands if draw(st.booleans())}
    return setup, demands, Pattern(batches, draw(st.booleans()))


@settings(max_examples=60)
@given(queues())
def test_shares_sum_to_one_limits_hold_and_no_task_is_lost_or_made(drawn: tuple[Setup, list[Demand], Pattern]) -> None:
    setup, demands, pattern = drawn
    watched: list[Start] = []

    class Watched(SimulatedQueue):
        def claim(self, limit: int, now: float) -> list[Start]:
            started = super().claim(limit, now)
            assert self.leased <= setup.slots
            for tenant in self.tenants.values():
                assert not (most := setup.tenants[tenant.name].max_running) or tenant.leased <= most
            watched.extend(started)
            return started

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "SimulatedQueue", Watched)
        played = play(setup, demands, STEP_MS, pattern)
    assert len(watched) == sum(each.started for each in played.outcomes.values())
    shares = [each.share for each in played.outcomes.values() if each.share is not None]
    assert not shares or sum(shares) == pytest.approx(1)
    assert 0 <= played.used <= 1 + 1e-9
    until = STEP_MS * max(len(each.arrivals) for each in demands)
    for each in demands:
        came = sum(each.arrivals) + each.waiting
        outcome = played.outcomes[each.tenant]
        if not each.fails:
            ends = sum(at >= until for at in arrivals_of(each, pattern))
            assert outcome.started + outcome.waiting == came - ends
        else:
            assert outcome.waiting <= came
            assert outcome.started <= came * setup.max_attempts
        assert (outcome.p99_ms or 0) >= (outcome.p50_ms or 0) >= 0
    assert played == play(setup, demands, STEP_MS, pattern), "it depends on the seed alone"


def arrivals_of(each: Demand, pattern: Pattern) -> list[float]:
    """Return when tasks come, as the first simulation has them."""
    return list(arrival_times(each, STEP_MS, pattern, 1.0, Random(f"0 {each.tenant}")))


def flood(weight: float = 1.0, slots: int = 4, **terms: Any) -> Played:
    """Have two tenants ask for more than there is."""
    demands = [demand(name, [100] * 30, 700, waiting=200) for name in ("one", "other")]
    setup = Setup(slots, {"one": Terms(weight, **terms), "other": Terms()})
    return play(setup, demands, STEP_MS, Pattern())


def test_shares_follow_the_weights_of_tenants_that_always_wait() -> None:
    last = 0.0
    for weight in (0.25, 1.0, 3.0, 9.0):
        share = flood(weight).outcomes["one"].share
        assert share is not None
        assert share == pytest.approx(weight / (1 + weight), abs=0.02)
        assert share > last
        last = share


def test_more_slots_serve_more_and_a_limit_leaves_the_rest_to_others() -> None:
    few, many = (sum(each.started for each in flood(slots=slots).outcomes.values()) for slots in (4, 8))
    assert many > 1.8 * few
    limited = flood(max_running=1).outcomes
    assert limited["one"].share == pytest.approx(0.25, abs=0.01)
    assert limited["other"].share == pytest.approx(0.75, abs=0.01)
    rated = flood(rate=0.5).outcomes["one"].started  # of 150; it waits for a slot each time
    assert 130 <= rated <= 150


def test_a_guarantee_and_a_reserve_let_a_quiet_tenant_start_at_once() -> None:
    demands = [demand("loud", [30] * 30, 9_000, waiting=100), demand("quiet", [1] * 30, 500)]

    def p99(reserve: int = 0, **terms: Any) -> int:
        setup = Setup(4, {"loud": Terms(), "quiet": Terms(**terms)}, reserve=reserve)
        found = play(setup, demands, STEP_MS, Pattern(is_uneven=False)).outcomes["quiet"].p99_ms
        assert found is not None
        return found

    assert p99() > 1_000
    assert p99(reserve=25) < 1_000


def test_one_simulation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_STARTS", 5_000)
    demands = [demand("one", [10_000] * 3, 1.0)]
    played = play(Setup(1_000, {"one": Terms()}), demands, STEP_MS, Pattern())
    assert played.outcomes["one"].started == run.MAX_STARTS
    assert 0 < played.over_ms < 3 * STEP_MS


# --- what the history tells


def series(
    name: str, enqueued: Sequence[int], started: Sequence[int], p50: int | None = 5, **totals: Any
) -> TenantSeries:
    count = len(enqueued)
    sums = {"enqueued": sum(enqueued), "started": sum(started), "done": sum(started), "delivered": 0.5 * sum(started)}
    whole = TenantTotals(**{**sums, "delivered_part": 0.5, "p50_ms": p50, "p99_ms": p50, **totals})
    waits = [p50 if each else None for each in started]
    return TenantSeries(
        name,
        list(enqueued), list(started), list(started), [0] * count, [None] * count, [None] * count, waits, waits,
        whole,
    )  # fmt: skip


def history(*tenants: TenantSeries) -> History:
    """Make a history of these tenants."""
    count = len(tenants[0].enqueued) if tenants else 0
    zeros, nones = [0] * count, [None] * count
    enqueued = [sum(column) for column in zip(*(each.enqueued for each in tenants), strict=True)]
    queue = QueueSeries(enqueued, enqueued, zeros, zeros, zeros, zeros, zeros, zeros, list(nones), list(nones))
    times = [STEP_MS * n for n in range(count)]
    return History(STEP_MS * count, STEP_MS, times, queue, QueueTotals(), list(tenants))


def row(ready: int = 0, leased: int = 0, slots: int = 4, share: str = "time") -> QueueRow:
    return QueueRow(
        "mail", ready, 0, 0, leased, 0, 0, 0, 0, 0, is_paused=False, is_closed=False, is_deleting=False,
        is_repairing=False, settings=QueueSettings(share=share, max_attempts=5), workers=1, slots=slots, kept=0, idle=0,
    )  # fmt: skip


def state(name: str, ready: int = 0, leased: int = 0, *, weight: float = 1.0, is_paused: bool = False) -> TenantState:
    return TenantState(name, weight, ready, 0, 0, leased, 0, 0, 0, 0, is_paused, False, False, False, False, 0)


def observed_now(*tenants: TenantSeries, **now: Any) -> Observed:
    """Observe a queue whose tenants have nothing ready now."""
    states = {each.tenant: state(each.tenant) for each in tenants if each.tenant}
    return observe(row(**now), history(*tenants), states, {})


def test_tasks_that_were_there_already_wait_from_the_beginning() -> None:
    observed = observe(row(40, 4), history(series("a", [10, 10], [30, 30], 60_000)), {"a": state("a", 40, 4)}, {})
    (only,) = observed.demands
    assert sum(only.arrivals) == 20
    assert only.waiting == 30 + 30 + 4 + 40 - 20
    assert only.waited_ms == 60_000
    assert only.run_ms == 500
    came = list(arrival_times(only, STEP_MS, Pattern(), 1.0, Random(1)))
    assert min(came) == -60_000
    assert sum(at < 0 for at in came) == only.waiting


def test_tasks_with_a_start_time_come_when_they_may_start() -> None:
    (later,) = observed_now(series("a", [1000, 0], [0, 10])).demands
    assert sum(later.arrivals) == 10, "the others still wait for their start time"
    (earlier,) = observed_now(series("a", [0, 0], [10, 30], 5)).demands
    assert (list(earlier.arrivals), earlier.waiting) == ([10, 30], 0)


def test_attempts_after_failures_are_no_tasks_of_their_own() -> None:
    (dying,) = observed_now(series("a", [0, 40, 0], [0, 100, 100], done=0, failed=200)).demands
    assert (sum(dying.arrivals), dying.fails) == (40, 1.0)
    (rejected,) = observed_now(series("a", [100, 100], [100, 100], done=100, failed=100)).demands
    assert (sum(rejected.arrivals), rejected.fails) == (200, 0.0)
    played = play(Setup(4, {"a": Terms()}), [dying], STEP_MS, Pattern())
    assert played.outcomes["a"].started > 3 * 40


@pytest.mark.parametrize("size", [1, 7, 60])
def test_how_many_tasks_come_at_once_is_read_from_the_counts(size: int) -> None:
    source, at, counts = Random(size), 0.0, [0] * 360
    while (at := at + source.expovariate(1 / (300 * size))) < 360 * STEP_MS:
        counts[int(at // STEP_MS)] += size
    assert batch_size(counts) == pytest.approx(size, rel=0.3)
    assert batch_size([n * 100 for n in range(360)]) == 1, "more and more, steadily"


def test_other_tenants_are_several_none_busier_than_the_named_ones() -> None:
    observed = observed_now(
        series("a", [40, 40], [40, 40]), series("b", [10, 10], [10, 10]), series(OTHERS, [35, 35], [35, 35])
    )
    others = [each for each in observed.demands if each.group == OTHERS]
    assert len(others) == 4
    assert sum(sum(each.arrivals) for each in others) == 70
    found = compare(observed, Proposal())
    assert [each.tenant for each in found.tenants] == ["a", "b", OTHERS]


def test_each_note_says_in_one_sentence_what_to_do() -> None:
    busy = series("a", [100] * 40, [100] * 40)
    warned = [*compare(observed_now(busy, slots=2), Proposal()).cautions]
    assert {"slots", "overload", "fit"} == {each.code for each in warned}
    observed = observe(
        row(), history(series("a", [1], [1])), {"a": state("a", is_paused=True), "idle": state("idle")}, {}
    )
    unsure = compare(observed, Proposal(weights={"idle": 2.0})).cautions
    assert {"little_history", "few_starts", "not_served", "idle"} == {each.code for each in unsure}
    shared = observe(row(leased=2, share="count"), history(series("a", [50], [50])), {"a": state("a", 0, 2)}, {})
    assert "run_time" in {each.code for each in shared.cautions}
    for each in (*warned, *unsure, *shared.cautions):
        assert each.text.partition(" ")[0] in ("Choose", "Compare", "Ignore", "Resume", "Simulate", "Use"), each
        assert each.text.count(".") == each.text.endswith(".") + len(re.findall(r"\d\.\d", each.text)), "one sentence"
    assert shared.demands[0].run_ms == 2 * STEP_MS / 50


def test_the_last_part_of_a_busy_period_is_taken() -> None:
    tenants = series("a", [MAX_TASKS // 4] * 10, [MAX_TASKS // 4] * 10)
    assert cut(history(tenants)) == 6 * STEP_MS
    assert cut(history(tenants), 2.0) == 8 * STEP_MS
    assert cut(history(series("a", [1], [1]))) == 0


def test_the_limits_of_today_are_simulated_and_those_proposed() -> None:
    limits = {"a": Limits(max_running=2, rate=3.5)}
    observed = observe(row(), history(series("a", [50], [50])), {"a": state("a", weight=2.0)}, limits)
    assert observed.setup.tenants["a"] == Terms(2.0, 2, 0, 3.5, 0)
    proposal = Proposal({"a": 4.0}, {"a": {"max_running": 1}}, slots=7, share="count", reserve=10)
    (only,) = compare(observed, proposal).tenants
    assert only.proposed_terms == evolve(only.terms, weight=4.0, max_running=1)
    setup = proposal.apply(observed.setup)
    assert (setup.slots, setup.share, setup.reserve) == (7, "count", 10)


REFUSED: list[tuple[Proposal, str]] = [
    (Proposal(weights={"a": 0.0}), "weight"),
    (Proposal(weights={"a": float("nan")}), "weight"),
    (Proposal(limits={"a": {"max_running": -1}}), "max_running"),
    (Proposal(limits={"a": {"max_running": 1.5}}), "max_running"),
    (Proposal(limits={"a": {"rate": float("inf")}}), "rate"),
    (Proposal(limits={"a": {"dead": 1}}), "dead"),
    (Proposal(traffic={"a": -1.0}), "traffic"),
    (Proposal(traffic={"a": 1e9}), "traffic"),
    (Proposal(slots=0), "slots"),
    (Proposal(slots=10_001), "slots"),
    (Proposal(share="fifo"), "share"),
    (Proposal(reserve=91), "reserve"),
    (Proposal(weights={f"t{n}": 1.0 for n in range(21)}), "tenants"),
]


def test_invalid_proposals_are_refused_by_field() -> None:
    for proposal, field in REFUSED:
        with pytest.raises(BadRequest) as refused:
            check_proposal(proposal)
        assert refused.value.field == field, proposal


def test_what_cannot_be_simulated_is_refused() -> None:
    some = history(series("a", [50], [50]))
    cases: list[tuple[Any, str]] = [
        (lambda: observe(row(), history(), {}, {}), "period"),
        (lambda: observe(row(), history(series("a", [5], [0])), {}, {}), "period"),
        (lambda: observe(row(slots=0), some, {}, {}), "slots"),
        (lambda: observe(row(share="count"), some, {}, {}), "run_time"),
        (lambda: compare(observe(row(), some, {}, {}), Proposal(weights={"b": 2.0})), "tenant"),
    ]
    for attempt, field in cases:
        with pytest.raises(FairqError) as refused:
            attempt()
        assert refused.value.field == field
        assert isinstance(refused.value, BadRequest | NotFound)
