"""Several server processes behind one port: `fairq serve --processes N`.

This process owns the embedded store, if there is one, and the children serve: each is a whole server that shares the
port (the kernel gives every connection to one of them) and the store, as servers on several machines would. Each child
must begin to serve once. One that ends later is started again, until it serves. A signal to this process drains all.
Each child waits for the end of its line (`fairq.io.parentage`): then this process has ended, and the child drains and
ends too. Each child serves its metrics at a port of its own: its counts do not include the others'.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import structlog
import trio
from attrs import asdict, define, evolve, field

from fairq.errors import SettingsError
from fairq.io.parentage import start_child
from fairq.server.settings import Settings

log = structlog.get_logger("fairq.server")

CHILD = "FAIRQ_CHILD"  # the variable that names a child's line
READY = b"ready\n"  # printed by a child when it serves
RESTART_S, MAX_RESTART_S = 0.1, 5.0  # before a child that died is started again
STEADY_S = 10.0  # a child that lived longer did not fail at its start
UNFIT = 2  # the exit code of a child that has served, and cannot use the store's data any more
KILL_S = 10.0  # beyond the grace, before a child is killed


def environment_of(settings: Settings) -> dict[str, str]:
    """Write settings as environment variables."""
    found = {}
    for name, value in asdict(settings).items():
        if isinstance(value, list):
            value = ",".join(value)
        if value is not None and value != "":
            found[f"FAIRQ_{name.upper()}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def url_of(settings: Settings, scheme: str, host: str, port: int) -> str:
    """Return the URL of a listener; `scheme`: that without TLS."""
    return f"{scheme}{'s' if settings.tls_cert else ''}://{host}:{port}"


def part_of(settings: Settings) -> Settings:
    """Return the settings of one process: its part of the limits that hold for all processes together."""
    counts = ("max_connections", "connections_per_address", "connections_per_tenant")
    parts = {name: math.ceil(getattr(settings, name) / settings.processes) for name in counts}
    return evolve(settings, **parts, processes=1)


def shared_socket(family: int, address: tuple[str, int]) -> socket.socket:
    """Bind a TCP socket to an address that other processes may bind to as well. Raises: OSError."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def addresses_of(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    """Look up where to listen: family and address. Raises: OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found]


