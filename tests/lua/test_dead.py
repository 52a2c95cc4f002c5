"""Reading dead letters: their order, filters, and how much one page reads."""

from __future__ import annotations

import pytest

from .calls import START, Queue
from .keyspace import Keyspace

MINUTE_MS = 60_000


def test_letters_of_one_moment_are_distinguished_by_their_bytes(queue: Queue) -> None:
    """Not by the store's locale, under which `_` and capitals may stand elsewhere."""
    ids = ["B", "_", "a", "b/", "b/a", "b/a0", "bb", "é"]
    queue.bury("ada", *reversed(ids))
    found: list[str] = []
    cursor = ""
    while len(found) < len(ids):
        page = queue.dead_page(cursor, 1)
        found += page.ids
        queue.call("purge", *page.ids)  # the place must be found without the letter that it is named after
        cursor = page.cursor
    assert found == ids


def test_letters_are_chosen_by_a_text_that_is_no_pattern_and_by_any_age(queue: Queue) -> None:
    queue.bury("ada", "old", error="500 from mail.example")
    queue.advance(1000)
    queue.bury("ada", "new", error="404 [not found]")

    def found(**which: object) -> list[str]:
        return [letter.id for letter in queue.dead(**which)]

    assert (found(error="[not f"), found(error="mail.ex"), found(error="MAIL")) == (["new"], ["old"], [])
    assert (found(older=1), found(older=10**15), found(younger=10**15)) == (["old"], [], ["old", "new"])


def test_a_filter_that_matches_little_gives_empty_pages_and_a_cursor_not_a_blocked_store(queue: Queue) -> None:
    for start in range(0, 1200, 400):
        queue.bury("ada", *(f"id{n:04}" for n in range(start, start + 400)), error="common")
    queue.bury("ada", "rare", error="rare")
    lefts, page = [], queue.dead_page(error="rare")
    while page.cursor:
        assert page.letters == []
        lefts.append(page.left)
        page = queue.dead_page(page.cursor, error="rare")
    assert (lefts, page.ids) == ([701, 201], ["rare"])


def test_a_page_is_bounded_in_bytes_and_a_brief_one_is_not(queue: Queue) -> None:
    queue.enqueue("ada", *"abcde", payload=b"x" * 400_000)
    for lease in [*queue.claim(5), *queue.claim(5)]:
        queue.end("reject", lease)
    page = queue.dead_page()
    assert (page.ids, page.left) == (["a", "b", "c"], 2)
    assert queue.dead_page(page.cursor).ids == ["d", "e"]
    assert queue.dead_page(brief=True).ids == [*"abcde"]


def test_a_page_is_bounded_in_bytes_of_tracebacks_and_a_brief_one_has_none(queue: Queue) -> None:
    """They are read with the letters, also where they are not shown."""
    queue.bury("ada", *(f"id{n:03}" for n in range(300)), traceback="t" * 8192)
    for brief, found in ((False, "t" * 8192), (True, "")):
        page = queue.dead_page(count=300, brief=brief)
        assert 120 < len(page.ids) <= 128, "1 MiB"
        assert page.left == 300 - len(page.ids)
        assert {letter.traceback for letter in page.letters} == {found}
        assert [letter.id for letter in queue.dead(count=300, brief=brief)] == [f"id{n:03}" for n in range(300)]
    empty = queue.dead_page(error="other", count=300)
    assert (empty.ids, 300 - 128 <= empty.left < 300 - 120) == ([], True)


def test_a_cursor_from_anywhere_is_a_place_and_no_more(queue: Queue) -> None:
    queue.bury("ada", "a", "b")
    beyond, before = f"{START + 99}:{START + 99}:zz", f"{START}:0:x"
    assert queue.dead_page(beyond) == ("", 0, [])
    assert queue.dead_page(before).ids == ["a", "b"]
    assert queue.dead_page(f"{'9' * 90}:{START}:a").ids == ["b"]
    assert queue.dead_page(f"0:{START}:a") == ("", 0, [])


@pytest.mark.parametrize("how", ["purged", "trimmed", "one too many"])
def test_the_id_of_a_letter_that_goes_is_remembered_as_long_as_that_of_a_done_task(queue: Queue, how: str) -> None:
    """Else an enqueue or a settlement whose reply was lost, and is repeated, would store or settle a second task."""
    queue.set_limits("ada", dead=1)
    queue.enqueue("ada", "a", payload=b"x" * 5000, max_attempts=1)
    (lease,) = queue.claim()
    queue.end("nack", lease)
    if how == "purged":
        queue.call("purge", "a")
    elif how == "trimmed":
        queue.configure(dead_keep=0)
        queue.tick()
    else:
        queue.bury("ada", "b")
    Keyspace(queue).check()
    assert (queue.state("a"), queue.end("nack", lease)) == ("dead", "gone")
    assert queue.enqueue("ada", "a") == ["duplicate\ndead"]
    assert queue.end("ack", lease._replace(lease=lease.lease + 1)) == "stale"
    queue.advance(2 * MINUTE_MS)
    queue.tick()
    assert queue.enqueue("ada", "a") == ["ok"]
    Keyspace(queue).check()


def test_a_late_owner_does_not_take_a_letter_that_is_gone_for_its_own(queue: Queue) -> None:
    queue.enqueue("ada", "a", max_attempts=1)
    (lease,) = queue.claim()
    queue.end("reap", lease)
    assert queue.end("ack", lease) == "stale"
    queue.call("purge", "a")
    assert queue.end("ack", lease) == "stale"
