"""What the README says can be done, can be done."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import fairq
from fairq.cli.app import commands

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for language, text in BLOCKS
    for line in text.splitlines()
    if language == "sh" and re.match(r"(FAIRQ_\w+=\S+ )?fairq ", line)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_the_readme_is_one(command: str) -> None:
    words = [word for word in shlex.split(command) if not word.startswith("FAIRQ_")]
    parsed, bound, _ = commands().parse_args(words[1:], exit_on_error=False, print_error=False)
    assert callable(parsed)
    assert bound is not None


def test_the_python_in_the_readme_uses_what_there_is() -> None:
    sources = [text for language, text in BLOCKS if language == "python"]
    assert len(sources) == 8
    for source in sources:
        compile(source, "README.md", "exec")
        for name in re.findall(r"\bfairq\.(\w+)", source):
            assert name in (*fairq.__all__, "testing", "sync"), name


def test_errors_in_the_readme_are_public_and_tell_what_to_do() -> None:
    table = README[README.index("| error | means | do |") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) == 8
    for names, means, do in rows:
        assert means
        assert do
        for name in re.findall(r"`(\w+)`", names):
            assert issubclass(getattr(fairq, name), fairq.FairqError)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_ci_runs_the_test_command_of_the_readme() -> None:
    section = README.split("## Test it")[1]
    (command,) = re.findall(r"^python3 .*$", section, flags=re.MULTILINE)
    assert command.endswith("-m pytest")
    assert "sed -n '/^## Test it/" in (ROOT / ".ci" / "run").read_text()
