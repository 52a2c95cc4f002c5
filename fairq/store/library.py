"""The Lua function library: its text, its version, and how it gets onto a store.

Version rule: library `fairq_<N>` and functions `fq<N>_<verb>` carry N, so two builds of fairq work on one store during
a rolling upgrade. A library is never replaced. To change a section: edit it, raise VERSION, set DIGEST to what
`python -m fairq.store.library` prints. tests/store/test_library.py fails when the text changed and VERSION did not.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

VERSION = 3
DIGEST = "c4fc3779eb65de5c"
NAME = f"fairq_{VERSION}"
READ_VERBS = frozenset(
    {
        "depth",
        "tenants",
        "tasks",
        "dead",
        "peek",
        "batches",
        "results",
        "letter",
        "events",
        "schedules",
        "limits",
        "windows",
        "why",
    }
)


def function_name(verb: str) -> str:
    """Name the store's function of a verb."""
    return f"fq{VERSION}_{verb}"


@cache
def source() -> str:
    """Join the numbered sections of lua/ into the library's text, with its name and version on top.

    The claim (30) and the sections from 60 on are leaves: no other uses their locals. So each is a function of its
    own, for a function of Lua has at most 200 locals.
    """
    sections = sorted(
        (entry for entry in files("fairq").joinpath("lua").iterdir() if entry.name.endswith(".lua")),
        key=lambda entry: entry.name,
    )
    texts = [(section.name, section.read_text(encoding="utf-8")) for section in sections]
    body = "\n".join(
        f"do local function leaf()\n{text}end leaf() end\n" if name >= "60" or name.startswith("30") else text
        for name, text in texts
    )
    return f"#!lua name={NAME}\nlocal VERSION = {VERSION}\n\n{body}"


def digest() -> str:
    """Hash the library's text, for the version rule."""
    return hashlib.sha256(source().encode()).hexdigest()[:16]


if __name__ == "__main__":
    print(digest())
