"""`fairq batches`: list, show, cancel and watch."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.server.harness import tenant

from .harness import Commands, Finished, ServerThread, check_error, read_until, started
from .test_enqueue_lines import Acker, write

ADA = tenant("ada")


@pytest.fixture
def filled(commands: Commands, tmp_path: Path) -> Commands:
    """A queue with batches of two tenants."""
    path = write(tmp_path / "file", "1:a:b\n1:c\n1:d\n")
    for name in ("ada", "bob"):
        assert commands("enqueue", "emails", "--requests", path, "--id", "r", token=tenant(name)).code == 0
    assert commands("batches", "cancel", "emails", "ada/r-3", "--yes").out == "ada/r-3: cancelled\n"
    return commands


def ids(done: Finished) -> list[str]:
    assert done.code == 0, done.err
    return [row["id"] for row in done.json]


def test_batches_are_listed_by_tenant_and_state(filled: Commands) -> None:
    def found(*argv: str, token: str = "dev-operator") -> list[str]:
        return ids(filled("batches", "list", "emails", "--json", *argv, token=token))

    assert set(found()) == {f"{name}/r-{n}" for name in ("ada", "bob") for n in (1, 2, 3)}
    assert set(found("--tenant", "bob")) == {"bob/r-1", "bob/r-2", "bob/r-3"}
    assert found("--state", "complete") == ["ada/r-3"]
    assert found("--state", "open") == []
    assert set(found(token=ADA)) == {"r-1", "r-2", "r-3"}
    assert len(found("--limit", "4")) == 4
    table = filled("batches", "list", "emails", "--limit", "5")
    assert "there are more" in table.out
    assert "there are more" not in filled("batches", "list", "emails", "--limit", "6").out
    assert "no such batches" in filled("batches", "list", "other").out


def test_one_batch_is_shown(filled: Commands, server: ServerThread) -> None:
    with Acker(server, "reject"):
        assert filled("batches", "watch", "emails", "ada/r-1").code == 1
    row = filled("batches", "show", "emails", "r-1", "--json", token=ADA).json
    assert {name: row[name] for name in ("id", "state", "total", "waiting", "dead", "expired")} == {
        "id": "r-1", "state": "complete", "total": 2, "waiting": 0, "dead": 2, "expired": 0,
    }  # fmt: skip
    assert "completed" in filled("batches", "show", "emails", "ada/r-1").out
    check_error(filled("batches", "show", "emails", "ada/none"), 1, "no batch")


def test_a_batch_is_cancelled_once_and_no_other(filled: Commands) -> None:
    cancel = ("batches", "cancel", "emails", "r-1", "--yes")
    assert filled(*cancel, token=ADA).out == "r-1: cancelled\n"
    again = filled(*cancel, token=ADA)
    assert (again.code, again.out) == (1, "r-1: complete already\n")
    row = filled("batches", "show", "emails", "r-1", "--json", token=ADA).json
    assert (row["state"], row["cancelled"]) == ("complete", 2)
    assert filled("batches", "show", "emails", "bob/r-1", "--json").json["state"] == "closed"


def test_watching_prints_a_line_for_each_change_and_ends_when_it_is_complete(
    filled: Commands, server: ServerThread
) -> None:
    options = ("--url", server.url, "--token", ADA)
    with started("batches", "watch", "emails", "r-1", "--json", *options) as command:
        first = orjson.loads(read_until(command, "{"))
        assert (first["state"], first["total"], first["done"], first["waiting"]) == ("closed", 2, 0, 2)
        with Acker(server):
            last = orjson.loads(read_until(command, "complete"))
        assert (last["done"], last["waiting"]) == (2, 0)
        assert command.wait(30) == 0
    done = filled("batches", "watch", "emails", "r-1", token=ADA)
    assert (done.code, done.out) == (0, "complete: 2 done, 0 dead, 0 cancelled, 0 running of 2 tasks\n")
