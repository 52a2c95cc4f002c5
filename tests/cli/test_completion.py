"""`fairq --install-completion`, and what a real shell then completes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.parts import program

from .harness import fairq_here


def install(shell: str, home: Path) -> Path:
    """Install the completion; returns its script."""
    done = fairq_here("--install-completion", "--shell", shell, env={"HOME": str(home), "SHELL": f"/bin/{shell}"})
    assert done.code == 0, done.err
    (script,) = (path for path in home.rglob("*") if path.is_file() and "_fairq" in path.read_text())
    return script


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("bash", tmp_path_factory.mktemp("home"))


COMPLETED = [
    ("fairq do", {"doctor", "docs"}, {"dead"}),
    ("fairq tenants set-", {"set-weight", "set-limits"}, {"set"}),
    ("fairq doctor --pr", {"--prune"}, {"--json"}),
    ("fairq enqueue --de", {"--delay", "--dedupe-key"}, {"--url"}),
    ("fairq backup x --no-", {"--no-verify"}, {"--store"}),
    ("fairq nonsense", set(), {"serve"}),
]


def test_bash_completes_commands_and_options(script: Path) -> None:
    for line, among, not_among in COMPLETED:
        words = line.split()
        completes = (
            f". '{script}'\nCOMP_WORDS=({' '.join(words)})\nCOMP_CWORD={len(words) - 1}\nCOMP_LINE='{line}'\n_fairq\n"
            'printf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", completes], capture_output=True, text=True, timeout=30, check=True
        )
        found = {word.strip() for word in done.stdout.splitlines()}
        assert found >= among, done
        assert not found & not_among, done


def test_a_new_bash_loads_it(script: Path) -> None:
    home = next(parent for parent in script.parents if (parent / ".bashrc").exists())
    loads = f". '{home}/.bashrc'; complete -p fairq"
    done = subprocess.run(["bash", "--norc", "-c", loads], capture_output=True, text=True, timeout=30, check=False)
    assert "_fairq" in done.stdout, done


@pytest.mark.deep("deploy")
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_their_script(shell: str, tmp_path: Path) -> None:
    finished = fairq_here(
        "--install-completion", "--shell", shell, env={"HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    )
    assert finished.code == 0, finished.err
    for script in (path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in ("", ".fish")):
        done = subprocess.run(
            [program(shell), "-n", str(script)], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
