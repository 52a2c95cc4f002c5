"""`fairq tenants limits` and `set-limits`, the same of `fairq queues`; and a file that is more than may wait."""

from __future__ import annotations

from pathlib import Path

from .harness import Commands, ServerThread
from .test_commands import lines
from .test_enqueue_lines import Acker, enqueue, write


def test_limits_of_a_tenant_are_set_shown_and_left_to_the_queue_again(commands: Commands) -> None:
    done = commands(
        "tenants", "set-limits", "emails", "ada", "--max-running", "10", "--rate", "300/min", "--stored-bytes", "5000"
    )
    assert done.out.splitlines() == [
        "ada in emails: max_running default -> 10", "ada in emails: rate default -> 5/s",
        "ada in emails: stored_bytes default -> 5,000 bytes",
    ]  # fmt: skip
    assert (
        "max_running none -> 20" in commands("queues", "set-limits", "emails", "--max-running", "20", "--dead", "7").out
    )
    answer = commands("tenants", "limits", "emails", "ada", "--json").json
    assert {name: value for name, value in answer["limits"].items() if value is not None} == {
        "max_running": 10, "rate": 5, "stored_bytes": 5000,
    }  # fmt: skip
    assert (answer["holds"]["max_running"], answer["holds"]["dead"], answer["holds"]["queued"]) == (10, 7, 10_000_000)
    commands.enqueue("emails", "1", name="ada")
    assert commands("tenants", "list", "emails", "--json").json[0]["is_limited"]
    table = lines(commands("tenants", "limits", "emails", "ada"))
    assert any("dead" in line and "default" in line and "7" in line for line in table)
    assert any("stored_bytes" in line and "5,000 bytes" in line for line in table)
    assert any("queued" in line and "10,000,000" in line for line in table)
    assert (
        "max_running 10 -> default"
        in commands("tenants", "set-limits", "emails", "ada", "--max-running", "default").out
    )
    assert "dead 7 -> none" in commands("queues", "set-limits", "emails", "--dead", "none").out
    assert commands("queues", "limits", "emails", "--json").json["limits"]["max_running"] == 20
    assert commands("tenants", "limits", "emails", "ada", "--json").json["holds"]["max_running"] == 20


def test_a_file_that_is_too_much_at_once_goes_in_as_there_is_room(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    commands("tenants", "set-limits", "emails", "ada", "--queued", "40")
    path = write(tmp_path / "lines", "".join(f"line {n}\n" for n in range(60)))
    with Acker(server) as acker:
        done = enqueue(commands, "--lines", path, "--text-lines", "--wait", "60")
    assert (done.code, len(acker.payloads)) == (0, 60)
