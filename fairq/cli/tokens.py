"""`fairq tokens`: create, list and revoke tokens.

With an operator's token the commands call the server. Without one they use the store itself (--store or --data-dir), to
make the first token. The embedded store is started for the duration of the command if no server runs on it; there must
be one already, as a server makes it at its first start: a token in a store that no server uses is of no use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from getpass import getuser
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import orjson
import trio
from attrs import asdict, define
from cyclopts import App

from fairq.cli.options import Json, Server, Span, connected
from fairq.cli.output import columns_of, configure_logging, print_json, print_rows
from fairq.cli.stores import StoreChoice, chosen
from fairq.errors import FairqError, NotFound, SettingsError
from fairq.model.audit import Draft, cut
from fairq.model.operator_views import TokenRow
from fairq.model.options import to_ms
from fairq.model.rules import SOME_SPAN
from fairq.model.token_rules import TOKEN_ID
from fairq.tokens import TokenRecord, hash_token, make_token, token_id
from fairq.wire.terms import Role

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient
    from fairq.server.engine.net.auth import Auth
    from fairq.store.store import Store

    Registry: TypeAlias = "OperatorClient | _StoreRegistry"
T = TypeVar("T")

tokens = App(name="tokens", help="Create, list and revoke tokens.")


@define
class _StoreRegistry:
    """Does with the store itself what an operator's client does with a server."""

    store: Store
    auth: Auth

    async def create_token(self, record: TokenRecord, *, expires_in_ms: int | None) -> None:
        fields = {"role": record.role, "label": record.label, "tenant": record.tenant, "queues": record.queues}
        async with self._noted("create_token", record.id, fields):
            await self.auth.create(record, expires_in_ms)

    async def list_tokens(self) -> list[TokenRow]:
        return await self.auth.tokens()

    async def revoke_token(self, id: str) -> None:
        async with self._noted("revoke_token", id, None):
            if not await self.auth.revoke(id):
                raise NotFound(f"there is no token {id}", field="id")

    @asynccontextmanager
    async def _noted(self, verb: str, id: str, new: Any) -> AsyncIterator[None]:
        """Put what is done meanwhile into the audit, under the name of this machine's user."""
        who = {"label": cut(_user()), "role": Role.OPERATOR.value, "address": cut(gethostname()), "via": "store"}
        draft = Draft("", verb, "", "", orjson.dumps({**who, "target": cut(id), "new": new}))
        begun = await self.store.audit.begin(draft)
        outcome = "ok"
        try:
            yield
        except FairqError as error:
            outcome = error.code
            raise
        finally:
            await self.store.audit.end(begun, draft, orjson.dumps({"outcome": outcome}))


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # in a container, users may have no name
        return "a user without a name"


@asynccontextmanager
async def _registry(server: Server, choice: StoreChoice) -> AsyncIterator[Registry]:
    if server.token:
        async with connected(server) as client:
            yield client
        return
    from fairq.server.engine.net.auth import Auth
    from fairq.store.opening import open_store

    async with chosen(choice) as url, open_store(url, connect_timeout=5) as store:
        yield _StoreRegistry(store, Auth(store))


def _run(work: Callable[[Registry], Awaitable[T]], server: Server | None, choice: StoreChoice | None) -> T:
    configure_logging("error")

    async def main() -> T:
        async with _registry(server or Server(), choice or StoreChoice()) as registry:
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
    store: StoreChoice | None = None,
) -> None:
    """Create a token and print it once; only its hash is stored.

    Example: `fairq tokens create tenant --tenant acme --queue emails`

    Parameters
    ----------
    role
        What the token allows: enqueue for one tenant, enqueue for many tenants, work, operate, or read all that an
        operator may read and change nothing (viewer).
    tenant
        Tenant of the token, required for role tenant; for role producer a pattern such as 'acme*' (default: all). For
        role worker a pattern of those for which its code may declare schedules (default: none).
    queue
        Queue the token is limited to; repeatable (default: all queues).
    label
        What it is for, or who has it: the list of tokens and the audit show it.
    expires_after
        When it expires, such as 90d or 12h, at most 400 days (default: never).
    """
    expires_in_ms = None if expires_after is None else to_ms(expires_after, "expires_after", SOME_SPAN)
    id, text = make_token(Role(role))
    record = TokenRecord(id, role, hash_token(text), tenant, queue or None, label=label)
    record.check()
    _run(lambda registry: registry.create_token(record, expires_in_ms=expires_in_ms), server, store)
    if json:
        row = {"id": id, "role": role, "tenant": tenant, "queues": queue or None, "label": label, "token": text}
        print_json(row)
    else:
        print(text)


@tokens.command(name="list")
def list_(*, json: Json = False, server: Server | None = None, store: StoreChoice | None = None) -> None:
    """List tokens, without their secrets.

    Example: `fairq tokens list`
    """
    records = _run(lambda registry: registry.list_tokens(), server, store)
    rows = [asdict(record) for record in records]
    if not json:
        rows = [row | {"queues": row["queues"] or "all"} for row in rows]
    columns = columns_of(
        "id", "role", "label", "tenant", "queues", "created_at_ms", "expires_at_ms", "used_at_ms",
        used_at_ms="last used",
    )  # fmt: skip
    empty = "there are no tokens yet; `fairq tokens create operator` makes one"
    print_rows("tokens", columns, rows, empty=empty, rare=("label", "tenant", "expires_at_ms"), json=json)


@tokens.command
def revoke(id: str, *, server: Server | None = None, store: StoreChoice | None = None) -> None:
    """Revoke a token by its id or its text, and close its connections.

    Example: `fairq tokens revoke cdf3a6797412`
    """
    id = TOKEN_ID.check(token_id(id) or id, "id")
    try:
        _run(lambda registry: registry.revoke_token(id), server, store)
    except NotFound as error:
        raise SettingsError(error.message, field="id") from None
    print(f"{id}: revoked")
