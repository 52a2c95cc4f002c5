"""Running a server: store, listeners, app, signals."""

from __future__ import annotations

import errno
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio
from attrs import frozen

from fairq.errors import SettingsError
from fairq.io.scopes import background
from fairq.server.engine.app import App
from fairq.server.fleet import READY, serve_fleet, url_of, watch_parent
from fairq.server.garbage import control_collection
from fairq.server.listener import DEV_WARNING, AnyListener, Listener, open_listeners, port_of
from fairq.server.settings import Settings
from fairq.store.embedded import embedded_store
from fairq.store.migrations import check_data_version
from fairq.store.opening import asked, check_durability, open_store, watch_durability
from fairq.store.store import Store

if TYPE_CHECKING:
    from fairq.server.web.http.listener import HttpListener

log = structlog.get_logger("fairq.server")


@frozen
class HttpServed:
    """A listener for HTTP that runs, and its address."""

    host: str
    port: int
    listener: HttpListener


@frozen
class Served:
    """A running server: its address, its store's URL, and its app."""

    host: str
    port: int
    store_url: str
    app: App
    http: HttpServed | None = None
    admin: HttpServed | None = None
    metrics: HttpServed | None = None


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise SettingsError(f"the certificate cannot be used: {error}", field="tls_cert") from None
    return context


@asynccontextmanager
async def _store_url(settings: Settings) -> AsyncIterator[str]:
    if settings.store is not None:
        yield settings.store
        return
    async with embedded_store(settings.data_dir, fsync=settings.fsync) as url:
        yield url


@asynccontextmanager
async def running_server(settings: Settings, *, is_shared: bool = False) -> AsyncIterator[Served]:
    """Serve while the context lasts; on entry the port already answers. `is_shared`: other processes share the port.

    Raises: SettingsError if the port is taken, or the store does not answer or may lose acknowledged tasks.
    """
    tls = _tls(settings)
    apps: list[App] = []  # the app, once there is one: messages may come before

    def on_message(channel: str, message: str) -> None:
        for app in apps:
            app.on_message(channel, message)

    async with (
        _store_url(settings) as url,
        open_store(
            url,
            connect_timeout=settings.store_timeout,
            on_message=on_message,
            queue_quota=settings.queue_quota,
            wait_replicas=settings.wait_replicas,
        ) as store,
        background() as nursery,
    ):
        if not settings.unsafe_store:
            problems = await asked(store, partial(check_durability, store))
            if problems:
                raise SettingsError(f"the store is not safe: {'; '.join(problems)}", field="unsafe_store")
            nursery.start_soon(watch_durability, store)
        if settings.repair:
            await _repair(store)
        app = App(settings, store, nursery)
        apps.append(app)
        await app.start()
        # again: a restore or migration could not see this server
        await asked(store, partial(check_data_version, store.connection.call))
        listeners = await _open_listeners(settings.host, settings.port, tls, is_shared=is_shared)
        listener = Listener(app)
        nursery.start_soon(trio.serve_listeners, listener.handle, listeners)
        http = admin = metrics = None
        if address := settings.http_address:
            http = await _serve_http(address, "http_port", _http_of(listener, nursery), tls, is_shared=is_shared)
        if address := settings.admin_address:
            own = _admin_of(listener, nursery, has_metrics=not is_shared)
            admin = await _serve_http(address, "admin_port", own, tls, is_shared=is_shared)
        if address := settings.metrics_address:
            own = _metrics_of(listener, nursery)
            metrics = await _serve_http(address, "metrics_port", own, tls, is_shared=is_shared)
        yield Served(settings.host, port_of(listeners[0]), url, app, http, admin, metrics)


def _http_of(listener: Listener, nursery: trio.Nursery) -> HttpListener:
    """Make the listener of the tenants' API; its libraries are imported only if it is on."""
    from fairq.server.web.http.api import make_api
    from fairq.server.web.http.connections import Callers
    from fairq.server.web.http.listener import HttpListener
    from fairq.server.web.http.workers import Workers

    app = listener.app
    api = make_api(app, Callers(app, listener.admission, nursery), Workers(app, nursery))
    origins = app.settings.http_cors_origins
    return HttpListener(app.settings, listener.admission, nursery, api, origins, refusals=app.refusals)


