"""Makes a store's file and the backup of this version of the data: `python -m tests.upgrade.make`.

The store has a queue of a walk through all states (tests/lua/walks.py), and what a server writes for its clients.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from fairq.store import keys, library
from fairq.store.migrations import NEW
from fairq.store.records import pack_waits
from tests import stores
from tests.cli.backups import fill
from tests.cli.harness import ServerThread, fairq_here
from tests.lua.test_repair import walked

FOLDER = Path(__file__).parent
WALKED = "mail"  # the queue of the walk
SEED, STEPS = 0, 171  # of a walk that comes by most kinds of state
MADE_AT = 1_735_689_600_000


def fill_store(url: str) -> None:
    """Put something of every kind into an empty store."""
    with stores.connect(url) as client:
        client.function_load(library.source())
        queue = walked(client, SEED, steps=STEPS)
        queue.call("add_history", 0, "ada", 2, 1, 0, pack_waits({3: 1}))
        client.delete(queue.key("test"))
        thread = ServerThread(stores.of_owner(url))
        thread.start()
        fill(thread.url)
        made = fairq_here(
            "tokens", "create", "--role", "viewer", "--label", "upgrade", "--url", thread.url, "--token", "dev-operator"
        )
        assert made.code == 0, made.err
        made = fairq_here(
            "webhooks", "add", "emails", "https://example.com/", "--url", thread.url, "--token", "dev-operator"
        )
        assert made.code == 0, made.err
        thread.stop()
        client.hset(keys.QUEUES, WALKED, f"{MADE_AT} ")  # now: servers would have fired and expired what is due


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Read the lines of a backup between its header and its end."""
    return [orjson.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()][1:-1]


def main() -> int:
    """Make the files, and tell how many lines of each kind the backup has."""
    file = FOLDER / f"backup-{NEW}.jsonl.gz"
    file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server = stores.LocalServer("valkey", Path(folder))
        server.start()
        try:
            fill_store(server.url)
            with stores.connect(server.url) as client:
                client.function_flush()
                for key in (key for kind in ("result", "unique") for key in client.scan_iter(f"fq:*:{kind}:*")):
                    client.persist(key)  # else it is gone when the file is loaded
                client.save()
            dump = Path(folder) / "dump.rdb"
            (FOLDER / f"store-{NEW}.rdb.gz").write_bytes(gzip.compress(dump.read_bytes(), mtime=0))
            made = fairq_here("backup", file, "--store", stores.of_owner(server.url))
            assert made.code == 0, made.err
        finally:
            server.stop()
    print(made.out, Counter(line["kind"] for line in lines_of(file)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
