"""The version of the data, and the migrations that lead from one to the next.

Most changes need neither. A new field of a record, a setting, a limit or an option has a default, and libraries keep
unknown fields (lua/base/formats.lua). So old and new servers share a store, and either may go. A change without a
default needs a migration, and makes a version of the data:

    "20"      the version of the data
    "20>21"   the migration to 21 is under way

A server works on data of each version from OLDEST to its own, and while the migrations between them are under way. Old
and new servers share a store until the last old one has gone. Then a new one migrates by itself, during normal traffic.
A migration that is `on_demand` waits until somebody uses what it is for, so that other stores can go back to the build
before; an empty store gets the version before the first of those. Several migrations begin when no server runs that is
older than the last of them, so until then the store can go back.

1. It writes "20>21": from now on no older server starts.
2. Each server shows its version by a channel to which it listens. If one shows an older version, "20" is written again.
3. It deletes the libraries of other builds. So an older server that was suspended cannot change anything: its next call
   fails, it looks at the version of the data before it loads its library again, and ends.
4. It takes step after step of each queue. The progress is in `fq:migration`, so any server goes on after a kill.
   A step may be taken twice: by two servers, or after a kill.
5. It writes "21".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import trio
from attrs import field, frozen

from fairq.errors import SettingsError
from fairq.store import keys, library

if TYPE_CHECKING:
    from fairq.store.calls import Calls

Call = Callable[..., Awaitable[Any]]

DONE = "done"  # in place of a cursor
LOCK_MS = 15_000  # after this another server continues the migration of one that was killed
_REST = 3.0  # the pause after a step, in multiples of its duration


@frozen
class Migration:
    """A migration of data from one version to the next.

    `step(store, place, cursor)` does a slice of a queue or partition, of some ms, and returns the next cursor: "" is
    the first one, and DONE the last. A repeated step must do no harm.
    """

    number: int  # the version that it makes
    about: str
    step: Callable[[Calls, str, str], Awaitable[str]] = field(repr=False)
    is_on_demand: bool = False


async def _change_nothing(_store: Calls, _place: str, _cursor: str) -> str:
    return DONE


PARTITIONS = Migration(21, "a queue may have partitions", _change_nothing, is_on_demand=True)
MIGRATIONS: Sequence[Migration] = (PARTITIONS,)
OLDEST = library.DATA_VERSION - len(MIGRATIONS)  # the oldest version that this build works on
NEW = max((each.number for each in MIGRATIONS if not each.is_on_demand), default=OLDEST)  # of an empty store
READABLE = f"{OLDEST} to {library.DATA_VERSION}"


@frozen
class DataState:
    """The version of the data, and the one to which it is being migrated (`target`; the same: to none)."""

    version: int
    target: int

    @property
    def is_known(self) -> bool:
        """True if this build works on such data."""
        return self.version >= OLDEST and self.target <= library.DATA_VERSION

    def pending(self, to: int) -> list[Migration]:
        """Return the migrations that lead to a version, or to the one that was begun."""
        return [each for each in MIGRATIONS if self.version < each.number <= max(to, self.target)]


def _read(text: str) -> DataState | None:
    version, _, target = text.partition(">")
    if not (version.isdecimal() and (target or version).isdecimal()):
        return None
    return DataState(int(version), int(target or version))


async def data_state(call: Call) -> DataState | None:
    """Read the version of a store's data; None if it is empty. Raises: SettingsError if it cannot be used."""
    found = await call("GET", keys.DATA_VERSION)
    if found is None:
        return None
    text = found.decode()
    if text == keys.RESTORING:
        raise SettingsError(
            "the store cannot be used: a restore has not ended; repeat fairq restore with --replace", field="store"
        )
    if (state := _read(text)) is None or not state.is_known:
        raise SettingsError(
            f"the store holds data of version {text[:80]}, but this fairq reads {READABLE}: use the fairq that wrote"
            " it, or restore its backup into an empty store",
            field="store",
        )
    return state


async def check_data_version(call: Call) -> None:
    """Check that this build works on the store's data; an empty store gets a version. Raises: SettingsError."""
    if await data_state(call) is None:
        await call("SET", keys.DATA_VERSION, NEW, "NX")
        await data_state(call)


async def versions_shown(store: Calls) -> set[int]:
    """Return the versions of the servers that listen."""
    shown: set[int] = set()
    for node in store.connection.nodes():
        channels = await node.call("PUBSUB", "CHANNELS", f"{keys.VERSIONS}*")
        shown |= {int(channel.removeprefix(keys.VERSIONS.encode())) for channel in channels}
    return shown


async def libraries_of(call: Call) -> list[str]:
    """Name fairq's function libraries in a node."""
    rows = await call("FUNCTION", "LIST", "LIBRARYNAME", "fairq_*")
    return sorted(dict(zip(row[::2], row[1::2], strict=True))[b"library_name"].decode() for row in rows)


async def migrate(
    store: Calls, show: Callable[[Migration, str], None] = lambda _migration, _queue: None, to: int = NEW
) -> str:
    """Migrate the store's data to a version; `show` is called with each queue that is done.

    Returns `done`; `waits` while older servers run; or `elsewhere` while another server does it.
    """
    call = store.connection.call
    state = await data_state(call)
    pending = state.pending(to) if state else []
    for migration in pending:
        is_begun = state is not None and migration.number <= state.target
        if not await call("SET", keys.MIGRATOR, "", "NX", "PX", LOCK_MS):
            return "elsewhere"
        try:
            if not await _begin(store, migration, migration.number if is_begun else pending[-1].number):
                return "waits"
            await _take_steps(store, migration, show)
            await call("SET", keys.DATA_VERSION, migration.number)
            await call("UNLINK", keys.MIGRATION)
        finally:
            with trio.move_on_after(1.0, shield=True):
                await call("UNLINK", keys.MIGRATOR)
    return "done"


async def _begin(store: Calls, migration: Migration, end: int) -> bool:
    """Keep older servers out; returns False if one runs. `end`: the version that all servers must work on."""
    call, version = store.connection.call, migration.number - 1
    if min(await versions_shown(store), default=end) < end:
        return False
    await call("SET", keys.DATA_VERSION, f"{version}>{migration.number}")
    if min(await versions_shown(store), default=end) < end:  # it has just begun
        if not await call("EXISTS", keys.MIGRATION):
            await call("SET", keys.DATA_VERSION, version)
        return False
    for node in store.connection.nodes():
        for name in await libraries_of(node.call):
            if name != library.name():
                await node.call("FUNCTION", "DELETE", name)
    return True


async def _take_steps(store: Calls, migration: Migration, show: Callable[[Migration, str], None]) -> None:
    call = store.connection.call
    while left := [place for place in await store.registry.all_places() if await _cursor_of(call, place) != DONE]:
        for place in left:
            cursor = await _cursor_of(call, place)
            while cursor != DONE:
                began = trio.current_time()
                cursor = await migration.step(store, place, cursor)
                await call("HSET", keys.MIGRATION, place, cursor)
                await call("PEXPIRE", keys.MIGRATOR, LOCK_MS)
                await trio.sleep(_REST * (trio.current_time() - began))
            show(migration, place)


async def _cursor_of(call: Call, place: str) -> str:
    return (await call("HGET", keys.MIGRATION, place) or b"").decode()
