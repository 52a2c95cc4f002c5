"""Real sentinels for the suite: processes on loopback that watch stores, and fail over in a second."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import stores

NAME = "shop"
SETTINGS = {"appendfsync": "everysec"}  # of stores that are watched
DOWN_MS = 500

StartSentinel = Callable[..., "Sentinel"]


class Sentinel:
    """One process that watches the primary NAME, a store's port."""

    def __init__(
        self, kind: str, directory: Path, watched: int, *, quorum: int, epoch: int = 0, more: tuple[str, ...] = ()
    ) -> None:
        self.port = stores.free_port()
        self._log = directory / "log"
        program = stores.binary(kind)
        if program is None:
            raise stores.StoreMissing(f"--store {kind} is not installed")
        directory.mkdir(parents=True)
        lines = [
            f"port {self.port}", f"bind {stores.HOST}", f"sentinel announce-ip {stores.HOST}", f"dir {directory}",
            f"sentinel monitor {NAME} {stores.HOST} {watched} {quorum}",
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}", f"sentinel failover-timeout {NAME} 5000",
            f"sentinel config-epoch {NAME} {epoch}", *more,
        ]  # fmt: skip
        config = directory / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        with self._log.open("ab") as log:
            command = [str(program), str(config), "--sentinel"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.client = stores.connect(f"redis://{stores.HOST}:{self.port}/0")
        if not any("requirepass" in line for line in more):  # this client has no password
            stores.wait_ready(self.client)

    @property
    def primary(self) -> int:
        """The port of the primary, as this one sees it."""
        return int(self.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME, NEVER_DECODE=True)[1])

    def watch(self, port: int) -> None:
        """Watch another store under the same name, as if that had become the primary."""
        self.client.execute_command("SENTINEL", "REMOVE", NAME)
        self.client.execute_command("SENTINEL", "MONITOR", NAME, stores.HOST, port, 1)

    def sees(self, *, replicas: int, others: int) -> bool:
        """Tell whether it knows so many replicas and so many other sentinels: then it can fail over."""
        flat = self.client.execute_command("SENTINEL", "MASTER", NAME, NEVER_DECODE=True)
        found = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        return (int(found[b"num-slaves"]), int(found[b"num-other-sentinels"])) == (replicas, others)

    def stop(self) -> None:
        """End the process, by its id."""
        self.client.close()
        self.process.kill()
        self.process.wait()


def url_of(sentinels: list[Sentinel], login: str = f"fairq:{stores.PASSWORD}@", rest: str = f"/{NAME}/0") -> str:
    """The store URL that names these."""
    hosts = ",".join(f"{stores.HOST}:{each.port}" for each in sentinels)
    return f"redis+sentinel://{login}{hosts}{rest}"


@pytest.fixture
def start_sentinel(store_kind: str, tmp_path: Path) -> Iterator[StartSentinel]:
    """Start sentinels of the test's own; they end with the test."""
    started: list[Sentinel] = []

    def start(watched: int, **options: object) -> Sentinel:
        kind = store_kind if store_kind != "container" else "valkey"
        started.append(Sentinel(kind, tmp_path / f"sentinel-{len(started)}", watched, **{"quorum": 1, **options}))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for sentinel in started:
        sentinel.stop()
