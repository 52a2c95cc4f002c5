"""`fairq tokens`: create, list and revoke tokens.

With an operator's token the commands call the server. Without one they use the store itself (--store or --data-dir), to
make the first token. The embedded store is started for the duration of the command if no server runs on it; there must
be one already, as a server makes it at its first start: a token in a store that no server uses is of no use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from getpass import getuser
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import orjson
import trio
from attrs import asdict, define, frozen
from cyclopts import App, Parameter

from fairq.cli.options import Json, Server, Span, connected, seconds_of
from fairq.cli.output import configure_logging, print_json, print_table
from fairq.errors import FairqError, NotFound, SettingsError
from fairq.model.audit import Draft, cut
from fairq.model.operating import TokenRow
from fairq.model.rules import SPAN
from fairq.model.texts import say_moment
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import Role

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient
    from fairq.server.net.auth import Auth
    from fairq.store.store import Store

tokens = App(name="tokens", help="Create, list and revoke tokens.")


@Parameter(name="*")
@frozen
class Place:
    """The store that keeps the tokens, for commands without an operator's token."""

    store: Annotated[str | None, Parameter(env_var="FAIRQ_STORE", help="Store URL.")] = None
    data_dir: Annotated[Path, Parameter(env_var="FAIRQ_DATA_DIR", help="Directory of the embedded store.")] = Path(
        "fairq-data"
    )


class Registry(Protocol):
    """Something that creates, lists and revokes tokens."""

    async def create(self, record: TokenRecord, expires_in_ms: int) -> None: ...
    async def tokens(self) -> list[TokenRow]: ...
    async def revoke(self, id: str) -> bool: ...


@define
class _RemoteRegistry:
    client: OperatorClient

    async def create(self, record: TokenRecord, expires_in_ms: int) -> None:
        await self.client.create_token(record, expires_in_ms=expires_in_ms)

    async def tokens(self) -> list[TokenRow]:
        return await self.client.list_tokens()

    async def revoke(self, id: str) -> bool:
        try:
            await self.client.revoke_token(id)
        except NotFound:
            return False
        return True


@define
class _StoreRegistry:
    store: Store
    auth: Auth

    async def create(self, record: TokenRecord, expires_in_ms: int) -> None:
        told = {"role": record.role, "label": record.label, "tenant": record.tenant, "queues": record.queues}
        async with self._noted("create_token", record.id, told):
            await self.auth.create(record, expires_in_ms)

    async def tokens(self) -> list[TokenRow]:
        return await self.auth.tokens()

    async def revoke(self, id: str) -> bool:
        async with self._noted("revoke_token", id, None):
            return await self.auth.revoke(id)

    @asynccontextmanager
    async def _noted(self, verb: str, id: str, new: Any) -> AsyncIterator[None]:
        """Put what is done meanwhile into the audit, as that of the user of this machine."""
        who = {"label": cut(_user()), "role": Role.OPERATOR.value, "address": cut(gethostname()), "via": "store"}
        draft = Draft("", verb, "", "", orjson.dumps({**who, "target": cut(id), "new": new}))
        begun = await self.store.audit.begin(draft)
        try:
            yield
        except FairqError as error:
            await self.store.audit.end(begun, draft, orjson.dumps({"outcome": error.code}))
            raise
        await self.store.audit.end(begun, draft, orjson.dumps({"outcome": "ok"}))


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # in a container, users may have no name
        return "a user without a name"


@asynccontextmanager
async def _registry(server: Server, place: Place) -> AsyncIterator[Registry]:
    if server.token:
        async with connected(server) as client:
            yield _RemoteRegistry(client)
        return
    from fairq.server.net.auth import Auth
    from fairq.store.opening import open_store

    async with _store_url(place) as url, open_store(url, connect_timeout=5) as store:
        yield _StoreRegistry(store, Auth(store))


@asynccontextmanager
async def _store_url(place: Place) -> AsyncIterator[str]:
    from fairq.store.embedded import embedded_store, has_store, is_running, store_url

    if place.store:
        yield place.store
    elif await is_running(place.data_dir):
        yield store_url(place.data_dir)
    elif not has_store(place.data_dir):
        raise SettingsError(
            f"there is no store in {place.data_dir.absolute()}; `fairq serve` makes one: start it first, or name the"
            " server's store by --data-dir or --store, or ask the server with an operator's token (FAIRQ_TOKEN)",
            field="data_dir",
        )
    else:
        async with embedded_store(place.data_dir) as url:
            yield url


def _run(work: Callable[[Registry], Awaitable[Any]], server: Server | None, place: Place | None) -> Any:
    configure_logging("error")

    async def main() -> Any:
        async with _registry(server or Server(), place or Place()) as registry:
            return await work(registry)

    return trio.run(main)


@tokens.command
def create(
    role: Literal["tenant", "producer", "worker", "operator", "viewer"],
    *,
    tenant: str | None = None,
    queue: list[str] | None = None,
    label: str = "",
    expires_after: Span | None = None,
    json: Json = False,
    server: Server | None = None,
    place: Place | None = None,
) -> None:
    """Create a token and print it once; only its hash is stored.

    Example: `fairq tokens create tenant --tenant acme --queue emails`

    Parameters
    ----------
    role
        What the token allows: enqueue for one tenant, enqueue for many tenants, work, operate, or read all that an
        operator may read and change nothing (viewer).
    tenant
        Tenant of the token, required for role tenant; for role producer a pattern such as 'acme*' (default: all).
    queue
        Queue the token is limited to; repeatable (default: all queues).
    label
        What it is for, or who has it: the list of tokens and the audit show it.
    expires_after
        When it expires, such as 90d or 12h, at most 400 days (default: never).
    """
    expires_in_ms = SPAN.check(round((seconds_of(expires_after) or 0) * 1000), "expires_after")
    id, text = make_token(Role(role))
    record = TokenRecord(id, role, hash_token(text), tenant, queue or None, label=label)
    record.check()
    _run(lambda registry: registry.create(record, expires_in_ms), server, place)
    if json:
        told = {"id": id, "role": role, "tenant": tenant, "queues": queue or None, "label": label, "token": text}
        print_json(told)
    else:
        print(text)


@tokens.command(name="list")
def list_(*, json: Json = False, server: Server | None = None, place: Place | None = None) -> None:
    """List tokens, without their secrets.

    Example: `fairq tokens list`
    """
    records = _run(lambda registry: registry.tokens(), server, place)
    rows = [asdict(record) for record in records]
    if json:
        print_json(rows)
        return
    for row in rows:
        for name in ("created", "expires", "used"):
            row[name] = say_moment(row[f"{name}_at_ms"])
        row["queues"] = ", ".join(row["queues"]) if row["queues"] else "all"
    columns = {
        "id": "id", "role": "role", "label": "label", "tenant": "tenant", "queues": "queues", "created": "created",
        "expires": "expires", "used": "last used",
    }  # fmt: skip
    empty = "there are no tokens yet; `fairq tokens create operator` makes one"
    print_table("tokens", columns, rows, empty=empty, rare=("label", "tenant", "expires"))


@tokens.command
def revoke(id: str, *, server: Server | None = None, place: Place | None = None) -> None:
    """Revoke a token by its id (the third part of its text), and close its connections.

    Example: `fairq tokens revoke cdf3a6797412`
    """
    if not _run(lambda registry: registry.revoke(id), server, place):
        raise SettingsError(f"there is no token {id}", field="id")
    print(f"{id}: revoked")
