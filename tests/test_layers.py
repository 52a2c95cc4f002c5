"""The import law: arrows go errors <- model <- wire; store; server; client; cli and demo on top."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fairq"
# part -> the parts of fairq that it imports, all of them above it: so there are no circles.
IMPORTS = {
    "errors": "",
    "model": "errors",
    "wire": "errors model",
    "log": "",
    "io": "wire log",
    "tokens": "errors model wire",
    "store": "errors model wire io tokens",
    "server/settings": "errors model",
    "server/rated_log": "model",
    "server/fleet": "errors io server/settings",
    "server/garbage": "",
    "server/engine/stats": "errors model store",
    "server/engine/timers": "errors model io store server/rated_log",
    "server/engine/dispatch": "errors model io store server/engine/stats server/engine/timers",
    "server/engine/net": ("errors model wire io tokens store server/rated_log server/settings server/engine/dispatch"),
    "server/engine": (
        "errors model io store server/settings server/engine/stats server/engine/timers server/engine/dispatch "
        "server/engine/net"
    ),
    "server/engine/verbs": (
        "errors model wire io tokens store server/engine/stats server/engine/dispatch server/engine/net server/engine"
    ),
    "server/listener": (
        "errors model wire io server/rated_log server/fleet server/engine/net server/engine server/engine/verbs"
    ),
    "server/web/http": (
        "errors model wire io tokens server/settings server/engine/dispatch server/engine/net server/engine "
        "server/engine/verbs server/listener"
    ),
    "server/web/admin": ("errors model wire store server/engine/stats server/engine/net server/engine server/web/http"),
    "server/web/dashboard": (
        "errors model wire io tokens store server/engine/net server/engine server/web/http server/web/admin"
    ),
    "server/run": (
        "errors io store server/settings server/fleet server/garbage server/engine/net server/engine server/listener "
        "server/web/http server/web/admin server/web/dashboard"
    ),
    "server/web": "",
    "server": "",
    "client": "errors model wire io log tokens",
    "sync": "errors model wire io log client",
    "webhook": "errors model wire io client",
    "testing": "errors model wire io client sync",
    "fairq": "errors client",
    "otel": "model wire client",
    "docs": "webhook testing fairq",
    "demo": "errors model io store client",
    "cli": (
        "errors model wire io log tokens store server/settings server/fleet server/engine/net server/run "
        "client webhook demo"
    ),
    "celery": "errors model wire log client sync",
    "django": "errors model log client sync cli",
    "__main__": "cli",
}
PACKAGES = ("wire", "io", "store", "server", "client", "sync", "webhook", "testing", "cli", "celery", "demo", "django")
PURE = {"errors", "model", "wire", "tokens"}  # no I/O and no clock
IMPURE_MODULES = {"anyio", "trio", "trio_websocket", "asyncio", "redis", "hiredis", "socket", "ssl", "time"}


def _part(names: list[str]) -> str:
    """Name the part that a module belongs to: the longest one that begins its name."""
    known = ["/".join(names[:length]) for length in (3, 2, 1)]
    return next((part for part in known if part in IMPORTS), "fairq")


def part_of(path: Path) -> str:
    """Name the part that a file belongs to."""
    names = [name for name in path.relative_to(PACKAGE).with_suffix("").parts if name != "__init__"]
    part = _part(names)
    assert part != "server" or names == ["server"], f"{path} belongs to no part"
    return part


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
    names = [module.split(".") for module in imports_of(path)]
    return {_part(rest) for top, *rest in names if top == "fairq"}


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


@pytest.mark.parametrize("folder", ["client", "io"])
def test_the_modules_of_a_folder_import_each_other_in_no_circle(folder: str) -> None:
    below = {
        path.stem: {
            name.split(".")[2] for name in imports_of(path, for_types=False) if name.startswith(f"fairq.{folder}.")
        }
        for path in (PACKAGE / folder).glob("*.py")
    }
    while free := [name for name, needs in below.items() if not needs & below.keys() - {name}]:
        for name in free:
            del below[name]
    assert below == {}


def test_the_sdk_names_no_runtime() -> None:
    """It is anyio's; what it needs besides is in fairq/io, which imports trio where trio runs."""
    for path in (PACKAGE / "client").glob("*.py"):
        runtimes = {module.split(".")[0] for module in imports_of(path)} & {"trio", "asyncio"}
        allowed = {"handlers": {"asyncio"}}  # it knows a Future when it sees one
        assert runtimes <= allowed.get(path.stem, set()), path.name


def test_scopes_import_trio_and_nothing_else_from_outside() -> None:
    modules = {module.split(".")[0] for module in imports_of(PACKAGE / "io" / "scopes.py")}
    assert modules - {"__future__", "collections", "contextlib", "fairq"} == {"trio"}
