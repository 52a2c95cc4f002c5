"""The Lua function library: its text, its version and its names.

The version is a hash of the text: library `fairq_<version>`, functions `fq_<version>_<verb>`. So two builds of fairq
work on one store during a rolling upgrade, and no library is ever replaced. The data in the keys has its own version,
DATA_VERSION, which is raised by hand: see lua/KEYS.md.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import Any, NamedTuple

DATA_VERSION = 19


_FORMAT = re.compile(r"^--: ([A-Z_]+) (.*(?:\n--:  .*)*)\n", re.MULTILINE)
_TEXTS = {"t1": "Bc0", "t2": "Hc0", "rest": ""}  # texts: with a length of one or two bytes, or up to the end


_FLAGS = {"reads": "'no-writes'", "drains": "'allow-oom'", "writes": ""}  # of the functions of each table of verbs
_BYTES = ("options", "made", "settings")  # fields whose bytes are no text


class Field(NamedTuple):
    """A field of a packed record: its name, and its type in lua/base/formats.lua."""

    name: str
    type: str

    @property
    def code(self) -> str:
        """Return its struct format; of a text, that of its length."""
        return re.sub(r"c(\d+)", r"\1s", _TEXTS.get(self.type, self.type).removesuffix("c0"))


class Format(NamedTuple):
    """A kind of packed record: its fields in order, and further names that are false after unpacking."""

    name: str
    fields: list[Field]
    more: list[str]

    @property
    def code(self) -> str:
        """Return the format string of Lua's struct."""
        return "<" + "".join(_TEXTS.get(field.type, field.type) for field in self.fields)

    @property
    def head(self) -> str:
        """Return the struct format of the fixed bytes of a record: all fields, with only the lengths of texts."""
        return "<" + "".join(field.code for field in self.fields)

    @property
    def size(self) -> int:
        """Return how many bytes of a record are fixed."""
        return struct.calcsize(self.head)

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """Pack a record; texts are str or bytes."""
        packed = b""
        for field in self.fields:
            value = values[field.name]
            if field.type in _TEXTS:
                text = value.encode(errors="surrogateescape") if isinstance(value, str) else value
                packed += (struct.pack("<" + field.code, len(text)) if field.code else b"") + text
            else:
                packed += struct.pack("<" + field.code, value)
        return packed

    def unpack(self, packed: bytes) -> tuple[dict[str, Any], int]:
        """Read a record, and where it ends; `t1` and `t2` are str, but for packed ones; `rest` is bytes."""
        values: dict[str, Any] = {}
        at = 0
        for field in self.fields:
            if field.type == "rest":
                values[field.name], at = packed[at:], len(packed)
                break
            fixed = _struct(field.type)
            (number,) = fixed.unpack_from(packed, at)
            at += fixed.size
            if field.type in _TEXTS:
                text = packed[at : at + number]
                values[field.name], at = (
                    text if field.name in _BYTES else text.decode(errors="surrogateescape"),
                    at + number,
                )
            else:
                values[field.name] = number
        return values, at

    def lua(self) -> str:
        """Write the Lua table of this format."""
        packed = [f for f in self.fields if f.type != "rest"]
        rest = [f.name for f in self.fields if f.type == "rest"]
        values = "".join(f", #r.{f.name}, r.{f.name}" if f.type in _TEXTS else f", r.{f.name}" for f in packed)
        names = ", ".join(f.name for f in packed)
        record = ", ".join([f"{f.name} = {f.name}" for f in packed] + [f"{name} = false" for name in self.more])
        record += "".join(f", {name} = text:sub(position)" for name in rest)
        tail = "".join(f" .. r.{name}" for name in rest)
        texts = {f.name for f in self.fields if f.type in _TEXTS or f.type.startswith("c")}
        blank = ", ".join(f"{f.name} = {chr(39) * 2 if f.name in texts else 0}" for f in self.fields)
        blank += "".join(f", {name} = false" for name in self.more)
        return "\n".join(
            [
                f"local {self.name} = {{format = '{self.code}', size = {self.size}}}",
                f"function {self.name}.pack(r) return struct.pack('{self.code}'{values}){tail} end",
                f"function {self.name}.unpack(text, at)",
                f"  local {names}, position = struct.unpack('{self.code}', text, at or 1)",
                f"  return {{{record}}}, position",
                "end",
                f"function {self.name}.new(given)",
                f"  local r = {{{blank}}}",
                "  for name, value in pairs(given) do r[name] = value end",
                "  return r",
                "end",
            ]
        )


@cache
def _struct(type: str) -> struct.Struct:
    return struct.Struct("<" + Field("", type).code)


def formats() -> dict[str, Format]:
    """Return the formats of packed records, by name."""
    return {name: _format(name, text) for name, text in _FORMAT.findall(_text())}


def _format(name: str, text: str) -> Format:
    fields, _, more = text.replace("\n--:", " ").partition("|")
    return Format(name, [Field(*field.split(":")) for field in fields.split()], more.split())


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
    """Join the sections: the two that all need, unsaid, as they are, then each of the others as a block of its own."""
    others = dict(sections())
    first = [others.pop(name) for name in ("prelude", "formats")]
    return "\n".join([*first, *(f"do\n\n{text}\nend" for text in others.values())])


@cache
def _sections() -> str:
    """Join the sections, with the tables and commands that they share, the code of formats, and registrations."""
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
    return f"{tables}\nlocal COMMANDS = '{commands}'\n\n{code}\n{registrations}\n"


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
