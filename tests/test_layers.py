"""The import law: arrows go errors <- model <- wire; store; server; client; cli and demo on top."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "fairq"
# part -> the parts of fairq that it imports, all of them above it: so there are no circles.
IMPORTS = {
    "errors": "",
    "model": "errors",
    "wire": "errors model",
    "groups": "",
    "log": "",
    "turns": "log",
    "taskless": "log turns",
    "scopes": "groups taskless",
    "parentage": "",
    "sockets": "",
    "tokens": "errors model wire",
    "transport": "errors wire turns sockets",
    "store": "errors model wire turns taskless scopes sockets tokens",
    "server/stats": "errors model store",
    "server/rated_log": "model",
    "server/timers": "errors model turns scopes store server/rated_log",
    "server/dispatch": "errors model turns taskless store server/stats server/timers",
    "server/settings": "errors model",
    "server/net": (
        "errors model wire turns taskless sockets tokens transport store server/rated_log server/dispatch "
        "server/settings"
    ),
    "server/fleet": "errors parentage server/settings",
    "server/garbage": "",
    "server/long_poll": "",
    "server/queues": "turns store server/timers server/dispatch server/net server/long_poll",
    "server/leases": "model store server/dispatch server/net server/queues",
    "server/attempts": "model store server/net server/leases",
    "server/app": (
        "model store server/stats server/timers server/settings server/net server/queues server/leases server/attempts"
    ),
    "server/verbs": (
        "errors model wire taskless scopes tokens store server/stats server/dispatch server/net server/leases "
        "server/app"
    ),
    "server/listener": (
        "errors model wire turns sockets transport server/rated_log server/net server/fleet server/app server/verbs"
    ),
    "server/web/http": (
        "errors model wire turns scopes tokens transport server/dispatch server/settings server/net server/app "
        "server/verbs server/listener"
    ),
    "server/web/admin": "errors model wire transport store server/stats server/net server/app server/web/http",
    "server/web/dashboard": (
        "errors model wire scopes tokens store server/stats server/net server/app server/web/http server/web/admin"
    ),
    "server/run": (
        "errors scopes store server/settings server/net server/fleet server/garbage server/app server/listener "
        "server/web/http server/web/admin server/web/dashboard"
    ),
    "server/web": "",
    "server": "",
    "client": "errors model wire groups log turns tokens",
    "sync": "errors model wire log client",
    "webhook": "errors model wire scopes client",
    "testing": "errors model wire groups client sync",
    "fairq": "errors client",
    "otel": "model wire client",
    "docs": "webhook testing fairq",
    "demo": "errors model scopes store client",
    "cli": (
        "errors model wire groups log parentage scopes tokens store server/settings server/net server/fleet server/run "
        "client webhook demo"
    ),
    "django": "errors model log client sync cli",
    "__main__": "cli",
}
PACKAGES = ("wire", "store", "server", "client", "sync", "webhook", "testing", "cli", "demo", "django")
PURE = {"errors", "model", "wire", "tokens"}  # no I/O and no clock
IMPURE_MODULES = {"anyio", "trio", "trio_websocket", "asyncio", "redis", "hiredis", "socket", "ssl", "time"}


def part_of(path: Path) -> str:
    """Name the part that a file belongs to."""
    top, *rest = [name for name in path.relative_to(PACKAGE).with_suffix("").parts if name != "__init__"] or ["fairq"]
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
            parts.add(next((part for part in known if part in IMPORTS), "fairq"))
    return parts


SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_every_part_imports_what_the_law_says_and_nothing_else() -> None:
    found: dict[str, set[str]] = {part_of(path): set() for path in SOURCES}
    for path in SOURCES:
        found[part_of(path)] |= parts_imported(path) - {part_of(path)}
    assert found == {part: set(words.split()) for part, words in IMPORTS.items()}


def test_a_part_stands_below_those_that_it_imports() -> None:
    above: set[str] = set()
    for part, words in IMPORTS.items():
        assert set(words.split()) <= above, part
        above.add(part)


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
        allowed = {"runtime": {"trio", "asyncio"}, "handlers": {"asyncio"}}  # it knows a Future when it sees one
        assert runtimes <= allowed.get(path.stem, set()), path.name


def test_scopes_import_trio_and_nothing_else_from_outside() -> None:
    modules = {module.split(".")[0] for module in imports_of(PACKAGE / "scopes.py")}
    assert modules - {"__future__", "collections", "contextlib", "fairq"} == {"trio"}
