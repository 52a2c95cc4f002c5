"""The Lua function library: its text, its version, and how it gets onto a store.

The version is a hash of the text: library `fairq_<version>`, functions `fq_<version>_<verb>`, so two builds of fairq
work on one store during a rolling upgrade, and no library is ever replaced. What the keys hold has a version of its
own, DATA_VERSION, which is raised by hand: see lua/KEYS.md.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

DATA_VERSION = 5


@cache
def _sections() -> str:
    """Join the numbered sections of lua/.

    The claim (30) and the sections from 50 on are leaves: no other uses their locals. So each is a function of its
    own, for a function of Lua has at most 200 locals.
    """
    sections = sorted(
        (entry for entry in files("fairq").joinpath("lua").iterdir() if entry.name.endswith(".lua")),
        key=lambda entry: entry.name,
    )
    texts = [(section.name, section.read_text(encoding="utf-8")) for section in sections]
    return "\n".join(
        f"do local function leaf()\n{text}end leaf() end\n" if name >= "50" or name.startswith("30") else text
        for name, text in texts
    )


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
def read_verbs() -> frozenset[str]:
    """Name the verbs that change nothing, as 99_register.lua says."""
    return frozenset(re.findall(r"^register\('(\w+)', READS\)", _sections(), re.MULTILINE))


def source() -> str:
    """Return the library's text, with its name and version on top."""
    return f"#!lua name={name()}\nlocal VERSION = '{version()}'\n\n{_sections()}"
