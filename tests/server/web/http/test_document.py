"""HTTP.md and the code say the same, both ways."""

from __future__ import annotations

from pathlib import Path

from fairq.io.transport import PIECE_BYTES
from fairq.server.engine.net.admission import MAX_HANDSHAKES
from fairq.server.engine.net.transport import SEND_S
from fairq.server.web.http import bounds
from fairq.server.web.http.leases import ClaimTasks, EndLeases, EnqueueFromLease, ReadBatchResults
from fairq.server.web.http.problems import STATUS
from fairq.server.web.http.routes import ROWS
from fairq.wire import messages as wire
from fairq.wire.verbs import VERBS
from tests.test_documents import table_after

TEXT = (Path(wire.__file__).parent / "HTTP.md").read_text(encoding="utf-8")
_VERBS = {  # of paths whose frames are HTTP's own
    ClaimTasks: "", EndLeases: "settle", EnqueueFromLease: "enqueue_from", ReadBatchResults: "batch_results",
}  # fmt: skip


def test_the_table_of_paths_is_that_of_the_code() -> None:
    described = [
        (
            row["method"],
            row["path"].strip("`"),
            row["verb"].strip("`"),
            {role for role in ("tenant", "producer", "worker") if row[role] == "yes"},
            row[""],
        )
        for row in table_after(TEXT, "## Paths")
    ]
    assert described == [
        (
            row.method,
            row.path,
            _VERBS.get(row.frame, getattr(row.frame, "type", "")),
            {"worker"}
            if row.frame in _VERBS
            else {role.value for role in VERBS[row.frame].roles} - {"operator", "viewer"},
            row.summary,
        )
        for row in ROWS
    ]


def test_the_table_of_statuses_is_that_of_the_code() -> None:
    described = {
        code.strip(" `"): int(row["status"])
        for row in table_after(TEXT, "## Errors")
        for code in row["code"].split(",")
    }
    assert described == STATUS


def test_every_bound_is_reported() -> None:
    found = " ".join(f"{row['what']} {row['bound']}" for row in table_after(TEXT, "## Bounds"))
    numbers = {
        value for name, value in vars(bounds).items() if name.isupper() and name not in ("RETRY_MS", "KEEP_ALIVE_S")
    }
    for value in numbers | {MAX_HANDSHAKES, PIECE_BYTES, SEND_S}:
        assert f"{value:g}" in found.split() or f"{value:.0f}" in found.split(), value
