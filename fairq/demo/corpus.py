"""The demonstration's work: digests of source files of this Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
import tokenize
from collections.abc import Callable, Iterable
from pathlib import Path

import trio

MIN_BYTES = 1 << 10
MAX_BYTES = 16 << 10  # bounds a single task's length, and with it the wait for a free worker
MAX_FILES = 2000
ENOUGH_FILES = 400  # enough for a clear contrast
MIN_FILES = 120  # the least on any machine; fewer show no contrast
_NOT_OURS = frozenset({"site-packages", "dist-packages", "__pycache__"})


def choose_files(root: Path | None = None) -> list[Path]:
    """Choose the files: the same ones in the same order for the same sources.

    Ordered by the hash of their relative path, so that any prefix mixes packages and lengths.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    found = []
    for path in root.rglob("*.py"):
        name = path.relative_to(root)
        if _NOT_OURS.isdisjoint(name.parts) and path.is_file() and MIN_BYTES <= path.stat().st_size <= MAX_BYTES:
            found.append((hashlib.sha256(name.as_posix().encode()).digest(), path))
    return [path for _, path in sorted(found)][:MAX_FILES]


def digest_file(path: str | Path) -> str:
    """Read a file, tokenize it, and hash the tokens. Raises: OSError, SyntaxError, tokenize.TokenError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for token in tokenize.tokenize(file.readline):
            digest.update(f"{token.type}:{token.string}\0".encode())
    return digest.hexdigest()


def is_enough(files: int, used: float) -> bool:
    """True if it is time to stop after `files` files, with `used` of the time budget (1: all of it)."""
    return (files >= ENOUGH_FILES and used >= 1) or (files >= MIN_FILES and used >= 1.25)


async def digest_directly(
    files: Iterable[Path], budget_s: float, progress: Callable[[int, float], None], *, count: int | None = None
) -> dict[str, str]:
    """Compute digests in this process, in order, for `budget_s` seconds; returns path -> digest of the files reached.

    With `count`, it digests that many files (or all, if there are fewer), however long it takes.

    So the machine's speed decides how many files the demonstration uses; a slow machine gets a quarter more time to
    reach ENOUGH_FILES. Files that Python cannot tokenize (the standard library has some, for its tests) are skipped.
    `progress(files, seconds)` is called after each file.
    """
    digests: dict[str, str] = {}
    began = trio.current_time()
    for path in files:
        try:
            digests[str(path)] = await trio.to_thread.run_sync(digest_file, path)
        except (OSError, SyntaxError, UnicodeError, tokenize.TokenError):
            continue
        elapsed = trio.current_time() - began
        progress(len(digests), elapsed)
        if len(digests) == count or (count is None and is_enough(len(digests), elapsed / budget_s)):
            break
    return digests
