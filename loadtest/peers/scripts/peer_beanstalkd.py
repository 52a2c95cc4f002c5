"""beanstalkd, spoken to directly over sockets: its protocol is lines of text."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading

import peerlib

BATCH = 100  # commands in one write
SLOTS = peerlib.SETTINGS["slots"]
RESERVE_ONE, RESERVE_MORE = b"reserve\r\n", b"reserve-with-timeout 0\r\n"


class Connection:
    """One connection; commands are written together and their replies read in turn."""

    def __init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", peerlib.SETTINGS["port"]))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.socket.makefile("rb", buffering=1 << 16)

    def read_reply(self, word: bytes) -> list[bytes]:
        """Read a reply that must begin with `word`."""
        reply = self.replies.readline().split()
        if not reply or reply[0] != word:
            raise RuntimeError(f"expected {word!r}, got {reply!r}")
        return reply

    def put(self, payloads: list[str]) -> None:
        """Put jobs: priority 0, no delay, 60 s to run."""
        self.socket.sendall(b"".join(b"put 0 0 60 %d\r\n%s\r\n" % (len(p), p.encode()) for p in payloads))
        for _ in payloads:
            self.read_reply(b"INSERTED")

    def reserve(self, count: int) -> list[tuple[bytes, str]]:
        """Reserve up to `count` jobs; waits for the first only."""
        self.socket.sendall(RESERVE_ONE + RESERVE_MORE * (count - 1))
        jobs = []
        for _ in range(count):
            reply = self.replies.readline().split()
            if reply[0] == b"RESERVED":
                jobs.append((reply[1], self.replies.read(int(reply[2]) + 2)[:-2].decode()))
            elif reply[0] != b"TIMED_OUT":
                raise RuntimeError(f"cannot reserve: {reply!r}")
        return jobs

    def delete(self, ids: list[bytes]) -> None:
        """Delete jobs, which is how they are acknowledged."""
        self.socket.sendall(b"".join(b"delete %s\r\n" % id for id in ids))
        for _ in ids:
            self.read_reply(b"DELETED")


class Client:
    """Puts jobs."""

    def __init__(self) -> None:
        self.connection = Connection()

    def one(self, payload: str) -> None:
        """Put a job."""
        self.connection.put([payload])

    def many(self, payloads: list[str]) -> None:
        """Put jobs, some in one write."""
        for start in range(0, len(payloads), BATCH):
            self.connection.put(payloads[start : start + BATCH])

    def left(self) -> int:
        """Count what is ready and what is reserved."""
        self.connection.socket.sendall(b"stats\r\n")
        length = int(self.connection.read_reply(b"OK")[1])
        lines = self.connection.replies.read(length + 2).decode().splitlines()
        counts = dict(line.split(": ") for line in lines if ": " in line)
        return int(counts["current-jobs-ready"]) + int(counts["current-jobs-reserved"])


def work(batch: int) -> None:
    """Reserve, do and delete jobs, `batch` at a time."""
    connection = Connection()
    while True:
        jobs = connection.reserve(batch)
        for _, payload in jobs:
            peerlib.handle(payload)
        connection.delete([id for id, _ in jobs])


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(peerlib.serve(Client()))
    elif SLOTS == 1:
        work(BATCH)
    else:
        threads = [threading.Thread(target=work, args=(1,)) for _ in range(SLOTS)]
        for thread in threads:
            thread.start()
