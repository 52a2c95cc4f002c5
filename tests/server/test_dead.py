"""Dead letters through the server: whose they are, what each role sees of them, and whose share a replay takes."""

from __future__ import annotations

from typing import Any

from fairq.model.dead_letters import DeadLetter
from fairq.model.tasks import Lease, Settlement
from fairq.server.run import Served

from .harness import OPERATOR, Raw, raw, tenant

ROW = set(DeadLetter.__annotations__)
BRIEF = {"id", "tenant", "reason", "attempts", "died_at_ms", "error"}


async def bury(served: Served, name: str, *ids: str, error: str = "", traceback: str = "") -> None:
    """Make dead letters of a tenant; nothing else may be ready."""
    async with raw(served, tenant(name)) as client:
        assert await client.enqueue("q", ids) == ["ok"] * len(ids)
    leases: list[Lease] = []
    while len(leases) < len(ids):
        leases += (await served.app.store.claim("q", f"w{len(leases)}", len(ids) - len(leases))).leases
    rejected = [Settlement("reject", lease.id, lease.lease, None, error, traceback=traceback) for lease in leases]
    assert await served.app.store.settle("q", rejected) == ["ok"] * len(ids)


async def ids_of(client: Raw, **which: Any) -> list[str]:
    """Walk over the dead letters that match, a few at a time."""
    found: list[str] = []
    cursor = None
    while True:
        page = await client.ask("dead", queue="q", count=2, cursor=cursor, **which)
        found += [row["id"] for row in page["dead"]]
        cursor = page["cursor"]
        if cursor is None:
            assert page["left"] == 0
            return found


async def test_an_operator_sees_all_letters_and_a_tenant_its_own_without_its_name(served: Served) -> None:
    await bury(served, "ada", "a1", "a2", "a3")
    await bury(served, "bob", "b1", error="no such street")
    async with raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator:
        assert await ids_of(operator) == ["ada/a1", "ada/a2", "ada/a3", "bob/b1"]
        assert await ids_of(operator, tenant="bob") == await ids_of(operator, error="street") == ["bob/b1"]
        assert await ids_of(ada) == await ids_of(ada, tenant="ada") == ["a1", "a2", "a3"]
        assert await ids_of(ada, error="street") == []
        (row,) = (await operator.ask("dead", queue="q", tenant="bob"))["dead"]
        assert row.keys() == ROW
        assert (row["payload"], row["error"], row["attempts"]) == ("b1", "no such street", 1)
        assert {*(await ada.ask("dead", queue="q", brief=True))["dead"][0]} == BRIEF
        assert (await ada.ask("dead_letter", queue="q", id="a2"))["dead_letter"]["payload"] == "a2"
        assert (await operator.ask("dead_letter", queue="q", id="bob/b1"))["dead_letter"] == row


async def test_a_traceback_shows_the_workers_code_to_operators_only(served: Served) -> None:
    await bury(served, "ada", "a", error="no", traceback="frames")
    for token, id, told in ((tenant("ada"), "a", ""), (OPERATOR, "ada/a", "frames")):
        async with raw(served, token) as client:
            letter = (await client.ask("dead_letter", queue="q", id=id))["dead_letter"]
            assert (letter["traceback"], letter["error"]) == (told, "no")
            assert (await client.ask("dead", queue="q"))["dead"] == [letter]
            assert "frames" not in str(await client.ask("tasks", queue="q", ids=[id]))


async def test_a_tenant_can_touch_no_letters_but_its_own(served: Served) -> None:
    await bury(served, "ada", "same", "a")
    await bury(served, "bob", "same", "b")
    async with raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator:
        assert (await ada.ask("replay", queue="q", ids=["b", "a"]))["outcomes"] == ["gone", "ok"]
        assert (await ada.ask("purge", queue="q", ids=["same", "b"]))["outcomes"] == ["ok", "gone"]
        assert await ids_of(operator) == ["bob/b", "bob/same"]
        forged = (await operator.ask("dead", queue="q", count=1))["cursor"]
        assert (await ada.ask("dead", queue="q", cursor=forged))["dead"] == []
        states = (await operator.ask("tasks", queue="q", ids=["ada/a", "ada/same"]))["tasks"]
        assert [state["state"] for state in states] == ["ready", "unknown"]
