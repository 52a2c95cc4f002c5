"""The parts of the deep tier: what each tests, what it needs beyond README's test command, which changes it may catch.

The one table of them: `pytest --deep=PART` (conftest.py), `.ci/deep` and CONTRIBUTING go by it. It needs no package, so
that `.ci/deep` can read it on a bare machine: `python3 -m tests.parts packages PART`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

_CODE = ("fairq/", "lua/", "pyproject.toml")
_SYSTEM_PATH = ":".join(  # where Debian puts servers
    ["/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin", *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
)


class Part(NamedTuple):
    """A part of the deep tier."""

    about: str
    touched_by: tuple[str, ...]  # beginnings of paths; a change there may break it
    programs: Mapping[str, str] = {}  # a program that it needs -> the Debian package that has it
    extra: str = ""  # of pyproject.toml


PARTS: dict[str, Part] = {
    "mutants": Part("planted bugs of the library and the client's session", ("lua/", "fairq/wire/", "tests/")),
    "redis": Part(
        "the tests of the library and the store on redis-server",
        ("lua/", "fairq/store/", "tests/lua/", "tests/store/"),
        {"redis-server": "redis-server"},
    ),
    "kills": Part(
        "killed processes, cut connections, fleets, faults",
        (*_CODE, "tests/system/", "tests/client/", "loadtest/faults/"),
        {"faketime": "faketime"},
    ),
    "browser": Part(
        "the dashboard in Chromium",
        ("fairq/server/", "fairq/model/", "tests/browser/"),
        {"chromium": "chromium"},
        "browser",
    ),
    "deploy": Part(
        "packages, units, proxies, alerts, completion in other shells",
        (
            "deploy/",
            "pyproject.toml",
            "fairq/cli/",
            "fairq/server/settings.py",
            "fairq/server/web/admin/",
            "tests/deploy/",
        ),
        {
            "promtool": "prometheus",
            "prometheus": "prometheus",
            "nginx": "nginx-light",
            "caddy": "caddy",
            "systemd-analyze": "systemd",
            "curl": "curl",
            "zsh": "zsh",
            "fish": "fish",
        },
        "packaging",
    ),
    "image": Part(
        "the chart, the steps of the image; where an engine answers: the image, compose.yaml, the store in a container",
        ("deploy/", "pyproject.toml", ".ci/engine", ".ci/compose", "fairq/server/settings.py", "tests/deploy/"),
        extra="packaging",
    ),
    "frameworks": Part(
        "web frameworks, also with Postgres, Celery, and a worker for Node",
        (
            "fairq/celery/",
            "fairq/client/",
            "fairq/django/",
            "fairq/sync/",
            "fairq/wire/",
            "fairq/server/web/http/",
            "tests/celery/",
            "tests/frameworks/",
        ),
        {"node": "nodejs", "npm": "npm", "pg_ctl": "postgresql", "initdb": "postgresql"},
        "frameworks",
    ),
    "guides": Part(
        "README and the guides followed to the letter, examples, what editors show, the whole demo",
        (
            "README.md",
            "fairq/docs/",
            "fairq/cli/",
            "fairq/client/",
            "fairq/django/",
            "fairq/demo/",
            "deploy/",
            "tests/docs/",
        ),
        {"curl": "curl", "pg_ctl": "postgresql", "initdb": "postgresql"},
        "editors,loadtest",
    ),
    "fairness": Part(
        "shares, lag and predictions at full size", ("lua/", "fairq/model/simulation/", "tests/"), extra="loadtest"
    ),
    "loadtest": Part(
        "every load test, quickly",
        (*_CODE, "loadtest/", "tests/loadtest/"),
        {"pg_ctl": "postgresql", "initdb": "postgresql"},
        "loadtest",
    ),
    "fuzz": Part(
        "generated requests against the documents of the HTTP APIs", ("fairq/server/", "fairq/wire/"), extra="fuzz"
    ),
    "longest": Part("long walks and histories, bounds at full size, memory", (*_CODE, "tests/", "loadtest/")),
}


def find(program: str) -> str | None:
    """Return the path of a program, or None if it is not installed."""
    return shutil.which(program) or shutil.which(program, path=_SYSTEM_PATH)


def program(name: str) -> str:
    """Return the path of a program that a part needs. Raises: LookupError if no part names it, or if it is missing."""
    packages = {name: package for part in PARTS.values() for name, package in part.programs.items()}
    if name not in packages:
        raise LookupError(f"no part of the deep tier names the program {name}: add it to tests/parts.py")
    if (found := find(name)) is None:
        raise LookupError(f"{name} is not installed (Debian: apt-get install {packages[name]})")
    return found


def missing_packages(parts: Iterable[str]) -> list[str]:
    """List the Debian packages that these parts need and that are not installed."""
    needed = {package: find(name) for part in parts for name, package in PARTS[part].programs.items()}
    return sorted(package for package, found in needed.items() if found is None)


def touched_since(revision: str) -> list[str]:
    """List the parts that the changes since a revision may break, those not committed among them."""
    names = ["git", "diff", "--name-only", revision], ["git", "ls-files", "--others", "--exclude-standard"]
    changed = [path for argv in names for path in subprocess.check_output(argv, text=True).splitlines()]
    return [name for name, part in PARTS.items() if any(path.startswith(part.touched_by) for path in changed)]


def main(verb: str, *argv: str) -> None:
    """Answer .ci/deep: the parts' names, the packages or extras that some need, the parts that a change touches."""
    if verb == "changed":
        answer = touched_since(*argv)
    elif unknown := set(argv) - PARTS.keys():
        sys.exit(f"no part of the deep tier: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    elif verb == "packages":
        answer = missing_packages(argv)
    elif verb == "extras":
        answer = sorted({PARTS[name].extra for name in argv} - {""})
    else:
        answer = list(argv or PARTS)
    print(*answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
