"""The help of each command: what it does, each of its options, and an example that the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from fairq.cli.app import commands, run


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in group:
        if not name.startswith("-"):
            inner = group[name]
            if any(not each.startswith("-") for each in inner):
                yield from commands_of(inner, (*path, name))
            else:
                yield (*path, name)


COMMANDS = list(commands_of(commands()))


def test_the_list_of_commands_says_what_each_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert {("serve",), ("dead", "replay"), ("queues", "set-limits")} <= set(COMMANDS)
    assert run(["--help"]) == 0
    output = capsys.readouterr().out
    for name in {command[0] for command in COMMANDS}:
        assert re.search(rf"^. {name} +[A-Z]", output, re.MULTILINE), name


def test_a_group_says_of_itself_what_the_list_of_commands_says() -> None:
    listed, own = commands(is_listing=True), commands()
    groups = {command[0] for command in COMMANDS if len(command) > 1}
    for name in groups:
        assert own[name].help.startswith(listed[name].help), name


def example_of(command: tuple[str, ...]) -> list[str]:
    """Return the words of the example in a command's help."""
    found = commands()
    for word in command:
        found = found[word]
    example = re.search(r"Example: `fairq (.*?)`", " ".join((found.default_command.__doc__ or "").split()))
    assert example, command
    return shlex.split(example[1])


def test_each_command_has_an_example_that_it_takes() -> None:
    app = commands()
    for command in COMMANDS:
        words = example_of(command)
        assert words[: len(command)] == list(command)
        function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=True)
        assert function.__module__.startswith("fairq.cli."), command
        assert bound.args or bound.kwargs or command[-1] in ("list",), command


def test_the_help_of_a_command_has_its_example_and_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead", "replay", "--help"]) == 0
    output = capsys.readouterr().out
    assert "Example: fairq dead replay" in output
    assert "--older-than" in output


def test_help_fills_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", "--help"]) == 0
    assert "stop. A second signal ends the worker at once" in capsys.readouterr().out


def test_help_keeps_what_stands_in_angles(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "FAIRQ_<NAME>" in output
    assert "dev-tenant:<name>" in output
