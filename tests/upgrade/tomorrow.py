"""Tomorrow's build: today's package, whose records have two more fields, and perhaps a migration.

It is made from today's text, so it is a version later at any time; nothing of it is kept.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from fairq.store import library

ROOT = Path(__file__).parents[2]
GROWN = (  # the records that it writes with its fields; not those that count by length in what a tenant keeps
    "QUEUE", "ACCOUNT", "BOOKS", "DETAILS", "RUN", "BUNDLE", "DEATH", "BATCH", "SCHEDULE", "HOURS", "WEBHOOK",
)  # fmt: skip
MIGRATION = """
async def _step(store: Any, queue: str, cursor: str) -> str:
    call, key = store.connection.call, keys.queue_prefix(queue)
    cursor, found = await call("HSCAN", f"{key}:tenants", cursor or "0", "COUNT", 1)
    for name in found[::2]:
        await call("HSET", f"{key}:tomorrow", name, "migrated")
    return DONE if cursor == b"0" else cursor.decode()


MIGRATIONS: Sequence[Migration] = (PARTITIONS, Migration(library.DATA_VERSION, "tenants are noted", _step))
"""


def copy(folder: Path) -> Path:
    """Copy today's package into a folder; to run it, run Python there."""
    shutil.copytree(ROOT / "fairq", folder / "fairq", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def build(folder: Path, *, migrates: bool = False) -> Path:
    """Make tomorrow's package in a folder."""
    copy(folder)
    _change(folder / "fairq/lua/base/formats.lua", lambda text: library._FORMAT.sub(_grown, text))
    replace(
        folder / "fairq/store/library.py",
        'f"function {self.name}.pack(r)"]',
        f"""f"function {{self.name}}.pack(r)", *(["  r.later, r.label = 7, 'tomorrow'"] * (self.name in {GROWN}))]""",
    )
    if migrates:
        version = library.DATA_VERSION
        replace(folder / "fairq/store/library.py", f"DATA_VERSION = {version}", f"DATA_VERSION = {version + 1}")
        replace(folder / "fairq/store/migrations.py", "\nMIGRATIONS: Sequence[Migration] = (PARTITIONS,)\n", MIGRATION)
    return folder


def _grown(found: re.Match[str]) -> str:
    name, text = found[1], found[2].replace("\n--:", " ")
    fields, bar, unkept = text.partition(" |")
    if "more:t1" in fields and name != "HEADER":  # the model counts how long it is today
        fields += (" " if "+" in fields or "~" in fields else " + ") + "later:d label:t1"
    return f"--: {name} {fields}{bar}{unkept}\n"


def _change(path: Path, change: object) -> None:
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")  # type: ignore[operator]


def replace(path: Path, text: str, instead: str) -> None:
    """Replace a text that occurs once in a file."""
    found = path.read_text(encoding="utf-8")
    assert found.count(text) == 1, text
    path.write_text(found.replace(text, instead), encoding="utf-8")


def library_of(folder: Path) -> str:
    """Return the function library of the package in a folder."""
    program = "from fairq.store import library; print(library.source(), end='')"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    ).stdout
