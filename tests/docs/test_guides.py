"""The guides are followed as a reader does it: every block, in order, in terminals, in a copy of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.reader import Block, parts_of
from tests.parts import program
from tests.postgres import ANOTHER

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "fairq" / "docs").rglob("*.md"))
FOLLOWED = [ROOT / "README.md", *(guide for guide in GUIDES if "```sh" in guide.read_text())]
LANGUAGES = {"sh", "python", "text", "toml", "ini", "json", "nginx", "yaml"}
PLACES = ("README.md", "pyproject.toml", "fairq", "lua", "deploy")
FRAMEWORKS = (
    "celery>=5.5",
    "django>=5.2",
    "fastapi>=0.115",
    "uvicorn>=0.30",
    "sqlalchemy[asyncio]>=2.0",
    "psycopg[binary]>=3.2",
)
POSTGRES = ("initdb", "pg_ctl")
INSTALL_S, GUIDE_S = 300, 600
ALONE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install` finds in the guides' namespaces, from where no index can be reached."""
    folder = tmp_path_factory.mktemp("wheels")
    wanted = [f"{ROOT}[server]", "hatchling>=1.27", "pip", "pytest", "anyio", *FRAMEWORKS]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder), *wanted],
        check=True, timeout=INSTALL_S,
    )  # fmt: skip
    for ours in folder.glob("fairq-*.whl"):
        ours.unlink()  # the guides build it
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Postgres's programs, as a user has them who is not root."""
    folder = tmp_path_factory.mktemp("programs")
    for name in POSTGRES:
        (folder / name).write_text(f'#!/bin/sh\nexec {" ".join(ANOTHER)} {program(name)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, as a reader has cloned it."""
    copy = tmp_path_factory.mktemp("home") / "fairq"
    copy.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", ".venv")
    for name in PLACES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


def check_namespaces() -> None:
    """See that this user may make namespaces; guides name ports, which others of this machine may have."""
    done = subprocess.run([*ALONE, "true"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"the guides are followed in namespaces of their own: {done.stderr}"


@pytest.mark.deep("guides")
@pytest.mark.timeout(GUIDE_S + 2 * INSTALL_S)
@pytest.mark.parametrize("guide", FOLLOWED, ids=lambda guide: guide.parent.name + "/" + guide.name)
def test_a_reader_can_follow_a_guide(guide: Path, clone: Path, wheels: Path, programs: Path) -> None:
    check_namespaces()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRQ_", "PIP_"))}
    environment |= {
        "HOME": str(clone.parent),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    command = [*ALONE, sys.executable, "-m", "tests.docs.reader", str(clone), str(clone / guide.relative_to(ROOT))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=GUIDE_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_all_readers_texts_are_followed() -> None:
    names = {path.name for path in FOLLOWED}
    assert {
        "README.md",
        "tutorial.md", "tasks.md", "workers.md", "django.md", "fastapi.md", "celery.md", "testing.md", "operations.md",
    } <= names  # fmt: skip


def test_every_block_says_what_it_is() -> None:
    for guide in (ROOT / "README.md", *GUIDES):
        for block in parts_of(guide.read_text()):
            if isinstance(block, Block):
                assert block.language in LANGUAGES, f"{guide.name}:{block.line}"
                assert block.language != "python" or block.text.startswith("# "), f"{guide.name}:{block.line}: no name"
