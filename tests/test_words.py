"""The barred words: a thing with a new name does not come back under its old one, in code, comments or documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
READ = ("fairq", "lua", "tests", "loadtest", "deploy", "README.md")
ENDINGS = {".py", ".lua", ".md", ".toml", ".conf", ".yaml", ".service", ".example"}


class May(NamedTuple):
    """Where a barred word may stand: in files whose path begins so, on lines that have the text; and why."""

    path: str
    text: str
    why: str


class Barred(NamedTuple):
    """A word as a regex, what is said instead, and where it may stand."""

    word: str
    instead: str
    may: tuple[May, ...] = ()


BACKOFF = "the field's own word in exponential backoff: min(cap, base * 2^attempt)"
WORDS = (
    # Sentences: the subject is the thing.
    Barred(r"[Ww]hoever", "the tenant, client, server or task"),
    Barred(r"[Ww]hat was", "the noun: the enqueued tasks, the measurements, the previous limits"),
    Barred(r"[Ww]hom? waits", "requests, tasks or servers that wait"),
    Barred(
        r"[Nn]obody (?:asks|asked|knows|waits|serves|gets|works|worked|goes|takes|answers|else)",
        "no tenant, no worker, no server; or the passive: an unknown token, an abandoned thread",
        (May("", "nobody takes these", "what `fairq queues list` prints"),),
    ),
    Barred(r"he|him|his|himself", "it: tenants, clients and workers are things"),
    Barred(r"(?:that|which) (?:is|are) none(?: any more)?|none such|as it was(?=[.,;:\"])", "unknown, unchanged"),
    # Names, in Python and in Lua.
    Barred(r"call\.hint|\.hint\(|hint=|hints? (?:is|was|are|may|comes?)", "notify, notification"),
    Barred(r"value: object, what", "field: the name of the field that is checked"),
    Barred(r"MOST_[A-Z]+|most_bytes", "MAX_, max_bytes"),
    Barred(r"Kept\(|Kept\]|unpack_kept", "BlockedInterval"),
    Barred(r"spent|SPENT", "rate_limited; theoretical_arrival of GCRA", (
        May("loadtest/", "spent", "seconds of time, in a measurement"),
        May("tests/lua/test_fairness.py", "self.spent", "worker time, in a simulation"),
    )),
    Barred(r"reply\[\"before\"\]|\{\"before\":|return before|`before`", "previous"),
    Barred(r"USUAL", "DEFAULT, DEFAULT_PRIORITY"),
    Barred(r"[Rr]osters?", "workers, the worker registry"),
    Barred(r"[Dd]ice", "random_values, rng"),
    Barred(r"[Vv]oids?|VOIDS", "tombstone"),
    Barred(r"[Dd]arts?|quivers?", "probe, batch of probes"),
    Barred(r"forgiven", "uncounted, uncounted_attempts; stripped white space"),
    Barred(r"graveyards?", "dead_counts"),
    Barred(r"head_of|window_heads|k != \"head\"", "revision, of a schedule or of opening hours"),
    Barred(r"turn_opening_hours", "change_opening_hours"),
    Barred(r"rerated", "needs_reclass"),
    Barred(r"wakers?", "newly active tenants"),
    Barred(r"levels\.(?:list|of|field|open|close)|levels:<tenant>", "priorities"),
    Barred(r"17_extras|[Ee]xtras\.(?:of|read|add|drop)|HAS_EXTRAS|EXTRAS", "task_options, TASK_OPTIONS, HAS_OPTIONS"),
    Barred(r"[Dd]uty|[Dd]uties", "calendar jobs, jobs"),
    Barred(r"[Hh]earts?|[Hh]aste|BEAT|[Bb]eats", "heartbeat, jitter"),
    Barred(r"spoke_at|heard_at|is_silent", "last_sent_at, last_received_at, is_timed_out", (
        May("tests/", "heard_at_another_server", "in the name of a test: an event that another server told"),
    )),
    Barred(r"kick(?:s|ed)?", "wake_writer"),
    Barred(r"carry_out|\.expect\(|def expect", "handle, tick_within, read_reply"),
    Barred(r"[Dd]oors?", "API, listener, admission"),
    Barred(r"barred", "blocked"),
    Barred(r"\"ready\", \"held\"|'held'|held:<batch>", "pending: a task without a batch slot"),
    Barred(r"reason_of", "cause_of: a reason is why a task died, a cause is why it waits"),
    # The wire, the command line and the documents.
    Barred(r"(?<!retry_)[Cc]aps?(?!_drop|_add)|CAPPED", "max_running, limit", (
        May("fairq/store/", "FullJitterBackoff(cap=", "redis-py's own argument"),
        May("lua/tasks/settlements.lua", "min(cap, base", BACKOFF),
        May("tests/lua/test_settle.py", "test_backoff_doubles_up_to_the_cap", BACKOFF),
    )),
    Barred(r"[\"'`]letters?[\"'`]|[Oo]nly letters", "dead_letter, dead letters", (
        May("tests/client/test_operator.py", "letters", "the name of a queue"),
        May("tests/client/test_dead_letters.py", "parametrize", "the name of a test's parameter"),
    )),
    Barred(r"[*]?Again:[*]? [`a-z]", "On retry:"),
    Barred(r"mill-1", "worker-1"),
)  # fmt: skip


ANY = re.compile(rf"(?<![A-Za-z-])(?:{'|'.join(barred.word for barred in WORDS)})(?![A-Za-z])")


def files() -> Iterator[Path]:
    """Return all files of code and text but this one, each once: fairq/lua is a link to lua."""
    for name in READ:
        for each in sorted((ROOT / name).rglob("*")) or [ROOT / name]:
            is_text = each.suffix in ENDINGS and each.is_file()
            if is_text and each != Path(__file__) and each.relative_to(ROOT).parts[:2] != ("fairq", "lua"):
                yield each


def find(path: str, text: str) -> Iterator[str]:
    """Find barred words in a text that stands under a path."""
    for match in ANY.finditer(text):
        number = text.count("\n", 0, match.start())
        line = text.splitlines()[number]
        barred = next(each for each in WORDS if re.fullmatch(each.word, match[0]))
        if not any(path.startswith(may.path) and may.text in line for may in barred.may):
            yield f"{path}:{number + 1}: {match[0]!r}: say {barred.instead}"


def test_barred_words_are_not_used() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files()}
    assert {"README.md", "fairq/wire/PROTOCOL.md", "lua/verbs/claim.lua", "fairq/model/queue/model.py"} <= texts.keys()
    found = [each for path, text in texts.items() for each in find(path, text)]
    assert not found, "\n".join(found)


def test_a_barred_word_is_found_where_it_may_not_stand() -> None:
    assert list(find("a.py", "fine\n# raises the cap\n")) == ["a.py:2: 'cap': say max_running, limit"]
    assert list(find("a.py", "backoff = FullJitterBackoff(cap=1.0)"))
    assert not list(find("fairq/store/connection.py", "backoff = FullJitterBackoff(cap=1.0)"))
    assert not list(find("a.py", "heartbeats, the capacity, retry_cap_ms, somewhat wasted, dead letters"))
