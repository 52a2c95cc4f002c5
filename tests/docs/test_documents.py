"""README and the guides say what the code says: commands, names, options, errors, links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import fairq
from fairq.cli.app import commands
from fairq.cli.docs import FOLDER, ORDER, guides, summary
from fairq.model.option_tables import TaskOptions
from fairq.model.tasks import OPTIONS
from tests.docs import api
from tests.docs.reader import Block, anchor_of, parts_of
from tests.test_documents import table_after

ROOT = Path(__file__).resolve().parents[2]
TASKS = (ROOT / "fairq" / "docs" / "tasks.md").read_text()
DOCUMENTS = [ROOT / "README.md", *guides().values(), FOLDER / "examples" / "README.md"]
BLOCKS = [(path.name, part) for path in DOCUMENTS for part in parts_of(path.read_text()) if isinstance(part, Block)]
COMMAND = re.compile(r"^(?:FAIRQ_\w+=\S+ )?fairq ([^|#&>\n]+)", re.MULTILINE)
COMMANDS = sorted(
    {words for _, block in BLOCKS if block.language in ("sh", "text") for words in COMMAND.findall(block.text)}
)
WINGS = ("celery", "django", "testing", "sync", "webhook")
DEFAULTS = {"none": (None, 0, ""), "no": (False,), "the queue's": (None, 0), "its batch": ("",)}


def test_a_command_in_the_documents_is_one() -> None:
    app = commands()
    for command in COMMANDS:
        parsed, bound, _ = app.parse_args(shlex.split(command), exit_on_error=False, print_error=False)
        assert callable(parsed), command
        assert bound is not None, command


def test_the_python_in_the_documents_uses_what_there_is() -> None:
    for name, block in BLOCKS:
        if block.language == "python":
            compile(block.text, f"{name}:{block.line}", "exec")
            for word in re.findall(r"\bfairq\.(\w+)", block.text):
                assert word in (*fairq.__all__, *WINGS), f"{name}:{block.line}: {word}"


def test_every_option_of_a_task_is_reported_with_its_default() -> None:
    rows = {row["option"].strip("`"): row["default"] for row in table_after(TASKS, "| option | unit |")}
    assert rows.keys() == TaskOptions.__annotations__.keys() | {"name"}
    for name, found in rows.items():
        default = OPTIONS.get(f"{name}_ms", OPTIONS.get(name, False))  # dedupe_payload is the SDK's own
        assert default in DEFAULTS.get(found, ()) or str(default).removesuffix(".0") == found, name


def test_errors_in_the_guide_are_public_and_tell_what_to_do() -> None:
    rows = table_after(TASKS, "| error | means | do |")
    assert rows
    for row in rows:
        assert row["means"]
        assert row["do"]
        for name in re.findall(r"`(\w+)`", row["error"]):
            assert issubclass(getattr(fairq, name), fairq.FairqError)


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", path.read_text()):
            file = (path.parent / target).resolve() if target else path
            assert file.exists(), f"{path.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
                assert anchor in map(anchor_of, headings), f"{path.name}: {target}#{anchor}"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    section = (ROOT / "README.md").read_text().split("## Test it")[1]
    (command,) = re.findall(r"^python3 .*$", section, flags=re.MULTILINE)
    assert command.endswith("-m pytest")
    assert "sed -n '/^## Test it/" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_no_guide_is_long() -> None:
    words = {name: len(guide.read_text().split()) for name, guide in guides().items() if name != "api"}
    assert {name: count for name, count in words.items() if count > 2_300} == {}


def test_readme_and_command_know_every_guide() -> None:
    readme = (ROOT / "README.md").read_text()
    assert set(guides()) == {*ORDER, "lineage"}
    assert all(f"(fairq/docs/{name}.md)" in readme for name in guides())


def test_a_guide_begins_with_what_it_is_about() -> None:
    assert all(20 < len(summary(guide.read_text())) < 160 for guide in guides().values())


PROMISE = (  # of queues with partitions: README and the guide that explains it have the same words
    "Each tenant of a queue with partitions lives on one primary; all promises about one tenant hold unchanged. Between"
    " tenants of different partitions, worker time is off its share by at most three of the longest leases, plus one"
    " lease for each server and partition. A tenant gets no more than its primary can do. While a primary is away its"
    " tenants wait, and the others share its slots."
)


def test_the_promise_of_partitions_stands_in_the_readme_and_in_its_guide() -> None:
    assert {path.name for path in DOCUMENTS if PROMISE in path.read_text()} == {"README.md", "concepts.md"}


def test_no_sentence_stands_in_two_places() -> None:
    seen: dict[str, str] = {}
    for path in DOCUMENTS:
        if path.stem == "api":  # the docstrings' words
            continue
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for sentence in re.split(r"(?<=[.:])\s+|\n\n|\|", text):
            words = " ".join(sentence.split())
            if (
                len(words) > 60
                and words[0] != "`"
                and "terminal" not in words
                and words not in PROMISE
                and "(../../README.md#set-up)" not in words
            ):
                assert words not in seen, f"{words!r} is in {seen[words]} and {path.name}"
                seen[words] = path.name


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert (FOLDER / "api.md").read_text() == api.page(), "run `python -m tests.docs.api > fairq/docs/api.md`"


def test_figures_of_the_comparison_are_those_that_were_measured() -> None:
    measured = (ROOT / "loadtest" / "README.md").read_text().split("### Peers")[1]
    peers = cells_after(measured, "|  | tasks | one by one/s |")
    floods = cells_after(measured, "| behind a flood |")
    found = cells_after((FOLDER / "comparison.md").read_text(), "| tasks a second |")
    assert set(found) == {name for name in peers if not name.startswith("raw")}
    for name, (one_by_one, bulk, drained, flow, cpu, quiet) in found.items():
        peer = peers[name]
        assert (one_by_one, bulk, drained, flow, cpu) == (peer[1], peer[2], peer[4], peer[6], peer[8]), name
        if quiet:
            number, unit = quiet.split()
            ms = float(floods[name][3].replace(",", ""))
            assert float(number) == pytest.approx(ms / {"s": 1000, "ms": 1}[unit], rel=0.05), name
    parts = cells_after(measured, "| of fairq's |")
    medians = {name: [cell.split()[0] for cell in [*cells[:5], cells[6]]] for name, cells in parts.items()}
    assert cells_after((FOLDER / "comparison.md").read_text(), "| parts of fairq's |") == medians


def cells_after(text: str, mark: str) -> dict[str, list[str]]:
    """Read the first table after a mark: a list of cells by the first one, without stress."""
    lines = text[text.index(mark) :].split("\n\n")[0].replace("*", "").splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: cells for name, *cells in rows}
