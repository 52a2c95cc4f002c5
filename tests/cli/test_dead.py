"""`fairq dead`: for people, for scripts, and for those who stop it half-way."""

from __future__ import annotations

import signal
import time

from tests.server.harness import tenant

from .harness import Commands, ServerThread, bury, check_error, started
from .test_commands import lines


def counts(server: ServerThread) -> tuple[int, int]:
    """How many tasks are ready, and how many dead."""
    state = server.call(server.served.app.store.queue, "emails")
    return state.ready, state.dead


def test_dead_letters_are_listed_for_people_and_for_scripts(commands: Commands, server: ServerThread) -> None:
    assert "no dead letters" in commands("dead", "list", "emails").out
    bury(server, "ada", ["a1", "a2"], payload=b'{"to": "ada"}')
    bury(server, "bob", ["b1", "b2", "b3"], "no such street")
    rows = commands("dead", "list", "emails", "--json").json
    assert [row["id"] for row in rows] == ["ada/a1", "ada/a2", "bob/b1", "bob/b2", "bob/b3"]
    assert (rows[0]["payload"], rows[0]["reason"], rows[0]["attempts"]) == ({"to": "ada"}, "rejected", 1)
    table = lines(commands("dead", "list", "emails"))
    assert sum("no way" in line for line in table) == 2
    short = commands("dead", "list", "emails", "--limit", "2")
    assert "3 more" in short.out
    assert "b1" not in short.out
    assert len(commands("dead", "list", "emails", "--json", "--limit", "2").json) == 2


def test_attempts_are_listed_with_their_errors_escaped(commands: Commands, server: ServerThread) -> None:
    assert "no attempt matches" in commands("tasks", "list", "emails").out
    bury(server, "ada", ["a1"], "no \x1b[31mway")
    bury(server, "bob", ["b1"])
    done = commands("tasks", "list", "emails", "--state", "dead", "--error", "no")
    assert r"no \x1b[31mway" in done.out
    assert "\x1b" not in done.out
    found = commands("tasks", "list", "emails", "--tenant", "ada", "--json").json
    assert found["running"] == found["unanswered"] == []
    assert [(row["id"], row["state"], row["error"]) for row in found["ended"]] == [("ada/a1", "dead", "no \x1b[31mway")]
    assert commands("tasks", "list", "emails", "--state", "leased").code == 2
    refused = commands("tasks", "list", "emails", token=tenant("ada"))
    assert (refused.code, "tenant" in refused.err) == (1, True)


def test_an_id_is_never_cut_short(commands: Commands, server: ServerThread) -> None:
    """`show`, `replay` and `purge` take it."""
    id = "order-" + "0123456789" * 5
    bury(server, "ada", [id], "a long story " * 40)
    assert f"ada/{id}" in commands("dead", "list", "emails").out


FILTERS = [
    (["--error", "street", "--tenant", "ada"], 0),
    (["--older-than", "7d"], 0),
    (["--reason", "exhausted"], 0),
    (["--reason", "lease_lost"], 0),
    (["--error", "such street"], 3),
    (["--tenant", "ada"], 2),
    (["--reason", "rejected"], 5),
    (["--younger-than", "90s"], 5),
]


def test_filters_narrow_it_down(commands: Commands, server: ServerThread) -> None:
    bury(server, "ada", ["a1", "a2"])
    bury(server, "bob", ["b1", "b2", "b3"], "no such street")
    for options, found in FILTERS:
        assert len(commands("dead", "list", "emails", "--json", *options).json) == found, options
    for options, found in FILTERS[:6]:
        assert commands("dead", "replay", "emails", "--all", "--json", *options).json["replayed"] == found, options
    assert counts(server) == (5, 0)


