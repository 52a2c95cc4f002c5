"""A receiver of webhooks: HTTP/1.1 by h11 over any stream, and a network that leads to receivers in the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import h11
import httpcore2
import trio
import trio.testing
from attrs import define, field, frozen


@frozen
class Request:
    """A request as it came; names of headers are in small letters."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@frozen
class Reply:
    """What a receiver answers. `pause`: seconds before each of the body's chunks."""

    status: int = 200
    headers: Mapping[str, str] = field(factory=dict)
    chunks: Iterable[bytes] = ()
    pause: float = 0.0


def reply(status: int = 200, body: bytes = b"", **headers: str) -> Reply:
    """A reply with a body in one piece; `retry_after=` is the header retry-after."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"content-length": str(len(body)), **named}, [body] if body else [])


Answering = Callable[[Request], Awaitable[Reply | bytes]]


async def ok(_: Request) -> Reply:
    """Answer 200 without a body."""
    return reply()


def answering(answer: Reply | bytes) -> Answering:
    """Answer always the same."""

    async def always(_: Request) -> Reply | bytes:
        await trio.lowlevel.checkpoint()
        return answer

    return always


async def silent(_: Request) -> Reply:
    """Never answer."""
    await trio.sleep_forever()
    raise AssertionError


@define(eq=False)
class Receiver:
    """Answers requests as the test wants, and keeps them; a reply of bytes is sent as it is and ends the connection."""

    answer: Answering = ok
    requests: list[Request] = field(factory=list)
    connections: int = 0

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serve one connection."""
        self.connections += 1
        connection = h11.Connection(h11.SERVER)
        try:
            while connection.our_state is h11.IDLE:
                request = await self._read(connection, stream)
                if request is None:
                    break
                self.requests.append(request)
                answer = await self.answer(request)
                if isinstance(answer, bytes):
                    await stream.send_all(answer)
                    break
                await self._write(connection, stream, answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _read(self, connection: h11.Connection, stream: trio.abc.Stream) -> Request | None:
        head, body = None, bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some()))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {name.decode(): value.decode() for name, value in head.headers}
                return Request(head.method.decode(), head.target.decode(), headers, bytes(body))
            else:
                return None

    async def _write(self, connection: h11.Connection, stream: trio.abc.Stream, answer: Reply) -> None:
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        events: list[h11.Event] = [h11.Response(status_code=answer.status, headers=headers)]
        await stream.send_all(_bytes(connection.send(events[0])))
        for chunk in answer.chunks:
            await trio.sleep(answer.pause)
            await stream.send_all(_bytes(connection.send(h11.Data(data=chunk))))
        await stream.send_all(_bytes(connection.send(h11.EndOfMessage())))
        if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
            connection.start_next_cycle()


def _bytes(data: bytes | None) -> bytes:
    return data or b""


class MemoryStream(httpcore2.AsyncNetworkStream):
    """The HTTP client's end of a connection without a socket."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            return bytes(await self.stream.receive_some(max_bytes))
        except trio.BrokenResourceError as error:
            raise httpcore2.ReadError(error) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            await self.stream.send_all(buffer)
        except trio.BrokenResourceError as error:
            raise httpcore2.WriteError(error) from error

    async def aclose(self) -> None:
        await self.stream.aclose()


@define(eq=False)
class MemoryNetwork(httpcore2.AsyncNetworkBackend):
    """Addresses that lead to receivers; a `slow` one accepts no connections, others refuse them."""

    nursery: trio.Nursery
    receivers: dict[str, Receiver]
    slow: frozenset[str] = frozenset()
    dialled: list[tuple[str, int]] = field(factory=list)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.dialled.append((host, port))
        if host in self.slow:
            with trio.move_on_after(float("inf") if timeout is None else timeout):
                await trio.sleep_forever()
            raise httpcore2.ConnectTimeout
        if host not in self.receivers:
            raise httpcore2.ConnectError(OSError("connection refused"))
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.receivers[host].handle, theirs)
        return MemoryStream(ours)
