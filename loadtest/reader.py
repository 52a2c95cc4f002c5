"""Somebody who opens pages, one after the other: `python -m loadtest.reader URL PLACES ROUNDS SECONDS`.

PLACES is a JSON object: what each place is called, and its path. Each round opens all of them, and the reading ends
after ROUNDS or SECONDS. A stream is read until its first event and then left, a page to its end. Without ROUNDS (0) the
reader is a tab: it opens each place's page and follows its stream for SECONDS. It prints, as JSON, how many ms each of
them took: from the request's first byte to the answer's last one; a tab, from its start to each event.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPResponse
from itertools import count
from urllib.parse import urlsplit

import orjson
from attrs import define, field

PERIOD_S = 0.025  # between two requests at least: the listener answers an address 50 in a second
ANSWER_S = 30.0
_MAX_BYTES = 1 << 28


class Refused(Exception):
    """A place was not answered with what it has."""


@define(eq=False)
class Reader:
    """A browser with a cookie, and one connection for all but the streams."""

    address: str
    took_ms: dict[str, list[float]] = field(factory=dict, init=False)
    _connection: HTTPConnection = field(init=False)
    _headers: dict[str, str] = field(factory=lambda: {"Authorization": "Bearer dev-operator"}, init=False)

    def __attrs_post_init__(self) -> None:
        self._connection = self._dial()

    def _dial(self) -> HTTPConnection:
        return HTTPConnection(self.address, timeout=ANSWER_S)

    def open(self, name: str, path: str) -> None:
        """Open a place once. Raises: Refused."""
        began = time.perf_counter()
        if path.startswith("/live/"):
            stream = self._dial()
            self._ask(stream, path).readline()  # the event's first line; the others left with it
            stream.close()
        else:
            self._ask(self._connection, path).read(_MAX_BYTES)
        self.took_ms.setdefault(name, []).append((time.perf_counter() - began) * 1000)

    def follow(self, name: str, path: str, seconds: float) -> None:
        """Open a page and follow its stream, as a tab does. Raises: Refused."""
        self.open(name, path)
        began = time.monotonic()
        connection = self._dial()
        stream = self._ask(connection, f"/live{path}")
        while (left := began + seconds - time.monotonic()) > 0:
            connection.sock.settimeout(left)
            try:
                line = stream.readline()
            except TimeoutError:  # nothing changes on the page
                return
            if not line:
                raise Refused(f"the stream of {path} ended")
            if line == b"\n":  # an event's end
                self.took_ms[name].append((time.monotonic() - began) * 1000)

    def _ask(self, connection: HTTPConnection, path: str) -> HTTPResponse:
        connection.request("GET", path, headers=self._headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refused(f"{path} was answered {answer.status}: {answer.read(1_000)!r}")
        if cookie := answer.getheader("set-cookie"):
            self._headers["Cookie"] = cookie.partition(";")[0]
        return answer

    def read(self, places: Mapping[str, str], rounds: int, seconds: float) -> None:
        """Open all places again and again; `{n}` in a path is the number of the round. Raises: Refused."""
        began = due = time.monotonic()
        for n in count():
            for name, path in places.items():
                if n >= rounds or time.monotonic() > began + seconds:
                    return
                time.sleep(max(0.0, due - time.monotonic()))
                due = time.monotonic() + PERIOD_S
                self.open(name, path.replace("{n}", str(n)))


def main() -> int:
    """Read, and print what that took; 1 and the reason when a place is refused."""
    url, places, rounds, seconds = sys.argv[1:]
    reader = Reader(urlsplit(url).netloc)
    try:
        if int(rounds):
            reader.read(orjson.loads(places), int(rounds), float(seconds))
        else:
            for name, path in orjson.loads(places).items():
                reader.follow(name, path, float(seconds))
    except (Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(orjson.dumps(reader.took_ms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
