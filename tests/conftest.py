"""Fixtures that give the suite a real store, and the two tiers of the suite.

The first tier covers every behavior once, on the embedded Valkey, and needs nothing but README's test command. What
takes long, or needs other programs, is marked `deep("PART")`; parts.py has the parts. `--deep=PART` runs that part
instead of the first tier.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings

from fairq.log import write_by
from fairq.store import library

from . import clusters, stores
from .parts import PARTS, missing_packages

# Some machines forbid byte code. Then each process that a test starts would compile fairq anew, for a second.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

gc.disable()  # until all tests are collected: a third of that time would go into looking at what stays

settings.register_profile("fairq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("fairq"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "fairq")

TESTS = Path(__file__).resolve().parent
FIRST = "valkey"  # the store of the first tier


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --deep=and --store."""
    parser.addoption(
        "--deep",
        action="append",
        default=[],
        choices=PARTS,
        help="run this part of the deep tier instead of the first tier; may be repeated",
    )
    parser.addoption(
        "--store",
        choices=["valkey", "redis", "container"],
        default=FIRST,
        help=f"the store to test on (default: {FIRST}, which is embedded)",
    )


def parts_of(item: pytest.Item) -> set[str]:
    """Name the parts of the deep tier that a test belongs to; none: it belongs to the first tier."""
    parts = {mark.args[0] if mark.args else "" for mark in item.iter_markers("deep")}
    assert parts <= PARTS.keys(), f"{item.nodeid}: deep(PART) wants one of {', '.join(PARTS)}"
    return parts


