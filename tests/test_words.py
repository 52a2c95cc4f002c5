"""The barred words: ways of saying that make a reader stop do not come back, in code, comments or documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
READ = ("fairq", "lua", "tests", "loadtest", "deploy", "README.md")
ENDINGS = {".py", ".lua", ".md", ".toml", ".conf", ".yaml", ".service", ".example"}
# a word as a regex -> what is said instead: the subject of a sentence is the thing
WORDS = {
    r"[Ww]hoever": "the tenant, client, server or task",
    r"[Ww]hat was": "the noun: the enqueued tasks, the measurements, the previous limits",
    r"[Ww]hom? waits": "requests, tasks or servers that wait",
    r"[Nn]obody (?:asks|asked|knows|waits|serves|gets|works|worked|goes|takes(?! these)|answers|else)": (
        "no tenant, no worker, no server; or the passive: an unknown token, an abandoned thread"
    ),
    r"he|him|his|himself": "it: tenants, clients and workers are things",
    r"that one which|asks? for that few|how it is with": "the noun or verb, in a sentence of its own",
    r"told": "reported, shown, announced, distinguished; it learns, hears or reads",
    r"(?:that|which) (?:is|are) none(?: any more)?|none such|as it was(?=[.,;:\"])": "unknown, unchanged",
}
ANY = re.compile(rf"(?<![A-Za-z-])(?:{'|'.join(WORDS)})(?![A-Za-z])")


def files() -> Iterator[Path]:
    """Return all files of code and text but this one, each once: fairq/lua is a link to lua."""
    for name in READ:
        for each in sorted((ROOT / name).rglob("*")) or [ROOT / name]:
            is_text = each.suffix in ENDINGS and each.is_file()
            if is_text and each != Path(__file__) and each.relative_to(ROOT).parts[:2] != ("fairq", "lua"):
                yield each


def test_barred_words_are_not_used() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files()}
    assert {"README.md", "fairq/wire/PROTOCOL.md", "lua/verbs/claim.lua", "fairq/model/queue/model.py"} <= texts.keys()
    for path, text in texts.items():
        for match in ANY.finditer(text):
            instead = next(each for word, each in WORDS.items() if re.compile(word).match(text, match.start()))
            line = text.count("\n", 0, match.start()) + 1
            raise AssertionError(f"{path}:{line}: {match[0]!r}: say {instead}")
