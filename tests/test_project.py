"""What people expect of a project: its licence, the page for contributors, the tools that check a change."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_licence_is_named_and_there() -> None:
    assert PROJECT["license"] == "MIT"
    (path,) = PROJECT["license-files"]
    assert "the fairq authors" in (ROOT / path).read_text()


def test_what_the_page_for_contributors_names_is_there() -> None:
    paths = set(re.findall(r"`((?:fairq|lua|tests|loadtest|deploy|\.ci)/[\w./-]*)`", CONTRIBUTING))
    assert len(paths) > 30
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_hooks_run_what_the_checks_of_a_merge_run() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    run = (ROOT / ".ci" / "run").read_text()
    tools = {hook["entry"].split()[0] for hook in repo["hooks"]}
    assert tools == {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/python"}
    assert all(tool in run for tool in tools)
    for path in re.findall(r"tests/\w+\.py", str(repo)):
        assert (ROOT / path).exists()