def shared_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on a port that other processes listen on too. Raises: OSError."""
    listeners = []
    for family, address in addresses_of(host, port):
        bound = shared_socket(family, address)
        bound.setblocking(False)
        bound.listen(65_535)
        listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(bound)))
    return listeners


@contextmanager
def _reserved(host: str, port: int, field: str = "port") -> Iterator[int]:
    """Keep a port for the children while the context lasts. Raises: SettingsError, also if other servers share it."""
    try:
        family, address = addresses_of(host, port)[0]
        with socket.socket(family) as alone:  # as long as no process listens there, others may bind too
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
        bound = shared_socket(family, address)
    except OSError as error:
        message = f"port {port} on {host} cannot be used: {error.strerror or error}"
        raise SettingsError(message, field=field) from None
    with bound:
        yield bound.getsockname()[1]


@define(eq=False)
class Fleet:
    """The children, which serve until `stop`."""

    settings: Settings  # of each of them
    count: int
    metrics_ports: Sequence[int] = ()  # one for each; none: there are no such listeners
    _children: set[trio.Process] = field(factory=set, init=False)
    _stopping: trio.Event = field(factory=trio.Event, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until all children have ended after `stop`. Raises: SettingsError if one cannot begin."""
        async with trio.open_nursery() as nursery:
            try:
                for number in range(self.count):
                    await nursery.start(self._keep, self._settings_of(number))
                task_status.started()
            except BaseException:
                nursery.cancel_scope.cancel()
                raise

    async def stop(self) -> None:
        """Ask all children to drain and end; kill those that do not within the grace plus KILL_S."""
        self._stopping.set()
        for child in self._children:
            child.send_signal(signal.SIGTERM)
        with trio.move_on_after(self.settings.grace + KILL_S):
            while self._children:
                await next(iter(self._children)).wait()
                await trio.lowlevel.checkpoint()
        for child in self._children:
            child.kill()

    def _settings_of(self, number: int) -> Settings:
        """Return the settings of a child: only the first one repairs the queues, if asked to."""
        found = evolve(self.settings, repair=self.settings.repair and not number)
        return evolve(found, metrics_port=self.metrics_ports[number]) if self.metrics_ports else found

    async def _keep(self, settings: Settings, *, task_status: trio.TaskStatus[None]) -> None:
        """Run a child, and start another one when it dies."""
        again_s, is_first = RESTART_S, True
        while not self._stopping.is_set():
            began = trio.current_time()
            try:
                code, is_ready = await self._run_child(settings, task_status if is_first else trio.TASK_STATUS_IGNORED)
                why, is_unfit = f"code {code}", is_ready and code == UNFIT
            except OSError as error:  # no process, memory or file is left for it
                why, is_ready, is_unfit = str(error), False, False
            if is_unfit or (is_first and not is_ready):
                raise SettingsError(f"a server process ended: {why}; see its log")
            is_first, settings = False, evolve(settings, repair=False)
            if self._stopping.is_set():
                return
            again_s = RESTART_S if trio.current_time() - began > STEADY_S else min(2 * again_s, MAX_RESTART_S)
            log.error("server process died; starting another", why=why, in_s=again_s)
            with trio.move_on_after(again_s):
                await self._stopping.wait()

    async def _run_child(self, settings: Settings, task_status: trio.TaskStatus[None]) -> tuple[int, bool]:
        """Run a child to its end; returns its exit code, and whether it was ever ready. Raises: OSError."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
        child, line = await start_child(
            [sys.executable, "-P", "-m", "fairq", "serve"], {**own, **environment_of(settings)}, CHILD,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self._children.add(child)
        is_ready = False
        try:
            if self._stopping.is_set():
                child.terminate()
            assert child.stdout is not None
            if await child.stdout.receive_some(len(READY)):
                is_ready = True
                task_status.started()
            return await child.wait(), is_ready
        finally:
            if child.poll() is None:
                child.kill()
            with trio.CancelScope(shield=True), line:
                await child.wait()
                assert child.stdout is not None
                await child.stdout.aclose()
            self._children.discard(child)


async def serve_fleet(settings: Settings, store_url: str, stop: trio.Event) -> None:
    """Serve with `settings.processes` children until `stop` is set, then drain them."""
    with ExitStack() as reserved:
        port = reserved.enter_context(_reserved(settings.host, settings.port))
        children = evolve(part_of(settings), store=store_url, port=port)
        more: dict[str, str] = {}
        for name, address in {"http": settings.http_address, "admin": settings.admin_address}.items():
            if address:
                each = reserved.enter_context(_reserved(*address, f"{name}_port"))
                own: dict[str, Any] = {f"{name}_host": address[0], f"{name}_port": each}
                children = evolve(children, **own)
                more[name] = url_of(settings, "http", address[0], each)
        metrics = [
            (host, reserved.enter_context(_reserved(host, port, "metrics_port")))
            for host, port in settings.metrics_addresses
        ]
        if metrics:
            children = evolve(children, metrics_host=metrics[0][0])
            more["metrics"] = " ".join(url_of(settings, "http", *each) for each in metrics)
        fleet = Fleet(children, settings.processes, [port for _, port in metrics])
        async with trio.open_nursery() as nursery:
            await nursery.start(fleet.run)
            log.info("serving", url=url_of(settings, "ws", settings.host, port), processes=settings.processes, **more)
            await stop.wait()
            await fleet.stop()


async def watch_parent(line: socket.socket, stop: trio.Event) -> None:
    """Set `stop` when the parent process has ended."""
    with trio.socket.from_stdlib_socket(line) as nothing, suppress(OSError):
        while await nothing.recv(1):
            pass
    log.warning("parent process ended; stopping")
    stop.set()
