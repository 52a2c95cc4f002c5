"""The Lua function library: its text, its version and its names.

The version is a hash of the text: library `fairq_<version>`, functions `fq_<version>_<verb>`. So two builds of fairq
work on one store during a rolling upgrade, and no library is ever replaced. The data in the keys has its own version,
DATA_VERSION, which is raised by hand: see lua/KEYS.md.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import Any, NamedTuple

from attrs import Factory, field, frozen

from fairq.model.tasks import OPTIONS, RARE_OPTIONS

DATA_VERSION = 21


_FORMAT = re.compile(r"^--: ([A-Z_]+) (.*(?:\n--:  .*)*)\n", re.MULTILINE)
_TEXTS = {"t1": "Bc0", "t2": "Hc0", "rest": ""}  # texts: with a length of one or two bytes, or up to the end


_FLAGS = {"reads": "'no-writes'", "drains": "'allow-oom'", "writes": ""}  # of the functions of each table of verbs
_BYTES = ("options", "made", "settings", "more", "waits")  # fields of bytes, not text
_MOST = 255  # bytes of `more`


class Field(NamedTuple):
    """A field of a packed record: its name, and its type in lua/base/formats.lua."""

    name: str
    type: str

    @property
    def code(self) -> str:
        """Return its struct format; of a text, that of its length."""
        return re.sub(r"c(\d+)", r"\1s", _TEXTS.get(self.type, self.type).removesuffix("c0"))

    @property
    def nothing(self) -> str | int:
        """Return the default of the field."""
        return "" if self.type in _TEXTS or self.type.startswith("c") else 0


class _Run(NamedTuple):
    """Fixed fields that stand together, and the text behind them, if there is one."""

    fixed: struct.Struct  # with the length of the text, unless that goes up to the end
    names: list[str]
    text: str
    is_rest: bool


@frozen
class Format:
    """A kind of packed record: its fields in order, those that stand in `more`, and names that are not kept.

    `is_split`: Lua reads those in `more` with the record.
    """

    name: str
    fields: list[Field]
    later: list[Field]
    unkept: list[str]
    is_split: bool = True
    _runs: list[_Run] = field(init=False, default=Factory(lambda self: _runs_of(self.fields), takes_self=True))
    _later_runs: list[_Run] = field(init=False, default=Factory(lambda self: _runs_of(self.later), takes_self=True))

    @property
    def code(self) -> str:
        """Return the format string of Lua's struct."""
        return _code(self.fields)

    @property
    def head(self) -> str:
        """Return the struct format of the fixed bytes of a record: all fields, with only the lengths of texts."""
        return "<" + "".join(field.code for field in self.fields)

    @property
    def size(self) -> int:
        """Return how many bytes of a record are fixed."""
        return struct.calcsize(self.head)

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """Pack a record; texts are str or bytes, and `more` has the fields of later versions."""
        more = values.get("more", b"")
        later = {each.name: values.get(each.name, each.nothing) for each in self.later}
        if more or any(later.values()):
            more = _pack(self._later_runs, later) + more
        return _pack(self._runs, {**values, "more": more})

    def unpack(self, packed: bytes) -> tuple[dict[str, Any], int]:
        """Read a record, and where it ends; `t1` and `t2` are str, but for packed ones; `rest` is bytes."""
        values, end = _unpack(self._runs, packed)
        if self.later and (more := values["more"]):
            found, at = _unpack(self._later_runs, more + bytes(_MOST))
            values |= {**found, "more": more[at:]}
        else:
            values |= {each.name: each.nothing for each in self.later}
        return values, end

    def lua(self) -> str:
        """Write the Lua table of this format."""
        packed = [f for f in self.fields if f.type != "rest"]
        rest = [f.name for f in self.fields if f.type == "rest"]
        record = [f"{f.name} = {f.name}" for f in packed] + [f"{name} = false" for name in self.unkept]
        record += [f"{name} = text:sub(position)" for name in rest]
        blank = [f"{f.name} = {f.nothing!r}" for f in [*self.fields, *self._split]]
        blank += [f"{name} = false" for name in self.unkept]
        lines = [f"local {self.name} = {{format = '{self.code}', size = {self.size}}}", f"function {self.name}.pack(r)"]
        if any(f.name == "more" for f in packed):
            lines += ["  local more = r.more or ''", *self._pack_later()]
        tail = "".join(f" .. r.{name}" for name in rest)
        lines += [
            f"  return struct.pack('{self.code}'{_values(packed)}){tail}",
            "end",
            f"function {self.name}.unpack(text, at)",
            f"  local {', '.join(f.name for f in packed)}, position = struct.unpack('{self.code}', text, at or 1)",
            f"  local r = {{{', '.join(record)}}}",
            *self._unpack_later(),
            "  return r, position",
            "end",
            *self._more(),
            f"function {self.name}.new(given)",
            f"  local r = {{{', '.join(blank)}}}",
            "  for name, value in pairs(given) do r[name] = value end",
            "  return r",
            "end",
        ]
        return "\n".join(lines)

    @property
    def _split(self) -> list[Field]:
        return self.later if self.is_split else []

    def _pack_later(self) -> list[str]:
        if not self._split:
            return []
        given = [f"  local {f.name} = r.{f.name} or {f.nothing!r}" for f in self.later]
        is_any = " or ".join(f"{f.name} ~= {f.nothing!r}" for f in self.later)
        packed = f"struct.pack('{_code(self.later)}'{_values(self.later, '')})"
        return [*given, f"  if more ~= '' or {is_any} then more = {packed} .. more end"]

    def _more(self) -> list[str]:
        if not self._split:
            return []
        body = ["  local more = r.more or ''", *self._pack_later(), "  return more"]
        return [f"function {self.name}.more(r)", *body, "end"]

    def _unpack_later(self) -> list[str]:
        if not self._split:
            return []
        names = ", ".join(f"r.{f.name}" for f in self.later)
        return [
            f"  {names} = {', '.join(repr(f.nothing) for f in self.later)}",
            "  if more ~= '' then",
            f"    {names}, at = struct.unpack('{_code(self.later)}', more .. ('\\0'):rep({_MOST}))",
            "    r.more = more:sub(at)",
            "  end",
        ]


