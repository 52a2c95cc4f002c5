"""The import law: arrows go errors <- model <- wire; store; server; client; cli and demo on top."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "fairq"
SHARED = {"errors", "model", "wire", "scopes", "tokens", "transport", "taskless"}

SERVING = {f"server/{part}" for part in ("run", "settings", "fleet", "net")}  # what commands need of the server
PARTS = {"server/queues", "server/leases", "server/attempts"}  # of the application
ROOMS = {f"server/{room}" for room in ("stats", "timers", "dispatch", "net")}

# part -> parts of fairq that it may import, besides itself; "" is fairq/__init__.py. A part stands below those that
# import it, so there are no circles between parts.
MAY_IMPORT = {
    "errors": set(),
    "model": {"errors"},
    "wire": {"errors", "model"},
    "groups": set(),
    "log": set(),
    "turns": {"log"},
    "taskless": {"log", "turns"},
    "scopes": {"groups", "taskless"},
    "sockets": set(),
    "tokens": {"errors", "model", "wire"},
    "transport": {"errors", "wire", "turns", "sockets"},
    "store": {"errors", "model", "scopes", "taskless", "turns", "sockets"},
    "server/stats": {"errors", "model", "store"},
    "server/timers": {"errors", "model", "scopes", "store"},
    "server/dispatch": {"errors", "model", "store", "taskless", "turns", "server/stats", "server/timers"},
    "server/net": SHARED | {"turns", "store", "server/settings", "server/dispatch"},
    "server/settings": {"errors", "model"},
    "server/fleet": {"errors", "server/settings"},
    "server/garbage": set(),
    "server/long_poll": set(),
    "server/queues": {"store", "server/long_poll", *ROOMS},
    "server/leases": {"model", "store", "server/queues", *ROOMS},
    "server/attempts": {"model", "store", "server/leases", "server/net"},
    "server/app": {"model", "wire", "store", "server/settings", *PARTS, *ROOMS},
    "server/verbs": SHARED | {"store", "server/app", *PARTS, *ROOMS},
    "server/listener": SHARED | {"turns", "sockets", "server/fleet", "server/app", "server/verbs", *ROOMS},
    "server/web/http": SHARED | {"turns", "server/app", "server/verbs", "server/listener", "server/settings", *ROOMS},
    "server/web/admin": SHARED | {"store", "server/stats", "server/app", "server/net", "server/web/http"},
    "server/web/dashboard": SHARED
    | {"store", "server/app", "server/net", "server/web/http", "server/web/admin", *ROOMS},
    "server/run": SHARED
    | {
        "store",
        "server/web/admin",
        "server/app",
        "server/web/dashboard",
        "server/fleet",
        "server/garbage",
        "server/web/http",
    }
    | {"server/listener", "server/dispatch", "server/exporting"}
    | {"server/net", "server/settings"},
    "server/web": set(),
    "server": set(),
    "client": {"errors", "model", "wire", "tokens", "groups", "turns", "log"},
    "sync": {"errors", "model", "wire", "client", "log"},
    "webhook": SHARED | {"client"},
    "testing": SHARED | {"client", "groups", "sync"},
    "": {"errors", "client"},
    "otel": {"model", "wire", "client"},
    "docs": {"", "webhook", "testing"},  # examples: what users import
    "demo": SHARED | {"", "client", "store"},
    "django": {"errors", "model", "log", "client", "sync", "cli"},
    "cli": SHARED | {"", "groups", "client", "store", "demo", "webhook", *SERVING},
    "__main__": {"", "cli"},
}
PACKAGES = ("wire", "store", "server", "client", "sync", "webhook", "testing", "cli", "demo", "django")
PURE = {"errors", "model", "wire", "tokens"}  # no I/O and no clock
IMPURE_MODULES = {"anyio", "trio", "trio_websocket", "asyncio", "redis", "hiredis", "socket", "ssl", "time"}


def part_of(path: Path) -> str:
    """Name the part that a file belongs to."""
    top, *rest = [name for name in path.relative_to(PACKAGE).with_suffix("").parts if name != "__init__"] or [""]
    if top == "server":
        return "/".join([top, *rest[: 2 if rest[:1] == ["web"] else 1]])
    return top


@cache
def imports_of(path: Path, *, for_types: bool = True) -> set[str]:
    """Name all modules that a file imports, wherever it does; also those that only its annotations name."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not for_types:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            if module in ("fairq", *(f"fairq.{part}" for part in PACKAGES)):
                found |= {f"{module}.{alias.name}" for alias in node.names}
            else:
                found.add(module)
    return found


def parts_imported(path: Path) -> set[str]:
    """Name the parts of fairq that a file imports."""
    parts = set()
    for module in imports_of(path):
        if module.split(".")[0] == "fairq":
            names = module.split(".")[1:4]
            known = ["/".join(names[:length]) for length in (3, 2, 1)]
            parts.add(next((part for part in known if part in MAY_IMPORT), ""))
    return parts


SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_every_file_imports_only_from_the_parts_below_it() -> None:
    for path in SOURCES:
        part = part_of(path)
        assert part in MAY_IMPORT, f"{part} has no place in the import law"
        assert parts_imported(path) <= MAY_IMPORT[part] | {part}, path


def test_pure_parts_know_no_io_and_no_clock() -> None:
    for path in SOURCES:
        if part_of(path) in PURE:
            assert not {module.split(".")[0] for module in imports_of(path)} & IMPURE_MODULES, path


def test_what_all_runtimes_of_the_sdk_share_knows_no_runtime() -> None:
    for name in ("bodies", "requests", "schedules", "defaults"):
        assert not {module.split(".")[0] for module in imports_of(PACKAGE / "client" / f"{name}.py")} & IMPURE_MODULES


def test_the_modules_of_the_sdk_import_each_other_in_no_circle() -> None:
    below = {
        path.stem: {
            name.split(".")[2] for name in imports_of(path, for_types=False) if name.startswith("fairq.client.")
        }
        for path in (PACKAGE / "client").glob("*.py")
    }
    while free := [name for name, needs in below.items() if not needs & below.keys() - {name}]:
        for name in free:
            del below[name]
    assert below == {}


def test_the_sdk_names_a_runtime_in_one_module_only() -> None:
    """The rest of it is anyio's; trio is imported where trio runs, for a program on asyncio may do without."""
    for path in (PACKAGE / "client").glob("*.py"):
        runtimes = {module.split(".")[0] for module in imports_of(path)} & {"trio", "asyncio"}
        allowed = {"runtime": {"trio", "asyncio"}, "handlers": {"asyncio"}}  # a handler may be told of a cancellation
        assert runtimes <= allowed.get(path.stem, set()), path.name


def test_scopes_import_trio_and_nothing_else_from_outside() -> None:
    modules = {module.split(".")[0] for module in imports_of(PACKAGE / "scopes.py")}
    assert modules - {"__future__", "collections", "contextlib", "fairq"} == {"trio"}
