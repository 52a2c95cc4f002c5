"""The help of each command: what it does, each of its options, and an example that the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from fairq.cli.app import commands, run
from fairq.model.queues import QueueSettings


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Find the commands of a group."""
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
    told = capsys.readouterr().out
    for name in {command[0] for command in COMMANDS}:
        assert re.search(rf"^. {name} +[A-Z]", told, re.MULTILINE), name


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_the_command_takes(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    told = re.sub(r"\s+", " ", capsys.readouterr().out)
    example = re.search(r"Example: `fairq (.*?)`", told)
    assert example, told
    words = shlex.split(example[1])
    assert words[: len(command)] == list(command)
    function, bound, _ = commands().parse_args(words, exit_on_error=False, print_error=True)
    assert function.__module__.startswith("fairq.cli.")
    assert bound.args or bound.kwargs or command[-1] in ("list",)


def test_the_help_of_settings_names_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queues", "set", "--help"]) == 0
    told = capsys.readouterr().out
    assert [field.name for field in attrs.fields(QueueSettings) if not re.search(rf"\b{field.name}\b", told)] == []