def _admin_of(listener: Listener, nursery: trio.Nursery, *, has_metrics: bool) -> HttpListener:
    """Make the operators' listener: tenants that flood the others' places take none of its own."""
    from fairq.server.engine.net.admission import Admission
    from fairq.server.web.admin.api import make_admin_api
    from fairq.server.web.admin.health import Health
    from fairq.server.web.admin.operators import Operators
    from fairq.server.web.dashboard.site import make_dashboard
    from fairq.server.web.http.listener import HttpListener

    app, admission = listener.app, Admission(listener.app.settings)
    operators, health = Operators(app, admission, nursery), Health(app)
    pages = make_dashboard(operators, health, nursery)
    api = make_admin_api(app, operators, health, pages, has_metrics=has_metrics)
    return HttpListener(app.settings, admission, nursery, api, takes_own_pages=True, refusals=app.refusals)


def _metrics_of(listener: Listener, nursery: trio.Nursery) -> HttpListener:
    """Make the listener for /metrics alone."""
    from fairq.server.engine.net.admission import Admission
    from fairq.server.web.admin.api import make_metrics_api
    from fairq.server.web.admin.operators import Operators
    from fairq.server.web.http.listener import HttpListener

    app, admission = listener.app, Admission(listener.app.settings)
    api = make_metrics_api(app, Operators(app, admission, nursery))
    return HttpListener(app.settings, admission, nursery, api, refusals=app.refusals)


async def _serve_http(
    address: tuple[str, int], field: str, http: HttpListener, tls: ssl.SSLContext | None, *, is_shared: bool
) -> HttpServed:
    listeners = await _open_listeners(*address, tls, is_shared=is_shared, field=field)
    http.nursery.start_soon(http.run, listeners)
    return HttpServed(address[0], port_of(listeners[0]), http)


async def _repair(store: Store) -> None:
    """Repair all queues."""
    for queue in await store.queues():
        done = await store.repair(queue)
        log.info("repaired", queue=queue, tasks=done.tasks, tenants=done.tenants)


async def _open_listeners(
    host: str, port: int, tls: ssl.SSLContext | None, *, is_shared: bool, field: str = "port"
) -> list[AnyListener]:
    try:
        return list(await open_listeners(host, port, tls, is_shared=is_shared))
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror or error}"
        raise SettingsError(f"port {port} on {host} {why}", field=field) from None


async def serve(settings: Settings, line: socket.socket | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends it at once.

    `line`: this is one of several processes that share the port; it reports to its parent when it serves.
    """
    serving, stop = trio.Event(), trio.Event()
    async with background() as nursery:
        nursery.start_soon(_watch_signals, serving, stop, nursery.cancel_scope)
        nursery.start_soon(control_collection)
        if settings.processes > 1 and line is None:
            async with _store_url(settings) as store_url:
                serving.set()
                if settings.dev:
                    log.warning(DEV_WARNING)
                await serve_fleet(settings, store_url, stop)
        else:
            await _serve_alone(settings, serving, stop, line, nursery)
    log.info("stopped")


async def _serve_alone(
    settings: Settings, serving: trio.Event, stop: trio.Event, line: socket.socket | None, nursery: trio.Nursery
) -> None:
    async with running_server(settings, is_shared=line is not None) as served:
        serving.set()
        if line is not None:
            nursery.start_soon(watch_parent, line, stop)
            print(READY.decode(), end="", flush=True)
        else:
            if settings.dev:
                log.warning(DEV_WARNING)
            by_name = {"http": served.http, "admin": served.admin, "metrics": served.metrics}
            more = {name: url_of(settings, "http", each.host, each.port) for name, each in by_name.items() if each}
            log.info("serving", url=url_of(settings, "ws", served.host, served.port), **more)
        await stop.wait()
        if served.http:
            await served.http.listener.stop()
        await served.app.drain(settings.grace)
        for operators in filter(None, (served.admin, served.metrics)):  # during the drain they answer `not ready`
            await operators.listener.stop()


async def _watch_signals(serving: trio.Event, stop: trio.Event, scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for received in signals:
            if stop.is_set() or not serving.is_set():
                log.warning("stopping at once", signal=signal.Signals(received).name)
                scope.cancel()
            stop.set()