def _code(fields: Sequence[Field]) -> str:
    return "<" + "".join(_TEXTS.get(field.type, field.type) for field in fields)


def _values(fields: Sequence[Field], of: str = "r.") -> str:
    """Write the arguments of `struct.pack`; `more` is a local."""
    names = ["more" if field.name == "more" else of + field.name for field in fields]
    return "".join(
        f", #{name}, {name}" if field.type in _TEXTS else f", {name}" for field, name in zip(fields, names, strict=True)
    )


def _runs_of(fields: Sequence[Field]) -> list[_Run]:
    runs, run = list[_Run](), list[Field]()
    for each in fields:
        run.append(each)
        if each.type in _TEXTS or each is fields[-1]:
            names = [every.name for every in run]
            text = names.pop() if each.type in _TEXTS else ""
            fixed = struct.Struct("<" + "".join(every.code for every in run))
            runs, run = [*runs, _Run(fixed, names, text, each.type == "rest")], []
    return runs


def _pack(runs: Sequence[_Run], values: Mapping[str, Any]) -> bytes:
    parts = list[bytes]()
    for fixed, names, text_name, is_rest in runs:
        numbers, text = [values[name] for name in names], values[text_name] if text_name else b""
        if isinstance(text, str):
            text = text.encode(errors="surrogateescape")
        if text_name and not is_rest:
            numbers.append(len(text))
        parts += fixed.pack(*numbers), text
    return b"".join(parts)


def _unpack(runs: Sequence[_Run], packed: bytes) -> tuple[dict[str, Any], int]:
    values, at = dict[str, Any](), 0
    for fixed, names, text_name, is_rest in runs:
        found = fixed.unpack_from(packed, at)
        values.update(zip(names, found, strict=False))  # the length of the text is left over
        at += fixed.size
        if text_name:
            end = len(packed) if is_rest else at + found[-1]
            text, at = packed[at:end], end
            values[text_name] = text if is_rest or text_name in _BYTES else text.decode(errors="surrogateescape")
    return values, at


@cache
def formats() -> dict[str, Format]:
    """Return the formats of packed records, by name."""
    return {name: _format(name, fields) for name, fields in _FORMAT.findall(_text())}


