"""lua/KEYS.md against the sections: keys, packed fields and the channel, both ways."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import fairq
from fairq.store import library

LUA = Path(fairq.__file__).parent / "lua"
DOCUMENT = (LUA / "KEYS.md").read_text()
TEXT = re.sub(r"--[^\n]*", "", "\n".join(library.sections().values()))
FORMATS = library.formats()


def section(title: str) -> str:
    """Cut one section out of the document."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(title: str) -> dict[str, list[str]]:
    """Read a section's table by its first column."""
    table = [line.strip("| ").split(" | ") for line in section(title).splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): [cell.strip() for cell in row[1:]] for row in table}


def built_keys() -> set[str]:
    """Find the names of all keys that the sections build; a name that ends in a colon takes a tenant or a window."""
    names = set(re.findall(r"(?:prefix|keys\[1\]) \.\. ':?([a-z][a-z_:]*)'", TEXT))
    looped = re.search(r"pairs\(\{(due.*?)\}\)", TEXT, re.DOTALL)
    assert looped, "next_due goes over some sorted sets by name"
    called = re.findall(r"past_deadline\(call, '(\w+)'", TEXT)
    return names | set(re.findall(r"(\w+) =", looped[1])) | set(called)


def test_every_key_is_in_the_document_and_the_document_has_no_other() -> None:
    documented = {re.sub(r"<.*", "", name) for name in rows("Keys of a queue")}
    for prefix in ("fq:{queues}:", "fq:{audit}:", "fq:{audit-of-tenants}:"):
        documented |= {name.removeprefix(prefix) for name in rows("Keys of the service") if name.startswith(prefix)}
    channel = {"ready"} if "Channel: `ready`" in DOCUMENT else set()
    assert built_keys() == documented | channel


def test_few_names_of_keys_come_from_lists() -> None:
    """They escape the check above, unless it knows the list."""
    assert Counter(re.findall(r"\bprefix \.\. (\w+)", TEXT)) == {"name": 8, "hash": 1, "set": 1}


def documented(format: library.Format) -> list[str]:
    return [field.name for field in [*format.fields, *format.later] if field.name != "more"]


def test_every_packed_field_is_in_the_document_in_its_order() -> None:
    end = r"(?:A tail|The payload|: the head of|\n\n)"
    in_brackets = re.compile(r"\([^()]*\)")
    for name in FORMATS.keys() - {"OPTIONS"}:  # those are PROTOCOL's
        found = re.search(rf"^{name}\b[^:]*:(.*?){end}", DOCUMENT, re.MULTILINE | re.DOTALL)
        assert found, name
        text = in_brackets.sub("", in_brackets.sub("", found[1]))
        assert re.findall(r"`(\w+)`", text) == documented(FORMATS[name]), name


def test_the_document_has_no_other_format() -> None:
    assert set(re.findall(r"^([A-Z_]+)\b[^:\n]*:", section("Packed values"), re.MULTILINE)) == FORMATS.keys()
