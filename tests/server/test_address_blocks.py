"""What counts as one address."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import trio

from fairq.errors import TooMany, Unauthorized
from fairq.server.net.admission import HANDSHAKE_BURST, WRONG_BURST, Admission, block_of
from fairq.server.settings import Settings


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::%eth0", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("::1", "::1"),
        ("unknown", "unknown"),
    ],
)
def test_a_network_of_64_bits_is_one_address(address: str, block: str) -> None:
    assert block_of(address) == block


async def test_a_host_with_many_addresses_has_the_limits_of_one() -> None:
    admission, now = Admission(Settings(connections_per_address=2)), trio.current_time()
    assert sum(admission.hears(f"2001:db8::{n:x}", now) for n in range(3_000)) <= HANDSHAKE_BURST + 1
    assert admission.hears("2001:db8:0:1::1", now)
    with ExitStack() as inside:
        inside.enter_context(admission.from_address("2001:db8::1"))
        inside.enter_context(admission.from_address("2001:db8::2"))
        inside.enter_context(admission.from_address("2001:db8:0:1::2"))
        with pytest.raises(TooMany, match="2001:db8::/64"):
            inside.enter_context(admission.from_address("2001:db8::3"))
    refused = []
    for n in range(2 * round(WRONG_BURST)):
        with pytest.raises((Unauthorized, TooMany)) as caught, admission.wrong_tokens(f"2001:db8::{n:x}"):
            raise Unauthorized("unknown token")
        refused.append(type(caught.value))
    assert (refused[0], refused[-1]) == (Unauthorized, TooMany)