def test_one_letter_is_shown_whole(commands: Commands, server: ServerThread) -> None:
    bury(server, "ada", ["a1"], "Traceback:\n  line 1", payload=b'{"to":"ada","n":[1,null]}')
    shown = commands("dead", "show", "emails", "ada/a1")
    assert shown.code == 0
    for text in ('{"to":"ada","n":[1,null]}', "Traceback", "line 1", "rejected", "+00:00"):
        assert text in shown.out
    letter = commands("dead", "show", "emails", "ada/a1", "--json").json
    assert (letter["payload"], letter["error"]) == ({"to": "ada", "n": [1, None]}, "Traceback:\n  line 1")
    check_error(commands("dead", "show", "emails", "ada/a2"), 1, "ada/a2")


def test_a_traceback_is_printed_below_the_letter_line_by_line(commands: Commands, server: ServerThread) -> None:
    frames = (
        "Traceback (most recent call last):\n" + '  File "mail.py", line 7, in send\n' + "x" * 300 + "\nKeyError: 1"
    )
    bury(server, "ada", ["a1"], traceback=frames)
    shown = commands("dead", "show", "emails", "ada/a1").out
    assert shown.endswith(f"\n{frames}\n"), "no line is wrapped"
    assert "traceback" not in shown
    assert commands("dead", "show", "emails", "ada/a1", "--json").json["traceback"] == frames
    listed = commands("dead", "list", "emails").out
    assert "mail.py" not in listed
    bury(server, "ada", ["a2"])
    assert commands("dead", "show", "emails", "ada/a2").out.rstrip().endswith("┘")


def test_what_a_handler_says_cannot_drive_the_operators_terminal(commands: Commands, server: ServerThread) -> None:
    hostile = "[/red] \x1b]0;owned\x07 :smile: \u009b2J \u202e1"
    bury(server, "ada", ["a1"], hostile, traceback=hostile)
    for out in (commands("dead", "list", "emails").out, commands("dead", "show", "emails", "ada/a1").out):
        assert "\x1b]" not in out
        assert "\u009b" not in out
        assert r"[/red] \x1b]0;owned\x07 :smile: \x9b2J \u202e1" in " ".join(out.split())


def test_named_letters_are_replayed_and_purged_and_the_code_says_if_some_were_none(
    commands: Commands, server: ServerThread
) -> None:
    bury(server, "ada", ["a1", "a2", "a3"])
    done = commands("dead", "replay", "emails", "ada/a1")
    assert (done.code, done.out) == (0, "replayed: 1\n")
    done = commands("dead", "replay", "emails", "ada/a1", "ada/a2")
    check_error(done, 1, "ada/a1")
    assert "replayed: 1" in done.out
    assert "ada/a2" not in done.err
    done = commands("dead", "purge", "emails", "ada/a3", "ada/a1", "--json")
    assert (done.code, done.json) == (1, {"purged": 1, "gone": 1})
    assert counts(server) == (2, 0)
    output = commands("tasks", "show", "emails", "ada/a3").out
    assert "dead" in output
    assert "died at" not in output


def test_all_that_match_are_purged(commands: Commands, server: ServerThread) -> None:
    purge = ("dead", "purge", "emails", "--all", "--yes")
    bury(server, "ada", ["a1", "a2"])
    assert "purged: 0" in commands(*purge, "--tenant", "bob").out
    assert "purged: 0" in commands(*purge, "--older-than", "1h").out
    assert counts(server) == (0, 2)
    assert "purged: 2" in commands(*purge).out
    assert counts(server) == (0, 0)


def test_ctrl_c_tells_how_far_it_came_and_leaves_the_rest(commands: Commands, server: ServerThread) -> None:
    bury(server, "ada", [f"a{n}" for n in range(40)])
    deadline = time.monotonic() + 60
    with started(
        "dead", "replay", "emails", "--all", "--rate", "5", "--url", server.url, "--token", "dev-operator"
    ) as command:
        while counts(server)[0] < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 130
        assert command.stdout is not None
        out = command.stdout.read()
    ready, left = counts(server)
    assert out in (f"replayed: {ready}\n", f"replayed: {ready - 1}\n"), "the last call's answer may still be on its way"
    assert ready + left == 40
    assert left > 20
    assert f"replayed: {left}" in commands("dead", "replay", "emails", "--all").out
