"""`fairq worker`: runs the handlers of an app."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

from cyclopts import Parameter

from fairq.cli.ending import ending
from fairq.cli.log_writer import open_log
from fairq.cli.options import Token, Url, need_token
from fairq.cli.output import configure_logging, in_line
from fairq.cli.signals import run_in, work_until_stopped
from fairq.cli.supervisor import (
    REFUSED,
    Child,
    Supervisor,
    check_processes,
    name_of_child,
)
from fairq.client.loops import Loop, choose_loop
from fairq.client.tracebacks import frames_of_hook
from fairq.errors import FairqError, Forbidden, SettingsError, Superseded, Unauthorized
from fairq.log import Log

log = Log("fairq.worker")


def load_app(path: str) -> Any:
    """Import `module:app`, also from the working directory. Raises: SettingsError."""
    from fairq.client.worker import Worker

    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise SettingsError(f"invalid app {path!r}: expected module:app, such as jobs:app", field="app")
    if "/" in module_name or module_name.endswith(".py"):
        name = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise SettingsError(f"invalid app {path!r}: name the module, as import does: {name}:{attribute}", field="app")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise SettingsError(f"cannot find module {module_name!r}", field="app") from None
    found = getattr(module, attribute, None)
    if not isinstance(found, Worker):
        raise SettingsError(f"{path} is not a fairq.Worker", field="app")
    return found


def worker(
    app: str,
    *,
    concurrency: Annotated[int | None, Parameter(name=["--concurrency", "-c"])] = None,
    prefetch: int | None = None,
    queue: Annotated[list[str] | None, Parameter(negative=())] = None,
    name: str | None = None,
    loop: Loop | None = None,
    grace: float = 30.0,
    processes: int = 1,
    burst: Annotated[bool, Parameter(negative=())] = False,
    reload: Annotated[bool, Parameter(negative=())] = False,
    task_log: bool = True,
    url: Url = None,
    token: Token = None,
    log_level: str = "info",
    log_json: bool = False,
) -> int:
    """Run the handlers of an app on its queues, until SIGTERM or ctrl-C.

    Example: `fairq worker jobs:app --concurrency 20`

    Parameters
    ----------
    app
        The fairq.Worker to run, as module:app.
    concurrency
        Tasks at once (default: the app's).
    prefetch
        Tasks held beyond those, for tasks of a few ms or a distant server (default: the app's, 0).
    queue
        A queue to serve; repeatable (default: the app's queues).
    name
        Unique name that the worker keeps across restarts (default: a new name for each start).
        A start ends an older worker of this name, and its tasks are ready again at once.
    loop
        Event loop of async handlers: asyncio (uvloop if that is installed) or trio (default: trio if modules of async
        handlers import it, else asyncio).
    grace
        Seconds that running tasks have to finish at a stop.
        A second signal ends the worker at once. Handlers that do not end then are left after 5 s, with exit code 1.
    processes
        Processes to run, each a whole worker with --concurrency slots, and --name with a number.
        A process that ends is restarted, unless it was drained or its burst is over. Standard input is empty there.
    burst
        Exit when the worker holds no task and its queues have none ready. Delayed tasks and retries are not waited for.
        Without a server for 30 s, exit with code 1.
    reload
        For development: restart when Python files below this directory change, after the running tasks finish.
    task_log
        Log a line for each task that ends.
    log_level
        debug, info, warning or error.
    log_json
        Log JSON lines.
    """
    with open_log() as writer:
        configure_logging(log_level, as_json=log_json, to=writer)
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # what a handler prints stands in a file at once, too
        if reload:
            if processes > 1:
                raise SettingsError("--reload runs one process, for development: leave out --processes", field="reload")
            from fairq.cli.reload import Reloader

            command = [sys.executable, "-m", "fairq", *(word for word in sys.argv[1:] if word != "--reload")]
            return run_in("trio", Reloader(command, Path.cwd()).run)
        child = Child.take()
        if check_processes(processes) > 1 and not child:
            return run_in("trio", Supervisor([sys.executable, "-m", "fairq", *sys.argv[1:]], processes, grace).run)
        if child:
            child.follow_parent(grace)
        found = load_app(app)
        if url:
            found.url = url
        if token:
            found.token = token
        need_token(found.token, "worker")
        found.concurrency = concurrency if concurrency is not None else found.concurrency
        found.prefetch = prefetch if prefetch is not None else found.prefetch
        found.name = name_of_child(name or found.name, child.number if child else 0)
        if queue:
            found.queues = list(dict.fromkeys(queue))
        found.log_tasks = task_log and log_level in ("debug", "info")
        handlers = (handler for kinds in found.handlers.values() for handler in kinds.by_name.values())
        chosen = loop or choose_loop(handlers)
        began = monotonic()
        try:
            with ending(found, writer.close) as end:
                on_start = child.tell_started if child else None
                run_in(chosen, partial(work_until_stopped, found, end, grace, burst, on_start))
        except (Unauthorized, Forbidden, Superseded) as error:
            if not child:
                raise
            print(f"fairq: {in_line(error.message)}", file=writer)
            return REFUSED
        except Exception as error:
            if isinstance(error, FairqError) or (frames := frames_of_hook(error.__traceback__)) is None:
                raise
            log.error("the worker cannot start: a function of on_startup failed", exc_info=error.with_traceback(frames))
            return 1
        if child:
            child.tell_ended(found.ended)
        if burst:
            counts = (
                ", ".join(f"{outcome} {count}" for outcome, count in sorted(found.counts.items())) or "nothing to do"
            )
            print(f"{counts}, in {monotonic() - began:.1f} s")
        return 0
