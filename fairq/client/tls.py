"""TLS without I/O: plain bytes in and encrypted bytes out, and the other way round."""

from __future__ import annotations

import ssl

from attrs import define, field

READ_BYTES = 65_536


@define(eq=False)
class Tls:
    """A client's end of a TLS connection. Every method raises ssl.SSLError if the other side breaks the protocol."""

    context: ssl.SSLContext
    host: str
    has_ended: bool = field(default=False, init=False)  # the other side said that it sends no more
    _arrived: ssl.MemoryBIO = field(factory=ssl.MemoryBIO, init=False)
    _leaving: ssl.MemoryBIO = field(factory=ssl.MemoryBIO, init=False)
    _object: ssl.SSLObject = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._object = self.context.wrap_bio(self._arrived, self._leaving, server_hostname=self.host)

    def shake_hands(self, data: bytes = b"") -> bool:
        """Process received bytes; returns whether the handshake is over. Either way `encrypt` has bytes to send."""
        self._arrived.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, data: bytes) -> bytes:
        """Return the bytes to send: for these plain ones, and what TLS has to say by itself."""
        while data:
            data = data[self._object.write(data) :]
        return self._leaving.read()

    def decrypt(self, data: bytes) -> bytes:
        """Process received bytes; returns the plain ones that they complete."""
        self._arrived.write(data)
        pieces: list[bytes] = []
        try:
            while piece := self._object.read(READ_BYTES):
                pieces.append(piece)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.has_ended = True
        return b"".join(pieces)
