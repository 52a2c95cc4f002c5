"""What `fairq doctor` says of queues with partitions."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from fairq.cli.doctor import look_at_partitions
from fairq.model.operator_views import PartitionRow, QueueRow
from fairq.model.places import AwayPartition
from fairq.model.queues import QueueSettings
from fairq.store.rows import COUNTS, FLAGS


def row(slots: int, *counts: int) -> QueueRow:
    """Return a queue's row: its slots, and how many partitions each primary has."""
    names = [f"primary-{n}" for n, count in enumerate(counts) for _ in range(count)]
    places = [PartitionRow(f"p{n}", name, 1.0, 0, 0, 0, 0, 0) for n, name in enumerate(names)]
    settings = QueueSettings(partitions=len(places))
    values: dict[str, Any] = dict.fromkeys((*COUNTS, *FLAGS, "workers", "kept", "idle"), 0)
    return QueueRow(**values, queue="imports", settings=settings, slots=slots, places=places)


def said(of: QueueRow) -> list[str]:
    return [each.message for each in look_at_partitions(of)]


def test_a_queue_with_enough_slots_and_even_partitions_needs_nothing() -> None:
    assert said(row(120, 4, 4, 4)) == []
    assert said(row(0, 4, 4, 4)) == [], "no worker is there: another finding says so"
    assert said(row(1_000, 6, 4, 2)) == [], "half more than its part is not too much"


def test_partitions_that_do_not_answer_are_named() -> None:
    away = [AwayPartition("4.2", "primary-0"), AwayPartition("4.8", "primary-0")]
    (finding,) = look_at_partitions(evolve(row(1, 9, 2, 1), away=[*away, *away]))  # as by two pages of a list
    assert finding.level == "problem"
    assert finding.message == ("partitions 4.2, 4.8 of imports cannot be read: the store at primary-0 does not answer")
    (finding,) = look_at_partitions(evolve(row(1), away=[AwayPartition("", "")]))
    assert finding.message == "imports cannot be read: the store at no primary does not answer"
    many = [AwayPartition(f"12.{n}", f"p{n % 2}") for n in range(7)]
    (finding,) = look_at_partitions(evolve(row(1), away=many))
    assert "12.4 and 2 more of imports cannot be read: the store at p0, p1 does" in finding.message


def test_few_slots_and_a_full_primary_are_named() -> None:
    assert said(row(119, 4, 4, 4)) == ["queue imports has 119 slots for 12 partitions: its claims bring few tasks"]
    assert said(row(120, 7, 4, 1)) == ["primary primary-0 has 7 of 12 partitions of queue imports"]
    assert len(said(evolve(row(20, 9, 2, 1)))) == 2
