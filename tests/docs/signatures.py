"""The modules `signatures`, which write out what `**options` stands for, made of the methods' own source.

    python -m tests.docs.signatures client > fairq/client/signatures.py

and so for `sync` and `testing`. A method gets its place there by `@shown_as(signatures.Class.method)`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import fairq
from fairq.model import options
from fairq.model.checks import MAX_BATCH

PACKAGE = Path(fairq.__file__).parent
ASYNC = ("client/client.py", "client/batch.py", "client/task.py", "client/dead_letters.py", "testing/service.py")
BLOCKING = ("sync/client.py", "testing/sync.py")
ALIASES = {"Seconds": "float | timedelta", "Moment": "datetime | float"}
NAMED = {"MAX_BATCH": str(MAX_BATCH)}  # defaults that have a name

HEAD = '''\
"""The options of {of}, written out: what people, editors and type checkers are shown.

Made by `python -m tests.docs.signatures {name}`; nothing here is called. See `fairq.client.shown_as`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
{imports}
'''
OF = {"client": "the async SDK", "sync": "the blocking SDK", "testing": "the service in memory"}
IMPORTS = {
    "client": """\
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import datetime, timedelta

from fairq.client.tasks import EnqueuedTask
from fairq.model.dead_letters import DeadLetter, DeadPage, Sweep
""",
    "sync": """\
from collections.abc import Generator, Iterable, Sequence
from datetime import datetime, timedelta

from fairq.model.dead_letters import DeadLetter, DeadPage, Sweep
from fairq.sync.client import EnqueuedTask
""",
    "testing": """\
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from fairq.testing import service, sync
""",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module(name: str) -> str:
    """Write one of the modules."""
    parts = [HEAD.format(of=OF[name], name=name, imports=indent(IMPORTS[name], "    ").rstrip())]
    for title, methods in _classes(name).items():
        parts.append(f'\nclass {title}:\n    """Of `{title}`."""\n\n' + "\n".join(methods))
    return "\n".join(parts)


def _classes(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in (*ASYNC, *BLOCKING):
        if path.startswith(name):
            for title, text in _shown(path):
                found.setdefault(title, []).append(text)
    return found


def _shown(path: str) -> Iterator[tuple[str, str]]:
    """Find what a file shows otherwise than it is: the class in `signatures`, and the method to write there."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, Function):
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "shown_as":
                    yield _title(each), _written(node, is_async=True, path=path)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call):
            assert ast.unparse(node.func.func) == "shown_as"
            (blocking,) = node.args
            assert isinstance(blocking, ast.Call)
            wanted = ast.unparse(node.func.args[0]).rpartition(".")[2]
            (method,) = (text for text in map(ast.unparse, blocking.args) if text.endswith(f".{wanted}"))
            yield _title(node.func), _written(_method(*method.split(".")[-2:]), is_async=False, path=path)


def _title(shown: ast.Call) -> str:
    return ast.unparse(shown.args[0]).split(".")[1]


def _method(kind: str, name: str) -> Function:
    for path in ASYNC:
        for node in ast.parse((PACKAGE / path).read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == kind:
                return next(each for each in node.body if isinstance(each, Function) and each.name == name)
    raise LookupError(f"{kind}.{name}")


def _written(method: Function, *, is_async: bool, path: str) -> str:
    args = method.args
    assert args.kwarg is not None
    assert args.kwarg.annotation is not None
    table = ast.unparse(args.kwarg.annotation).removeprefix("Unpack[").removesuffix("]")
    named = list(_options(table))
    plain = [f"{arg.arg}: {_type(arg)}" for arg in args.args[1:]]
    own = [
        f"{arg.arg}: {_type(arg)} = {_default(default)}"
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
        if default
    ]
    parameters = ["self: Any", *plain, "*", *own, *(f"{name}: {kind} = {default}" for name, kind, default, _ in named)]
    kind = "async def" if is_async and isinstance(method, ast.AsyncFunctionDef) and not _yields(method) else "def"
    told = [ast.get_docstring(method) or "", "", "Options:", *(f"    {name}: {meaning}" for name, *_, meaning in named)]
    lines = [
        f"{kind} {method.name}(",
        *(f"    {each}," for each in parameters),
        f") -> {_result(method, is_async, path)}:",
        indent('"""' + "\n".join(told).replace("\\", "\\\\"), "    ", lambda line: line.strip() != ""),
        '    """',
        "    raise NotImplementedError",
        "",
    ]
    return indent("\n".join(lines), "    ", lambda line: line.strip() != "")


def _yields(method: Function) -> bool:
    return any(isinstance(node, ast.Yield) for node in ast.walk(method))


def _type(arg: ast.arg) -> str:
    assert arg.annotation
    return _spelled(ast.unparse(arg.annotation))


def _default(value: ast.expr) -> str:
    text = ast.unparse(value).replace("'", '"')
    return NAMED.get(text, text)


def _spelled(kind: str) -> str:
    for alias, meaning in ALIASES.items():
        kind = kind.replace(alias, meaning)
    return kind


def _result(method: Function, is_async: bool, path: str) -> str:
    assert method.returns
    kind = ast.unparse(method.returns)
    if not is_async:
        kind = re.sub(r"^AsyncGenerator\[(.*), None\]$", r"Generator[\1, None, None]", kind)
    if path.startswith("testing"):
        tracked = f"{'service' if is_async else 'sync'}.TrackedTask"
        kind = re.sub("(Enqueued|Tracked)Task", tracked, kind)
    return kind


def _options(table: str) -> Iterator[tuple[str, str, str, str]]:
    """Read a TypedDict of fairq.model.options from its source: name, type, default and meaning of each option."""
    tree = ast.parse(Path(options.__file__).read_text())
    (node,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == table)
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id != "TypedDict":
            yield from _options(base.id)
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            assert isinstance(each.annotation, ast.Subscript)
            assert isinstance(each.annotation.slice, ast.Tuple)
            kind, meaning = each.annotation.slice.elts
            written = _spelled(ast.unparse(kind))
            default = "False" if written == "bool" else "None"
            yield ast.unparse(each.target), written, default, ast.literal_eval(meaning)


if __name__ == "__main__":
    print(module(sys.argv[1]), end="")
