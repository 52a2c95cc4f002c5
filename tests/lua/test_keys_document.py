"""lua/KEYS.md against the sections: keys, settings, packed fields and the channel, both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fairq
from fairq.store import library

LUA = Path(fairq.__file__).parent / "lua"
DOCUMENT = (LUA / "KEYS.md").read_text()
SOURCE = library.source()
TEXT = re.sub(r"--[^\n]*", "", SOURCE)
FORMATS = ["QUEUE", "TENANT", "HEADER", "RUN", "OPTIONS", "EXTRAS", "BATCH", "DEATH", "SCHEDULE", "TEMPLATE"]


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
    names = set(re.findall(r"key\(call, '([a-z:]+)'", TEXT)) | set(re.findall(r"prefix \.\. ':([a-z]+)'", TEXT))
    looped = re.search(r"pairs\(\{(due.*?)\}\)", TEXT, re.DOTALL)
    assert looped, "next_due goes over some sorted sets by name"
    return names | set(re.findall(r"(\w+) =", looped[1]))


def test_every_key_is_in_the_document_and_the_document_has_no_other() -> None:
    documented = {re.sub(r"<.*", "", name) for name in rows("Keys of a queue")}
    registry = "fq:{queues}:"
    documented |= {name.removeprefix(registry) for name in rows("Keys of the service") if name.startswith(registry)}
    channel = {"ready"} if "Channel: `ready`" in DOCUMENT else set()
    assert built_keys() == documented | channel


def test_keys_are_built_in_one_way_only() -> None:
    """Whoever concatenates a prefix elsewhere escapes the check above."""
    assert len(re.findall(r"\bprefix \.\.", TEXT)) == 2, "key(), and load_queue, which has no call yet"


def test_every_setting_is_in_the_document_with_its_default_and_range() -> None:
    found = re.search(r"local SETTINGS = \{(.*?)\n\}", TEXT, re.DOTALL)
    assert found
    numbers = {"SHARE_TIME": "0", "SHARE_COUNT": "1"}
    ranges = {
        name: f"{numbers.get(low, low)}..{numbers.get(high, high)}"
        for name, low, high in re.findall(r"(\w+) = \{(\w+), (\w+)\}", found[1])
    }
    settings = rows("Settings")
    assert ranges == {name: cells[1] for name, cells in settings.items()}
    defaults = re.search(r"local function new_queue\(\)(.*?)^end", TEXT, re.DOTALL | re.MULTILINE)
    assert defaults
    for name, (default, *_) in settings.items():
        value = re.search(rf"\b{name} = ([\w* ]+)", defaults[1])
        assert value, name
        factors = [int(numbers.get(factor.strip(), factor)) for factor in value[1].split("*")]
        product = 1
        for factor in factors:
            product *= factor
        assert int(default) == product, name


@pytest.mark.parametrize("name", FORMATS)
def test_every_packed_field_is_in_the_document_in_its_order(name: str) -> None:
    packed = re.search(rf"local {name}_FORMAT = '([^']+)'", TEXT)
    told = re.search(
        rf"^{name}_FORMAT `([^`]+)`[^:]*:(.*?)(?:A tail|The payload|\n\n)", DOCUMENT, re.MULTILINE | re.DOTALL
    )
    assert packed
    assert told
    assert told[1] == packed[1]
    fields = re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", told[2]))
    assert len(fields) == len(re.sub(r"[BH]c0", "t", packed[1]).strip("<"))
    if name != "DEATH":  # each verb takes from it what it needs
        assert fields == unpacked(name)


def unpacked(name: str) -> list[str]:
    """List the variables that the sections unpack a format into, the first time they do."""
    before = TEXT[: TEXT.index(f"struct.unpack({name}_FORMAT")]
    targets = re.search(r"((?:[\w.]+,\s+)*[\w.]+)\s*=\s*$", before)
    if before.endswith("new_tenant(call, name, "):
        targets = re.search(r"function new_tenant\(call, name, ([^)]*)\)", TEXT)
    assert targets
    fields = [field.split(".")[-1] for field in re.findall(r"[\w.]+", targets[1])]
    return [field for field in fields if field != "position"]
