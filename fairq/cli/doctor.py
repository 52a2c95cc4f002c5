"""`fairq doctor`: looks a store over, and a server if one answers."""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import Annotated
from urllib.parse import urlsplit

import trio
from attrs import asdict
from cyclopts import Parameter

from fairq.cli.options import Json, Server, connected
from fairq.cli.output import configure_logging, print_json, printable
from fairq.cli.stores import StoreChoice, chosen
from fairq.errors import FairqError, SettingsError
from fairq.model.operator_views import QueueRow
from fairq.model.texts import say_away
from fairq.model.why_text import say_silence
from fairq.store.durability import Finding

_ADMIN_URL = "http://127.0.0.1:7702"
_ANSWER_S = 3.0
_MOST_DIVIDED = 20  # queues with partitions that are looked at
_SLOTS_EACH, _MOST_OF_PART = 10, 1.5  # slots of a server for each partition; of a primary's part, how much is too much
_SIGNS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


def doctor(
    *,
    store: StoreChoice | None = None,
    server: Server | None = None,
    admin_url: Annotated[str, Parameter(help="Operators' listener of a server, which is checked if it answers.")] = (
        _ADMIN_URL
    ),
    prune: Annotated[bool, Parameter(negative=(), help="Delete function libraries of other versions.")] = False,
    as_json: Json = False,
) -> int:
    """Check the store, and a server if one answers; each finding says what to do about it.

    Only --prune changes something. It is safe at any time: a server that still runs another version loads its library
    again. The exit code is 1 if there is a problem, else 0, even with warnings.

    Example: `fairq doctor --store redis://127.0.0.1:6379/0`
    """
    from fairq.store.examination import worst_of

    configure_logging("critical")
    findings = trio.run(_look, store or StoreChoice(), server or Server(), admin_url, prune)
    worst = worst_of(findings)
    if as_json:
        print_json({"worst": worst, "findings": [asdict(each) for each in findings]})
    else:
        _print(findings)
        count = sum(each.level == "problem" for each in findings)
        warnings = sum(each.level == "warning" for each in findings)
        print(f"\nproblems: {count}, warnings: {warnings}")
    return 1 if worst == "problem" else 0


def _print(findings: list[Finding]) -> None:
    for each in findings:
        where = f" ({each.node})" if each.node else ""
        print(printable(f"{_SIGNS[each.level]}  {each.subject}{where}: {each.message}"))
        if each.remedy:
            print(printable(f"         → {each.remedy}"))


async def _look(choice: StoreChoice, server: Server, admin_url: str, prune: bool) -> list[Finding]:
    from fairq.store import embedded, examination

    of_server = await trio.to_thread.run_sync(_ask_admin, admin_url, server.token) + await _ask_server(server)
    findings = []
    if of_server and not choice.store and not prune and not embedded.has_store(choice.data_dir):
        message = f"not examined: there is none in {choice.data_dir.absolute()}, and no other is named"
        findings.append(Finding("warning", "store", message, "name the server's store: --store or --data-dir"))
    else:
        findings += await _look_at_store(choice, prune)
    return [*findings, *examination.examine_machine(), *of_server]


async def _look_at_store(choice: StoreChoice, prune: bool) -> list[Finding]:
    from fairq.store import examination

    findings = []
    try:
        async with chosen(choice) as url:
            if prune:
                names = await examination.prune(url)
                findings.append(Finding("ok", "pruned", ", ".join(names) or "there was nothing to delete"))
            findings += [each async for each in examination.examine(url)]
    except SettingsError as error:
        findings.append(Finding("problem", "store", error.message, "see fairq serve --help"))
    except (FairqError, OSError, trio.TooSlowError) as error:
        findings.append(Finding("problem", "store", str(error), "check the store's URL, its user and its log"))
    return findings


def _ask_admin(url: str, token: str | None) -> list[Finding]:
    """Ask a server whether it is ready; nothing if none answers."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise SettingsError("the admin URL must be http://host:port or https://host", field="admin_url")
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:  # no redirects, no proxies: the token is for the server alone
        with closing(connect(parts.netloc, timeout=_ANSWER_S)) as connection:
            connection.request("GET", f"{parts.path.rstrip('/')}/readyz", headers=headers)
            answer = connection.getresponse()
            causes = answer.read(4_096).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return []  # none there: doctor works with the store alone
    if answer.status == 200:
        return [Finding("ok", "server", f"{url} is ready")]
    if answer.status == 503:
        return [Finding("problem", "server", f"{url} is not ready: {causes}", "see its log, and the findings above")]
    if answer.status in (401, 403):
        return [Finding("warning", "server", f"{url} does not accept the token", "give an operator's: --token")]
    return [Finding("warning", "server", f"{url} answers {answer.status}", "is it the operators' listener?")]


def look_at_partitions(row: QueueRow) -> Iterator[Finding]:
    """Warn of a queue with too few slots for its partitions, or with too many of them on one primary."""
    partitions = row.settings.partitions
    if row.away:
        remedy = "its tenants wait until it is back: see the store's log"
        yield Finding("problem", "partitions", say_away(row.queue, row.away), remedy)
        return
    if 0 < row.slots < _SLOTS_EACH * partitions:
        message = f"queue {row.queue} has {row.slots} slots for {partitions} partitions: its claims bring few tasks"
        remedy = f"give each server's workers {_SLOTS_EACH * partitions} slots, or the queue fewer partitions"
        yield Finding("warning", "partitions", message, remedy)
    primaries = Counter(place.primary for place in row.places)
    for primary, count in primaries.items():
        if count > _MOST_OF_PART * partitions / len(primaries):
            message = f"primary {primary} has {count} of {partitions} partitions of queue {row.queue}"
            yield Finding("warning", "partitions", message, "move slots: valkey-cli --cluster rebalance")


async def _ask_server(server: Server) -> list[Finding]:
    """Ask a server, with an operator's token, for queues that wait for workers."""
    if not server.token:
        return []
    try:
        async with connected(server) as client:
            queues = await client.queues()
            lost = [row for row in queues if row.away and not row.is_unavailable]
            divided = [row.queue for row in queues if row.settings.partitions > 1 and not row.away]
            named = lost + [row for queue in divided[:_MOST_DIVIDED] for row in await client.queues(queue)]
    except FairqError as error:
        return [Finding("warning", "server", error.message, "check --url and --token, and that a server runs")]
    served = [row for row in queues if not row.is_paused and not row.is_closed]
    waiting = [row.queue for row in served if row.ready and row.takers == "none"]
    silent = {say_silence(each): None for row in queues for each in row.silent}
    found = [Finding("warning", "workers", each, "see its log: is its event loop blocked?") for each in silent]
    if unread := [row.queue for row in queues if row.is_unavailable]:
        message = f"a part of the store is away, and with it these queues: {', '.join(unread[:10])}"
        found.append(Finding("problem", "server", message, "see the server's log for which node"))
    found += chain(*map(look_at_partitions, named))
    if waiting:
        message = f"tasks wait and no worker is attached: {', '.join(waiting[:10])}"
        return [*found, Finding("warning", "workers", message, "start workers: fairq worker module:app")]
    return found or [Finding("ok", "workers", f"{len(queues)} queues, none waits without a worker")]
