"""Errors that end a connection, or keep it from opening."""

from __future__ import annotations

from fairq.errors import Portable


class Disconnected(Portable):
    """The connection is gone; `code` is the other side's close code, if it gave one."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


class Refused(Portable):
    """The server refused the handshake: `status` is the HTTP status, 0 if the answer was not valid HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
