"""The sections of the library: what they need, and the habits of their text."""

from __future__ import annotations

import re
from graphlib import CycleError
from pathlib import Path

import pytest

import fairq
from fairq.store import library

from .calls import VERBS

LUA = Path(fairq.__file__).parent / "lua"
FOLDERS = ["base", "pick", "tasks", "verbs", "features", "operate", "inspect", "service"]  # each may need those before
SECTIONS = library.sections()
CODE = {name: re.sub(r"--[^\n]*|'[^'\n]*'", "", text) for name, text in SECTIONS.items()}
TABLES = [name for name, text in CODE.items() if re.search(rf"^(?:function )?{name}\.", text, re.MULTILINE)]
TOP_LEVEL = re.compile(
    r"local function |local [A-Z_, ]+ = |\}$|end$|function [A-Za-z_]+\.|[a-z_]+\.[a-z_]+ = \w+$"
    r"|[a-z_]+\.[A-Z_]+(, [a-z_]+\.[A-Z_]+)* = |(repair_steps\.all|limits\.(names|defaults)) = \{"
)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_needs_the_tables_that_it_uses_and_no_others(name: str) -> None:
    used = [table for table in TABLES if table != name and re.search(rf"(?<![\w.]){table}\.\w", CODE[name])]
    assert library.needs_of(SECTIONS[name]) == sorted(used)


def test_a_section_puts_nothing_into_the_table_of_another() -> None:
    for name, text in CODE.items():
        given = set(re.findall(r"^(?:function )?([a-z_]+)\.", text, re.MULTILINE))
        assert given <= {name, "reads", "drains", "writes"}, name


def test_a_section_needs_none_of_a_later_folder() -> None:
    places = {path.stem: FOLDERS.index(path.parent.name) for path in LUA.glob("*/*.lua")}
    assert places.keys() == SECTIONS.keys()
    for name, text in SECTIONS.items():
        assert all(places[need] <= places[name] for need in library.needs_of(text)), name


def test_sections_come_behind_those_that_they_need() -> None:
    assert library.in_order({"c": ["b"], "a": [], "b": ["a"]}) == ["a", "b", "c"]
    names = list(SECTIONS)
    assert all(names.index(need) < n for n, name in enumerate(names) for need in library.needs_of(SECTIONS[name]))
    assert library.needs_of("-- needs: a, b,\n-- c\n--\n-- Words, more\n") == ["a", "b", "c"]


def test_a_circle_or_a_need_that_is_no_section_fails() -> None:
    with pytest.raises(CycleError):
        library.in_order({"a": ["b"], "b": ["a"]})
    with pytest.raises(ValueError, match="no section c"):
        library.in_order({"a": ["c"]})


def test_sections_have_no_state_at_their_top_level() -> None:
    """A top-level local may be a constant or a function; none is assigned to later, and no name is global."""
    for name, text in CODE.items():
        for line in re.findall(r"^\w[^\n]*", text, re.MULTILINE):
            assert TOP_LEVEL.match(line), f"{name}: not a constant, a function or a registration: {line}"
        changed = re.findall(r"^\s*[A-Z][A-Z_]+[\w.\[\]']* = .*", text, re.MULTILINE)
        assert changed == [], f"{name}: a constant is changed"


def test_every_verb_says_what_it_takes_and_gives() -> None:
    text = "\n".join(SECTIONS.values())
    for verb in VERBS:
        header = re.search(rf"^-- {verb}\(keys, argv\): .*?(?=^[^-])", text, re.MULTILINE | re.DOTALL)
        assert header, f"{verb} has no header"
        assert "same arguments" in header[0] or re.search(r"^--   out ", header[0], re.MULTILINE), verb


def test_sections_and_their_functions_stay_small() -> None:
    for name, text in SECTIONS.items():
        assert text.count("\n") <= 280, name
        for function in re.findall(r"^(?:local )?function .*?^end", text, re.MULTILINE | re.DOTALL):
            assert function.count("\n") <= 40, f"{name}: {function.splitlines()[0]}"
        assert max(map(len, text.splitlines())) <= 120, name


def test_all_that_sections_keep_in_a_call_is_listed_where_it_opens() -> None:
    text = "\n".join(SECTIONS.values())
    listed = [
        re.search(rf"^{begin}\n(.*?)^ *\}}", text, re.MULTILINE | re.DOTALL)
        for begin in (r"local OF_CALL = \{__index = \{", r"  local call = setmetatable\(\{")
    ]
    names = [name for found in listed if found for name in re.findall(r"(\w+) = ", found[1])]
    used = re.findall(r"\bcall\.(\w+)", text)
    assert sorted(set(used)) == sorted(names)
