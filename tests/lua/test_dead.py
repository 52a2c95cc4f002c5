"""Reading dead letters: pages that hold together whatever happens between them, filters, one letter whole."""

from __future__ import annotations

from .calls import START, Queue


def test_dead_letters_come_oldest_first_with_all_that_is_known(queue: Queue) -> None:
    queue.enqueue("ada", "a", payload=b"body")
    queue.end("reject", queue.claim()[0], "", "no address")
    queue.advance(1)
    queue.bury("bob", "b")
    page = queue.dead_page()
    assert (page.cursor, page.left, page.ids) == ("", 0, ["a", "b"])
    assert page.letters[0][2:] == ("rejected", 1, START, "no address", "")
    assert page.letters[0].record.endswith(b"ada\0body")
    assert [row[1] for row in queue.call("dead", "", "", 9, "", "", 0, 0, "")[2:]] == [b"ada", b"bob"]
    assert [letter.record for letter in queue.dead_page(brief=True).letters] == [b"", b""]


def test_one_letter_is_told_whole_and_none_as_nothing(queue: Queue) -> None:
    queue.bury("ada", "a", error="no")
    queue.enqueue("ada", "waiting")
    assert queue.letter("a") == queue.dead()[0]
    assert queue.letter("waiting") is queue.letter("nobody") is queue.letter("") is None


def test_pages_follow_each_other_and_say_what_is_left(queue: Queue) -> None:
    for n in range(5):
        queue.bury("ada", f"id{n}")
        queue.advance(n % 2)
    page = queue.dead_page(count=2)
    assert (page.ids, page.left) == (["id0", "id1"], 3)
    page = queue.dead_page(page.cursor, 2)
    assert (page.ids, page.left) == (["id2", "id3"], 1)
    page = queue.dead_page(page.cursor, 2)
    assert (page.ids, page.left, page.cursor) == (["id4"], 0, "")


def test_letters_of_one_moment_are_told_apart_by_their_bytes(queue: Queue) -> None:
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


def test_a_walk_meets_each_letter_that_stays_once_whatever_is_purged(queue: Queue) -> None:
    queue.bury("ada", *(f"id{n}" for n in range(9)))
    page = queue.dead_page(count=3)
    queue.call("purge", "id0", "id2", "id3")
    queue.call("replay", "id1", "id5")
    page = queue.dead_page(page.cursor, 3)
    assert (page.ids, page.left) == (["id4", "id6", "id7"], 1)
    assert queue.dead_page(page.cursor, 3).ids == ["id8"]


def test_a_walk_does_not_meet_letters_that_died_after_it_began(queue: Queue) -> None:
    """Or replaying all at leisure would never end, if they die again."""
    queue.bury("ada", "a", "b")
    queue.advance(10)
    page = queue.dead_page(count=1)
    queue.advance(1)
    queue.call("replay", "a")
    queue.end("reject", queue.claim()[0])
    page = queue.dead_page(page.cursor, 9)
    assert (page.ids, page.cursor, page.left) == (["b"], "", 0)
    assert queue.dead_page().ids == ["b", "a"]


def test_a_tenants_letters_are_found_without_looking_at_the_others(queue: Queue) -> None:
    queue.bury("flood", *(f"f{n:03}" for n in range(400)))
    queue.advance(1)
    queue.bury("ada", "a", "b")
    page = queue.dead_page(count=1, tenant="ada")
    assert (page.ids, page.left) == (["a"], 1)
    assert queue.dead_page(page.cursor, 1, tenant="ada").ids == ["b"]
    assert queue.dead_page(tenant="nobody") == ("", 0, [])


def test_letters_are_chosen_by_reason_error_and_age(queue: Queue) -> None:
    queue.bury("ada", "old", error="500 from mail.example")
    queue.advance(1000)
    queue.bury("ada", "mid", error="404 [not found]")
    queue.enqueue("ada", "late", expires_in=500)
    queue.advance(1000)
    queue.tick()
    queue.enqueue("ada", "lost", max_attempts=1)
    queue.claim()
    queue.advance(30_000)
    queue.tick()

    def found(**which: object) -> list[str]:
        return [letter.id for letter in queue.dead(**which)]

    assert found() == ["old", "mid", "late", "lost"]
    assert found(reason="rejected") == ["old", "mid"]
    assert (found(reason="expired"), found(reason="lease_lost"), found(reason="exhausted")) == (["late"], ["lost"], [])
    assert found(error="mail") == ["old"]
    assert found(error="[not f") == ["mid"], "a text, not a pattern"
    assert found(error="MAIL") == []
    assert found(older=31_000) == ["old", "mid"]
    assert found(older=31_001) == ["old"]
    assert found(younger=31_000) == ["mid", "late", "lost"]
    assert found(older=1, younger=30_000) == ["late"]
    assert found(older=10**15) == []
    assert found(younger=10**15) == found()


def test_the_ages_are_those_of_the_walks_beginning(queue: Queue) -> None:
    for id in ("a", "b", "c"):
        queue.bury("ada", id)
        queue.advance(100)
    page = queue.dead_page(count=1, older=200)
    assert (page.ids, page.left) == (["a"], 1)
    queue.advance(10_000)
    page = queue.dead_page(page.cursor, 9, older=200)
    assert (page.ids, page.cursor) == (["b"], "")


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
    """They are read with the letters, also where they are not told."""
    queue.bury("ada", *(f"id{n:03}" for n in range(300)), traceback="t" * 8192)
    for brief, told in ((False, "t" * 8192), (True, "")):
        page = queue.dead_page(count=300, brief=brief)
        assert 120 < len(page.ids) <= 128, "1 MiB"
        assert page.left == 300 - len(page.ids)
        assert {letter.traceback for letter in page.letters} == {told}
        assert [letter.id for letter in queue.dead(count=300, brief=brief)] == [f"id{n:03}" for n in range(300)]
    empty = queue.dead_page(error="other", count=300)
    assert (empty.ids, 300 - 128 <= empty.left < 300 - 120) == ([], True)


def test_a_letter_of_an_earlier_version_has_no_traceback(queue: Queue) -> None:
    queue.bury("ada", "a", error="no", traceback="frames")
    packed = queue.client.hget(queue.key("dead"), "a")
    assert isinstance(packed, bytes)
    queue.client.hset(queue.key("dead"), "a", packed.removesuffix(b"frames"))
    assert queue.dead()[0][4:] == (START, "no", "")


def test_a_cursor_from_anywhere_is_a_place_and_no_more(queue: Queue) -> None:
    queue.bury("ada", "a", "b")
    beyond, before = f"{START + 99}:{START + 99}:zz", f"{START}:0:x"
    assert queue.dead_page(beyond) == ("", 0, [])
    assert queue.dead_page(before).ids == ["a", "b"]
    assert queue.dead_page(f"{'9' * 90}:{START}:a").ids == ["b"]
    assert queue.dead_page(f"0:{START}:a") == ("", 0, [])
