"""What one connection can do to a server: `python -m loadtest.abusers NAME URL SECONDS`, in a process of its own.

Prints `ready` when it begins, and what it did, as one JSON object, when the time is up. Frames are made beforehand and
written to plain sockets, so that little of this machine goes to the abuser. All is bounded in time, and what is kept
by the server in count; an abuser that is cut off connects again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import trio
from attrs import define, field
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, Protocol, Side

from fairq.model.checks import MAX_INLINE_BYTES
from fairq.tokens import make_token
from fairq.wire.terms import SUBPROTOCOL, Role

TENANT, WORKER, OPERATOR = "dev-tenant:abuser", "dev-worker", "dev-operator"
QUEUE = "abuse"  # no worker takes its tasks
ADDRESS = "127.0.0.2"  # not the victim's: servers count by address, too
PAGES = "operators' pages"  # at the operators' listener
HTTP = "HTTP requests"  # at the HTTP API
PACE_S = 0.016
AGAIN_S = 0.02  # between two connections
RECEIVE_BYTES = 1 << 16
MAX_FRAMES = 2_000  # of half a megabyte that are kept
LONG_BYTES = 1_000_000  # of a payload
SLOW_BYTES_PER_S = 500_000
DAY_MS = 86_400_000


class Ended(Exception):
    """The server has ended the connection, or will not have it."""


def frame_of(text: str | bytes, opcode: Opcode = Opcode.TEXT, *, final: bool = True) -> bytes:
    """Make a masked frame."""
    return Frame(opcode, text.encode() if isinstance(text, str) else text, final).serialize(mask=True)


def request(type: str, ref: int, **fields: Any) -> bytes:
    """Make a request."""
    return frame_of(json.dumps({"type": type, "ref": ref, **fields}))


def enqueue(ref: int, queue: str, ids: Sequence[str], payload: Any) -> bytes:
    """Make an enqueue of tasks with the same payload, beside the frame if it is long."""
    text = json.dumps(payload, separators=(",", ":")).encode()
    if len(text) <= MAX_INLINE_BYTES:
        return request("enqueue", ref, queue=queue, tasks=[{"id": id, "payload": payload} for id in ids])
    tasks = [{"id": id, "payload_bytes": len(text)} for id in ids]
    head = json.dumps({"type": "enqueue", "ref": ref, "queue": queue, "tasks": tasks}).encode()
    return frame_of(head + b"\n" + text * len(ids), Opcode.BINARY)


@define(eq=False)
class Link:
    """One websocket on a plain socket."""

    stream: trio.SocketStream
    counts: Counter[str]
    _protocol: Protocol = field(factory=lambda: Protocol(Side.CLIENT, state=OPEN, max_size=None), init=False)

    async def shake_hands(self, token: str) -> None:
        """Open the websocket. Raises: Ended if the server will not have it."""
        lines = (
            "GET / HTTP/1.1", "Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}", f"Authorization: Bearer {token}",
        )  # fmt: skip
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await self._some()
        if b" 101 " not in answer[:16]:
            raise Ended
        self._protocol.receive_data(answer.partition(b"\r\n\r\n")[2])

    async def _some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        if not (data := bytes(await self.stream.receive_some(max_bytes))):
            raise Ended
        return data

    async def send(self, data: bytes, frames: int = 1) -> None:
        """Send frames that were made already."""
        await self.stream.send_all(data)
        self.counts["frames"] += frames
        self.counts["bytes"] += len(data)

    async def receive(self, max_bytes: int = RECEIVE_BYTES) -> list[dict[str, Any]]:
        """Receive some bytes; returns the messages that they complete."""
        self._protocol.receive_data(await self._some(max_bytes))
        frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        texts = [
            bytes(frame.data).partition(b"\n")[0] for frame in frames if frame.opcode in (Opcode.TEXT, Opcode.BINARY)
        ]
        messages = [json.loads(text) for text in texts]
        self.counts["refusals"] += sum(message["type"] == "error" for message in messages)
        return messages

    async def answers(self, wanted: int) -> list[dict[str, Any]]:
        """Receive answers to so many requests."""
        found: list[dict[str, Any]] = []
        while len(found) < wanted:
            found += [message for message in await self.receive() if "ref" in message]
        return found

    async def read_on(self) -> None:
        """Read and forget, until the server ends it."""
        while True:
            await self._some(1 << 20)


@define(eq=False)
class Site:
    """Where and how long to abuse, and a record of the abuse."""

    url: str
    seconds: float
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    counts: Counter[str] = field(factory=Counter, init=False)

    async def dial(self, receive_bytes: int = 0) -> trio.SocketStream:
        """Connect; `receive_bytes`: what the kernel keeps of what is not read."""
        target = urlsplit(self.url)
        socket = trio.socket.socket()
        try:
            if receive_bytes:
                socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_bytes)
            await socket.bind((ADDRESS, 0))
            await socket.connect((target.hostname, target.port))
        except BaseException:
            socket.close()
            raise
        self.counts["connections"] += 1
        return trio.SocketStream(socket)

    @asynccontextmanager
    async def link(self, token: str = TENANT, *, receive_bytes: int = 0) -> AsyncIterator[Link]:
        """Keep a websocket while the context lasts."""
        stream = await self.dial(receive_bytes)
        try:
            link = Link(stream, self.counts)
            await link.shake_hands(token)
            yield link
        finally:
            await trio.aclose_forcefully(stream)

    @asynccontextmanager
    async def reading_link(self) -> AsyncIterator[Link]:
        """Keep a websocket on which all answers are read and forgotten."""
        async with self.link(TENANT) as link, trio.open_nursery() as nursery:
            nursery.start_soon(link.read_on)
            yield link


async def _flood(site: Site, blob: bytes, frames: int, period: float = 0.0, first: bytes = b"") -> None:
    async with site.reading_link() as link:
        await link.send(first, 0)
        while True:
            began = trio.current_time()
            await link.send(blob, frames)
            await trio.sleep_until(began + period)


async def empty_fragments(site: Site) -> None:
    """Send empty fragments of a message that does not end, 0.7 MB/s."""
    fragment = frame_of("", Opcode.CONT, final=False)
    many = int(700_000 * PACE_S / len(fragment))
    await _flood(site, fragment * many, many, PACE_S, frame_of("", final=False))


async def pings(site: Site) -> None:
    """Send 2,000 pings every 16 ms."""
    await _flood(site, frame_of("", Opcode.PING) * 2_000, 2_000, PACE_S)


async def tiny_texts(site: Site) -> None:
    """Send 2,000 texts `{}` every 16 ms."""
    await _flood(site, frame_of("{}") * 2_000, 2_000, PACE_S)


async def noise(site: Site) -> None:
    """Send binary messages and broken JSON as fast as they are taken."""
    await _flood(site, (frame_of(b"\x00\x01", Opcode.BINARY) + frame_of('{"type": "enqueue", "ref"')) * 500, 1_000)


def half_megabytes(name: str) -> Iterator[bytes]:
    """Make enqueue frames of 490 KiB as Python's json writes them: many tasks, with spaces and ASCII escapes."""
    payload = {"customer": "Zoë Grünwald", "lines": [{"sku": f"é-{n}", "price": n + 0.25, "n": n} for n in range(20)]}
    task = {"id": f"{name}-NNNNNNNN-NNN", "payload": payload}
    fit = min(500, 490 * 1024 // len(json.dumps(task)))
    tasks = [{**task, "id": f"{name}-NNNNNNNN-{n}"} for n in range(fit)]
    text = json.dumps({"type": "enqueue", "ref": 1, "queue": QUEUE, "tasks": tasks})
    for n in range(MAX_FRAMES):
        yield frame_of(text.replace("NNNNNNNN", f"{n:08}"))


async def enqueue_and_wait(site: Site) -> None:
    """Send enqueue frames of 490 KiB of ordinary Python JSON, each when the one before has been answered."""
    connection = site.counts["connections"]
    async with site.link() as link:
        for data in half_megabytes(f"wait-{connection}"):
            await link.send(data)
            await link.answers(1)
        await trio.sleep_forever()


async def enqueue_on(site: Site) -> None:
    """Send enqueue frames of 490 KiB of ordinary Python JSON, back to back."""
    connection = site.counts["connections"]
    async with site.reading_link() as link:
        for data in half_megabytes(f"on-{connection}"):
            await link.send(data)
        await trio.sleep_forever()


def long_message() -> str:
    """Make an enqueue frame of nearly 2 MiB, as Python's json writes it: long lists of numbers."""
    numbers = [10**19 + n for n in range(3_060)]  # 22 bytes each here, 21 as the server counts a payload
    tasks = [{"id": f"long-{n}", "payload": [*numbers, "x" * 20]} for n in range(31)]
    return json.dumps({"type": "enqueue", "ref": 1, "queue": QUEUE, "tasks": tasks})


async def long_messages(site: Site) -> None:
    """Send one message of nearly 2 MiB again and again."""
    await _flood(site, frame_of(long_message()), 1)


async def queue_names(site: Site) -> None:
    """Make 10,000 queues: as a tenant until that is refused, then by pausing them as an operator."""
    async with site.link() as link:
        for n in range(200):
            tasks = [{"id": f"name-{n}", "payload": 0}]
            await link.send(request("enqueue", n, queue=f"made-{n}", tasks=tasks))
        await link.answers(200)
        async with site.link(OPERATOR) as operator:
            for first in range(0, 10_000, 250):
                await operator.send(
                    b"".join(request("set_paused", n, paused=True, queue=f"named-{first + n}") for n in range(250)), 250
                )
                await operator.answers(250)
                site.counts["names"] += 250
            await trio.sleep_forever()


async def unread_peeks(site: Site) -> None:
    """Ask 250 times for 1 MiB of waiting payloads, and read nothing."""
    async with site.link(receive_bytes=4_096) as link:
        await link.send(enqueue(0, "peeks", [f"peek-{n}" for n in range(4)], "x" * (1 << 18)))
        await link.answers(1)
        await link.send(b"".join(request("peek", n, queue="peeks", count=500) for n in range(250)), 250)
        while True:
            await trio.sleep(0.25)
            await link.send(frame_of('{"type":"ping"}'))


def long_task_bytes(seconds: float) -> int:
    """Tell how long the slow worker's payloads are: a megabyte, unless the time is short."""
    return LONG_BYTES if seconds >= 5 else LONG_BYTES // 25


async def slow_worker(site: Site) -> None:
    """Be a worker that reads 0.5 MB/s and is pushed eight tasks of 1 MB; works until all are acknowledged."""
    site.scope.deadline = trio.current_time() + max(site.seconds, 60)
    async with site.link() as tenant, site.link(WORKER, receive_bytes=16_384) as worker:
        for n in range(8):
            await tenant.send(enqueue(n, "slow", [f"slow-{n}"], "x" * long_task_bytes(site.seconds)))
        await tenant.answers(8)
        await worker.send(request("attach", 0, worker="slow", queues=["slow"], credit=8))
        while site.counts["acknowledged"] < 8:
            for message in await worker.receive(4_096):
                await _acknowledge(site, worker, message)
            await trio.sleep(4_096 / SLOW_BYTES_PER_S)


async def _acknowledge(site: Site, worker: Link, message: dict[str, Any]) -> None:
    if message["type"] == "push":
        acks = [{"action": "ack", "id": task["id"], "lease": task["lease"]} for task in message["tasks"]]
        site.counts["pushed"] += len(acks)
        await worker.send(request("settle", 1, queue="slow", settlements=acks))
    site.counts["acknowledged"] += message.get("body", {}).get("outcomes", []).count("ok")


async def silent_connections(site: Site) -> None:
    """Keep 500 TCP connections on which nothing is said."""

    async def be_silent() -> None:
        while True:
            async with await site.dial() as stream:
                with trio.move_on_after(60):
                    while await stream.receive_some():
                        pass
            await trio.sleep(AGAIN_S)

    async with trio.open_nursery() as nursery:
        for _ in range(500):
            nursery.start_soon(be_silent)


async def refused_handshakes(site: Site) -> None:
    """Open 200 connections a second, with unknown tokens."""

    async def knock() -> None:
        try:
            async with site.link(make_token(Role.TENANT)[1]):
                site.counts["let in"] += 1
        except (Ended, OSError, trio.BrokenResourceError):
            site.counts["refusals"] += 1

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        for n in count():
            await trio.sleep_until(began + n / 200)
            if len(nursery.child_tasks) < 500:
                nursery.start_soon(knock)


async def pending_waits(site: Site) -> None:
    """Wait for the ends of tasks that are due tomorrow, 10,000 times a second; the server keeps 4,096 of them."""
    ids = [f"wait-{n}" for n in range(500)]
    waits = [request("wait_tasks", n, queue=QUEUE, ids=[ids[n % 500]], timeout_ms=60_000) for n in range(10_000)]
    blobs = [b"".join(waits[n : n + 200]) for n in range(0, 10_000, 200)]
    async with site.link() as link:
        await link.send(
            request("enqueue", 0, queue=QUEUE, tasks=[{"id": id, "payload": 0, "delay_ms": DAY_MS} for id in ids])
        )
        await link.answers(1)
    async with site.reading_link() as link:
        for n in count():
            began = trio.current_time()
            await link.send(blobs[n % len(blobs)], 200)
            await trio.sleep_until(began + 0.02)


async def enqueue_and_cancel(site: Site) -> None:
    """Enqueue and cancel a hundred tasks, one per request, again and again."""
    async with site.link() as link:
        for turn in count():
            ids = [f"brief-{turn}-{n}" for n in range(100)]
            requests = [
                request("enqueue", n, queue=QUEUE, tasks=[{"id": id, "payload": 0}]) for n, id in enumerate(ids)
            ]
            requests += [request("cancel", 100 + n, queue=QUEUE, ids=[id]) for n, id in enumerate(ids)]
            await link.send(b"".join(requests), 200)
            await link.answers(200)


async def purges(site: Site) -> None:
    """Enqueue 5,000 tasks that are due tomorrow and cancel all that wait, again and again."""
    async with site.link() as link:
        for turn in count():
            for part in range(10):
                tasks = [{"id": f"purged-{turn}-{part}-{n}", "payload": 0, "delay_ms": DAY_MS} for n in range(500)]
                await link.send(request("enqueue", part, queue=QUEUE, tasks=tasks))
            await link.answers(10)
            body: dict[str, Any] = {"cursor": None}
            while body:
                await link.send(request("cancel_all", 0, queue=QUEUE, cursor=body["cursor"]))
                (answer,) = await link.answers(1)
                body = answer.get("body", {})
                site.counts["cancelled"] += body.get("cancelled", 0)
                if not body.get("cursor"):
                    break


async def pages(site: Site) -> None:
    """Look at pages of the operators' listener, on 30 connections with the right to see all, as fast as it answers."""
    paths = ("/", "/queues", f"/tenants?queue={QUEUE}", "/api/queues", "/metrics", "/system")
    ask = "GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer dev-operator\r\nCookie: {}\r\n\r\n"

    async def look() -> None:
        async with await site.dial() as stream:
            cookie = ""
            for n in count():
                fields = await _ask(site, stream, ask.format(paths[n % len(paths)], cookie).encode())
                cookie = fields.get(b"set-cookie", cookie.encode()).decode().partition(";")[0]

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(look)


async def _ask(site: Site, stream: trio.SocketStream, request: bytes) -> dict[bytes, bytes]:
    """Make a request over HTTP, and read its answer; returns the headers. Raises: Ended."""
    await stream.send_all(request)
    head = b""
    while b"\r\n\r\n" not in head:
        if not (more := bytes(await stream.receive_some(RECEIVE_BYTES))):
            raise Ended
        head += more
    top, _, body = head.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in top.split(b"\r\n")[1:])
    left = int(fields.get(b"content-length", b"0")) - len(body)
    while left > 0:
        left -= len(await stream.receive_some(RECEIVE_BYTES))
    site.counts[top[9:12].decode()] += 1
    return fields


