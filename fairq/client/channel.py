"""A websocket through TLS, or without, and how it is opened: no I/O, so that every runtime shares it."""

from __future__ import annotations

import random
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from attrs import define, field, frozen

from fairq.client.defaults import choose_token, choose_urls
from fairq.client.tls import Tls
from fairq.errors import FairqError, Forbidden, SettingsError, Unauthorized, Unavailable
from fairq.io.transport import PIECE_BYTES
from fairq.wire.connection_errors import Refused
from fairq.wire.raw_payloads import Message

if TYPE_CHECKING:
    from fairq.wire.websocket import ClientHandshake, WebSocket


@frozen
class Target:
    """Where a ws:// or wss:// URL leads."""

    url: str
    host: str
    port: int
    resource: str
    tls: ssl.SSLContext | None

    @property
    def address(self) -> str:
        """Spell the URL with its port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{self.resource}"

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext | None = None) -> Target:
        """Read a URL. Raises: SettingsError."""
        message = f"invalid server URL {url!r}: expected ws://host:port or wss://host"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise SettingsError(message, field="url") from None
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise SettingsError(message, field="url")
        if parts.scheme == "wss":
            return cls(url, parts.hostname, port or 443, parts.path or "/", tls or ssl.create_default_context())
        return cls(url, parts.hostname, port or 7700, parts.path or "/", None)

    def refusal(self, refused: Refused) -> FairqError:
        """Return the error that a refused handshake means."""
        if refused.status == 401:
            return Unauthorized(str(refused))
        if refused.status == 403:
            return Forbidden(str(refused))
        if refused.status:
            return Unavailable(f"{self.url} refused the connection: {refused}")
        if not self.tls:
            refused = Refused(0, f"{refused}; if it has a certificate, its URL is wss://")
        return self.unreachable(refused)

    def unreachable(self, error: Exception) -> Unavailable:
        """Return the error that a failed attempt to connect means."""
        said = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            said = "the server answered without TLS; is its URL ws://?"
        return Unavailable(f"{self.url} cannot be reached: {said}")


def choose_servers(urls: str | Sequence[str] | None, tls: ssl.SSLContext | None) -> list[Target]:
    """Return the servers of these URLs, in any order; None: those of FAIRQ_URL. Raises: SettingsError."""
    targets = [Target.parse(url, tls) for url in choose_urls(urls)]
    return random.sample(targets, len(targets))


def check_token(token: str | None) -> str:
    """Return a token, or (None) that of FAIRQ_TOKEN, as a header takes it. Raises: SettingsError."""
    text = choose_token(token).strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError("invalid token: printable ASCII without spaces", field="token")
    return text


@define(eq=False)
class Channel:
    """An open websocket and its TLS: bytes in and messages out, messages in and bytes out."""

    websocket: WebSocket
    tls: Tls | None = None
    _since_progress: int = field(default=0, init=False)  # bytes

    def receive(self, data: bytes) -> list[Message]:
        """Process bytes (empty: no more will come); returns the messages that they complete."""
        size, has_ended = len(data), not data
        if data and self.tls:
            data, has_ended = self._decrypt(self.tls, data)
        if has_ended:
            self.websocket.receive_end()
            return []
        messages = self.websocket.receive(data)
        self._since_progress = 0 if messages else self._since_progress + size
        return messages

    def has_progressed(self) -> bool:
        """True, once, when PIECE_BYTES more of a message that has not all come are here."""
        if self._since_progress < PIECE_BYTES:
            return False
        self._since_progress = 0
        return True

    @staticmethod
    def _decrypt(tls: Tls, data: bytes) -> tuple[bytes, bool]:
        """Return the plain bytes, and whether there will be no more."""
        try:
            plain = tls.decrypt(data)
        except OSError:
            return b"", True
        return plain, tls.has_ended and not plain

    def outgoing(self) -> bytes:
        """Return what the websocket, or TLS by itself, has to send, and forget it."""
        data = self.websocket.outgoing()
        return self.tls.encrypt(data) if self.tls else data


@define(eq=False)
class Opening:
    """The handshakes of TLS and of the websocket: send `outgoing`, and pass on what comes until it is a channel."""

    target: Target
    token: str = field(repr=False)
    _tls: Tls | None = field(init=False)
    _handshake: ClientHandshake | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._tls = Tls(self.target.tls, self.target.host) if self.target.tls else None
        if self._tls is None:
            self._handshake = self._begin()
        else:
            self._tls.shake_hands()

    def _begin(self) -> ClientHandshake:
        from fairq.wire.websocket import ClientHandshake  # takes as long to load as half of the SDK

        return ClientHandshake(self.target.address, self.token)

    def outgoing(self) -> bytes:
        """Return the bytes to send now, and forget them."""
        data = self._handshake.outgoing() if self._handshake else b""
        return self._tls.encrypt(data) if self._tls else data

    def receive(self, data: bytes) -> Channel | None:
        """Process bytes (empty: no more will come); returns the channel once it is open.

        Raises: Refused; ssl.SSLError: `outgoing` then has an alert for the server; OSError.
        """
        if self._handshake is None:
            self._start_tls(data)
            return None
        if data and self._tls:
            data = self._tls.decrypt(data)
            if not data and not self._tls.has_ended:
                return None  # a session ticket
        websocket = self._handshake.receive(data)
        return None if websocket is None else Channel(websocket, self._tls)

    def _start_tls(self, data: bytes) -> None:
        assert self._tls is not None
        if not data:
            raise OSError("the server closed the connection before it answered")
        if self._tls.shake_hands(data):
            self._handshake = self._begin()
