"""In which order and how soon a client tries its servers."""

from __future__ import annotations

from itertools import accumulate

import pytest

from fairq.client.channel import Target
from fairq.client.connect_steps import HANDSHAKE_S, Servers


def servers(count: int) -> Servers:
    return Servers([Target.parse(f"ws://host-{n}") for n in range(count)])


def test_the_next_server_is_the_one_behind_that_which_is_used() -> None:
    three = servers(3)
    hosts = [three.next().host for _ in range(4)]
    assert hosts == ["host-0", "host-1", "host-2", "host-0"]
    three.reached(three.targets[0])  # while the ones behind it were being tried
    assert three.next().host == "host-1"


@pytest.mark.parametrize(("count", "begun_at"), [(1, [0, 2, 4, 6, 8, 12]), (5, [0, 2, 4, 6, 8, 10, 14])])
def test_each_is_tried_two_seconds_after_the_one_before_and_then_ever_more_rarely(
    count: int, begun_at: list[float]
) -> None:
    pauses = accumulate((servers(count).pause_s(begun) for begun in range(1, 10)), initial=0.0)
    assert [at for at in pauses if at < HANDSHAKE_S] == begun_at