def pytest_report_header(config: pytest.Config) -> str:
    """Say which tier and which store the session runs."""
    deep = config.getoption("--deep")
    tier = f"of the deep tier: {', '.join(deep)}" if deep else "first tier"
    return f"{tier}; store: {config.getoption('--store')}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that needs a store on the session's; on redis-server too if the part `redis` is wanted."""
    if "store_kind" in metafunc.fixturenames:
        first = metafunc.config.getoption("--store")
        kinds = [first, "redis"] if "redis" in metafunc.config.getoption("--deep") else [first]
        if one := metafunc.definition.get_closest_marker("one_store"):
            kinds = [*one.args, first][:1]
        params = [pytest.param(kind, marks=() if kind == first else pytest.mark.deep("redis")) for kind in kinds]
        metafunc.parametrize("store_kind", params, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the wanted parts, or those of the first tier."""
    wanted = set(config.getoption("--deep"))
    parts = [parts_of(item) for item in items]
    runs = [own <= wanted and bool(own) == bool(wanted) for own in parts]
    config.hook.pytest_deselected(items=[item for item, is_kept in zip(items, runs, strict=True) if not is_kept])
    items[:] = [item for item, is_kept in zip(items, runs, strict=True) if is_kept]


def pytest_xdist_auto_num_workers() -> int:
    """Run two test processes on each core: tests wait for stores, servers and clocks about half of their time."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_configure(config: pytest.Config) -> None:
    """Check that what the wanted parts need is here, and let tests signal the processes that they start."""
    if missing := missing_packages(config.getoption("--deep")):
        wanted = " ".join(config.getoption("--deep"))
        raise pytest.UsageError(f"apt-get install {' '.join(missing)} first, or: bash .ci/deep {wanted}")
    # A process inherits what its parent ignores (SIGINT in a shell's background, SIGHUP under nohup), not handlers.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the test modules. In a new clone each process would otherwise compile all of them, at once."""
    process = getattr(session.config, "workerinput", None)
    if process is None or [Path(each).resolve() for each in session.config.args] != [TESTS]:
        return
    modules = sorted(TESTS.rglob("test_*.py"))
    for path in modules[int(process["workerid"].removeprefix("gw")) :: process["workercount"]]:
        with suppress(pytest.skip.Exception):  # a part of the deep tier without its package
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but never look again at imported objects."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long each part of the suite took: a folder of `tests`, or a module there."""
    took: dict[str, list[float]] = defaultdict(list)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                took["/".join(report.nodeid.split("::")[0].split("/")[:2])].append(report.duration)
    terminalreporter.section("seconds per part, summed over the test processes")
    for part, seconds in sorted(took.items(), key=lambda item: -sum(item[1])):
        terminalreporter.write_line(f"{sum(seconds):8.1f}  {part} (longest {max(seconds):.1f})")
    if not terminalreporter.config.getoption("--deep"):
        terminalreporter.write_line(
            f"left out: the deep tier ({', '.join(PARTS)}); to run it: bash .ci/deep [PART ...]"
        )


def each_once(start: Callable[[str], Any]) -> Iterator[Callable[[str], Any]]:
    """Start at most one per kind, when it is first asked for; end them all at the end."""
    running: dict[str, Any] = {}

    def get(kind: str) -> Any:
        if kind not in running:
            running[kind] = start(kind)
        return running[kind]

    yield get
    for each in running.values():
        each.stop()


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """A command that runs inside a test leaves the log, and Python's hooks, as they were."""
    hooks, logger = (threading.excepthook, sys.unraisablehook), logging.getLogger("fairq")
    handlers, level, propagates = logger.handlers[:], logger.level, logger.propagate
    yield
    threading.excepthook, sys.unraisablehook = hooks
    logger.handlers[:], logger.propagate = handlers, propagates
    logger.setLevel(level)
    logging.captureWarnings(False)
    write_by(None)


@pytest.fixture(scope="session")
def running_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], stores.Server]]:
    """The session's stores, of each kind one."""
    yield from each_once(lambda kind: stores.start(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture
def store_server(store_kind: str, running_stores: Callable[[str], stores.Server]) -> stores.Server:
    """The session's store of this kind, emptied; its functions stay."""
    try:
        server = running_stores(store_kind)
    except stores.StoreMissing as error:
        pytest.fail(str(error), pytrace=False)
    stores.empty(server)
    return server


@pytest.fixture
def store_url(store_server: stores.Server) -> str:
    """The URL of an empty store, `redis://127.0.0.1:<port>/0`."""
    return store_server.url


@pytest.fixture
def redis_client(store_url: str) -> Iterator[redis.Redis]:
    """A plain client of an empty store that has the function library; replies are bytes."""
    client = stores.connect(store_url)
    if not client.function_list(library.name()):
        client.function_load(library.source())
    yield client
    client.close()


@pytest.fixture
def start_store(store_kind: str, tmp_path: Path) -> Iterator[Callable[..., stores.LocalServer]]:
    """Start stores of the test's own, with settings such as {"appendfsync": "always"}; they end with the test."""
    if store_kind == "container":
        pytest.skip("a container cannot be killed and restarted as a child process can")
    started: list[stores.LocalServer] = []

    def start(settings: Mapping[str, str] | None = None) -> stores.LocalServer:
        server = stores.LocalServer(store_kind, tmp_path / f"store-{len(started)}", settings)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def running_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], clusters.Cluster]]:
    """The session's clusters of three primaries, of each kind one."""
    yield from each_once(lambda kind: clusters.Cluster(kind, tmp_path_factory.mktemp(f"{kind}-cluster")))


@pytest.fixture
def cluster(store_kind: str, running_clusters: Callable[[str], clusters.Cluster]) -> clusters.Cluster:
    """The session's cluster of this kind, emptied; tests may move its slots, and leave it whole."""
    if store_kind == "container":
        pytest.skip("clusters run as child processes only")
    cluster = running_clusters(store_kind)
    cluster.clear()
    return cluster


@pytest.fixture
def start_cluster(store_kind: str, tmp_path: Path) -> Iterator[Callable[..., clusters.Cluster]]:
    """Start clusters of the test's own, whose nodes may be killed; they end with the test."""
    if store_kind == "container":
        pytest.skip("clusters run as child processes only")
    started: list[clusters.Cluster] = []

    def start(count: int = 3) -> clusters.Cluster:
        started.append(clusters.Cluster(store_kind, tmp_path / f"cluster-{len(started)}", count))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
