"""What can be asked, and the habits of the sections' text."""

from __future__ import annotations

import pytest
import redis

from fairq.store import library

from .calls import VERBS, Queue


def test_tenants_come_in_pages(queue: Queue) -> None:
    for n in range(600):
        queue.enqueue(f"t{n}", f"id{n}")
    cursor, pages, names = "0", 0, []
    while pages == 0 or cursor != "0":
        cursor, *lines = (part.decode() for part in queue.call("tenants", cursor, 50))
        names += [line.split(" ")[0] for line in lines]
        pages += 1
    assert pages > 1
    assert sorted(names) == sorted(f"t{n}" for n in range(600))


def test_named_tenants_are_reported_in_order_without_those_that_are_unknown(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.call("set_weight", "bob", 2000)
    found = queue.tenants("bob", "eve", "ada")
    assert list(found) == ["bob", "ada"]
    assert (found["bob"].weight, found["bob"].ready, found["bob"].is_eligible) == (2000, 0, 0)
    assert (found["ada"].ready, found["ada"].is_eligible) == (1, 1)


def test_a_read_verb_may_be_called_on_a_replica_and_a_write_verb_may_not(queue: Queue) -> None:
    loaded = queue.client.function_list(library.name())
    functions = {entry[1].decode(): {flag.decode() for flag in entry[5]} for entry in loaded[0][5]}
    assert functions.keys() == {library.function_name(verb) for verb in VERBS}
    for verb in VERBS:
        assert ("no-writes" in functions[library.function_name(verb)]) == (verb in library.verbs("reads"))
    with pytest.raises(redis.ResponseError, match="write flag"):
        queue.client.fcall_ro(library.function_name("claim"), 1, queue.prefix, "", "", "w", 1)


def test_a_peek_at_long_tasks_ends_before_the_reply_is_too_long(queue: Queue) -> None:
    queue.enqueue("ada", *"abcde", payload=b"1" * 400_000)
    assert queue.peek("ada", 500) == ["a", "b", "c"]
    assert queue.peek("ada", 2) == ["a", "b"]
