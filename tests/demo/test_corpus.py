"""The choice of files, their digests, and the plan that is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairq.demo.corpus import (
    ENOUGH_FILES,
    MAX_BYTES,
    MAX_FILES,
    MIN_BYTES,
    MIN_FILES,
    choose_files,
    digest_directly,
    digest_file,
    is_enough,
)
from fairq.demo.scenario import FAIR, FIFO, FLOOD, QUIET, SHARES, WEIGHTS, plan_phases


def write(path: Path, text: str, length: int = MIN_BYTES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n" + "#" * (length - len(text) - 1))
    return path


def test_files_of_this_machine_are_chosen() -> None:
    files = choose_files()
    assert MIN_FILES < len(files) <= MAX_FILES
    assert len(set(files)) == len(files)
    assert all(MIN_BYTES <= path.stat().st_size <= MAX_BYTES for path in files)


def test_order_depends_on_names_below_the_root_only(tmp_path: Path) -> None:
    for root in ("one", "two"):
        for i in range(20):
            write(tmp_path / root / f"package{i % 3}" / f"module{i}.py", f"x = '{root}'")
    chosen = {root: [p.relative_to(tmp_path / root) for p in choose_files(tmp_path / root)] for root in ("one", "two")}
    assert chosen["one"] == chosen["two"]
    assert chosen["one"] != sorted(chosen["one"])
    assert len(chosen["one"]) == 20


def test_installed_packages_and_odd_sizes_are_left_out(tmp_path: Path) -> None:
    kept = write(tmp_path / "kept.py", "x = 1")
    write(tmp_path / "site-packages" / "other.py", "x = 1")
    write(tmp_path / "__pycache__" / "other.py", "x = 1")
    write(tmp_path / "small.py", "x = 1", MIN_BYTES - 1)
    write(tmp_path / "large.py", "x = 1", MAX_BYTES + 1)
    write(tmp_path / "text.txt", "x = 1")
    assert choose_files(tmp_path) == [kept]


def test_digest_is_of_the_tokens(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one.py", "x = 1"), write(tmp_path / "other.py", "x = 2")
    spaced = write(tmp_path / "spaced.py", "x  =  1", MIN_BYTES + 2)
    assert digest_file(one) == digest_file(str(one)) == digest_file(spaced)
    assert digest_file(one) != digest_file(other)


async def test_files_that_are_no_python_are_passed_over(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good.py", "x = 1"), write(tmp_path / "bad.py", "x = (")
    seen: list[int] = []
    digests = await digest_directly([bad, good, tmp_path / "gone.py"], 60, lambda files, _: seen.append(files))
    assert digests == {str(good): digest_file(good)}
    assert seen == [1]


async def test_a_given_number_of_files_is_taken_however_long_it_takes(tmp_path: Path) -> None:
    files = [write(tmp_path / f"file{i}.py", f"x = {i}") for i in range(5)]
    assert len(await digest_directly(files, 0.0, lambda *_: None, count=3)) == 3
    assert len(await digest_directly(files, 0.0, lambda *_: None, count=9)) == 5


@pytest.mark.parametrize(
    ("files", "used", "enough"),
    [
        (ENOUGH_FILES, 1.0, True),
        (ENOUGH_FILES, 0.9, False),
        (ENOUGH_FILES - 1, 1.2, False),
        (MIN_FILES, 1.25, True),
        (MIN_FILES - 1, 9.0, False),
    ],
)
def test_the_machines_speed_decides_how_many_files(files: int, used: float, enough: bool) -> None:
    assert is_enough(files, used) is enough


@pytest.mark.parametrize("count", [MIN_FILES, 333, MAX_FILES])
def test_fifo_and_fair_get_the_same_arrivals(count: int) -> None:
    paths = [f"/file-{i}" for i in range(count)]
    fifo, fair, shares = plan_phases(paths, 10)
    assert [phase.queue for phase in (fifo, fair, shares)] == [FIFO, FAIR, SHARES]
    assert [(a.at_s, a.owner, [t.path for t in a.tasks]) for a in fifo.arrivals] == [
        (a.at_s, a.owner, [t.path for t in a.tasks]) for a in fair.arrivals
    ]
    assert [task.path for task in fair.tasks] == paths
    assert fair.arrivals[0].owner == FLOOD
    assert len(fair.arrivals[0].tasks) >= 0.75 * count
    assert {arrival.owner for arrival in fair.arrivals[1:]} == set(QUIET)
    assert [a.at_s for a in fair.arrivals] == sorted(a.at_s for a in fair.arrivals)
    assert len({task.id for phase in (fifo, fair, shares) for task in phase.tasks}) == 2 * count + len(shares.tasks)
    assert {fifo.tenant_of(owner) for owner in WEIGHTS} == {"everyone"}
    assert [fair.tenant_of(owner) for owner in WEIGHTS] == list(WEIGHTS)