async def http_requests(site: Site) -> None:
    """Ask the HTTP API on 200 connections with a token, and on 200 without one, as fast as it answers."""
    path, token = f"/v1/queues/{QUEUE}/limits", f"Authorization: Bearer {TENANT}\r\n"

    async def ask(headers: str) -> None:
        async with await site.dial() as stream:
            while True:
                await _ask(site, stream, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode())

    async with trio.open_nursery() as nursery:
        for n in range(400):
            nursery.start_soon(ask, token if n % 2 else "")


async def schedules(site: Site) -> None:
    """Make up to 20,000 schedules that fire every second, in 20 queues, and send nothing more."""

    async def make(queue: str) -> None:
        async with site.link() as link:
            for first in range(0, 1_000, 50):
                names = [f"s{first + n}" for n in range(50)]
                asked = [
                    request("schedule", n, queue=queue, name=name, payload=0, every_ms=1_000)
                    for n, name in enumerate(names)
                ]
                await link.send(b"".join(asked), len(asked))
                await link.answers(len(asked))
                site.counts["schedules"] += len(asked)

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(make, f"fires-{n}")
    await trio.sleep_forever()


ABUSERS: dict[str, Callable[[Site], Awaitable[None]]] = {
    "empty fragments": empty_fragments,
    "pings": pings,
    "tiny texts": tiny_texts,
    "enqueue, waiting": enqueue_and_wait,
    "enqueue, not waiting": enqueue_on,
    "long messages": long_messages,
    "unread peeks": unread_peeks,
    "slow worker": slow_worker,
    "silent connections": silent_connections,
    "refused handshakes": refused_handshakes,
    "pending waits": pending_waits,
    "enqueue and cancel": enqueue_and_cancel,
    "purges": purges,
    PAGES: pages,
    HTTP: http_requests,
    "binary and broken": noise,
    "schedules": schedules,
    "queue names": queue_names,  # the last: what this and the one before have made stays
}


async def abuse(name: str, url: str, seconds: float) -> Counter[str]:
    """Abuse a server for so long; returns the record of it."""
    site = Site(url, seconds)
    with site.scope:
        site.scope.deadline = trio.current_time() + seconds
        is_done = False
        while not is_done:
            try:
                await ABUSERS[name](site)
                is_done = True
            except* (Ended, OSError, trio.BrokenResourceError):
                site.counts["ended"] += 1
                await trio.sleep(AGAIN_S)
    return site.counts


def main(argv: Sequence[str]) -> None:
    """Abuse a server; ends the process with 2 when the arguments make no sense."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.abusers", description=__doc__)
    parser.add_argument("name", choices=ABUSERS)
    parser.add_argument("url")
    parser.add_argument("seconds", type=float)
    given = parser.parse_args(argv)
    print("ready", flush=True)
    print(json.dumps(trio.run(abuse, given.name, given.url, given.seconds)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
