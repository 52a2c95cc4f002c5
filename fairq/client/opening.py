"""What a client needs once it is open: loaded with the first one that is opened, which is later than its import."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fairq.client import bodies as bodies  # so that the first call does not wait for it
from fairq.client.driver import Driver
from fairq.client.runtime import background
from fairq.wire.client_session import ClientSession


@asynccontextmanager
async def connected(
    url: str | Sequence[str] | None, token: str | None, tls: ssl.SSLContext | None
) -> AsyncIterator[Driver[ClientSession]]:
    """Stay connected, again and again, until the block is left. Raises: as `open_client`."""
    driver = Driver.to(url, token, ClientSession(), tls)
    async with background(driver.run):
        yield driver