def _format(name: str, text: str) -> Format:
    kept, _, unkept = text.replace("\n--:", " ").partition("|")
    fields, _, later = kept.replace("~", "+").partition("+")
    return Format(name, _fields(fields), _fields(later), unkept.split(), "~" not in kept)


def _fields(text: str) -> list[Field]:
    return [Field(*field.split(":")) for field in text.split()]


@cache
def sections() -> dict[str, str]:
    """Read the sections of lua/: their texts by their names, each behind those that it needs."""
    folders = sorted((each for each in files("fairq").joinpath("lua").iterdir() if each.is_dir()), key=str)
    paths = [each for folder in folders for each in sorted(folder.iterdir(), key=str) if each.name.endswith(".lua")]
    texts = {path.name.removesuffix(".lua"): path.read_text(encoding="utf-8") for path in paths}
    return {name: texts[name] for name in in_order({name: needs_of(text) for name, text in texts.items()})}


def needs_of(text: str) -> list[str]:
    """Return the names of the sections that one needs: it begins with them, if there are any."""
    found = re.match(r"-- needs: ((?:.+,\n-- )*.+)\n", text)
    return re.split(r",(?: |\n-- )", found[1]) if found else []


def in_order(needs: Mapping[str, list[str]]) -> list[str]:
    """Sort sections by what each of them needs; `CycleError` says which need each other."""
    missing = {need for found in needs.values() for need in found} - needs.keys()
    if missing:
        raise ValueError(f"lua/ has no section {', '.join(sorted(missing))}")
    return list(TopologicalSorter(needs).static_order())


@cache
def _text() -> str:
    """Join the sections: the two that all need implicitly, unchanged, then each of the others as a block of its own."""
    others = dict(sections())
    first = [others.pop(name) for name in ("prelude", "formats")]
    return "\n".join([*first, *(f"do\n\n{text}\nend" for text in others.values())])


@cache
def _sections() -> str:
    """Join the sections, with the tables and constants that they share, the code of formats, and registrations."""
    shared = sorted(set(re.findall(r"^(?:function )?([a-z_]+)\.", _text(), re.MULTILINE)))
    code = _FORMAT.sub(lambda found: _format(found[1], found[2]).lua() + "\n", _text())
    registrations = "\n".join(
        f"redis.register_function{{function_name = 'fq_' .. VERSION .. '_{verb}', callback = {table}.{verb}, "
        f"flags = {{{flags}}}}}"
        for table, flags in _FLAGS.items()
        for verb in sorted(verbs(table))
    )
    tables = f"local {', '.join(shared)} = {', '.join(['{}'] * len(shared))}"
    found = re.findall(r"(?:call|scan|write)\('([A-Z]+)'(?:, '([A-Z]+)')?", _text())
    commands = ",".join(sorted({" ".join(words).strip() for words in found}))
    plain = ", ".join(f"{name} = {value!r}" for name, value in plain_options().items())
    constants = f"local COMMANDS = '{commands}'\nlocal PLAIN = {{{plain}}}"
    return f"{tables}\n{constants}\n\n{code}\n{registrations}\n"


def plain_options() -> dict[str, str | int]:
    """Return the rarely used options of a task without any, the table PLAIN: NewTask's, and what the library notes."""
    asked = {name.removesuffix("_ms"): OPTIONS[name] for name in RARE_OPTIONS}
    packed = {name: default if isinstance(default, str) else int(default or 0) for name, default in asked.items()}
    return packed | {"opened_at": 0, "ready_at": 0}


@cache
def version() -> str:
    """Hash the library's text."""
    return hashlib.sha256(_sections().encode()).hexdigest()[:10]


def name() -> str:
    """Name the library."""
    return f"fairq_{version()}"


@cache
def function_name(verb: str) -> str:
    """Name the store's function of a verb."""
    return f"fq_{version()}_{verb}"


@cache
def verbs(table: str) -> frozenset[str]:
    """Return the verbs of a table: `reads`, `drains` or `writes` (lua/base/prelude.lua)."""
    return frozenset(re.findall(rf"^function {table}\.(\w+)", _text(), re.MULTILINE))


def source() -> str:
    """Return the library's text, with its name and version on top."""
    return f"#!lua name={name()}\nlocal VERSION = '{version()}'\n\n{_sections()}"
