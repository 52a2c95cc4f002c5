"""The handler that posts tasks."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

import httpcore2
import orjson
import structlog
import trio
from attrs import define, field, frozen

from fairq.client.bodies import encode_payload
from fairq.client.task import Task
from fairq.errors import BadRequest, QuotaExceeded, SettingsError, TooLarge
from fairq.io.exception_groups import leaves
from fairq.model.checks import check_int
from fairq.model.tasks import MAX_ATTEMPTS, MAX_RESULT_BYTES
from fairq.model.texts import moment_of
from fairq.model.webhooks import copy_id, read_copy_id
from fairq.webhook.addresses import AddressRefused
from fairq.webhook.answers import Answer, Verdict, judge
from fairq.webhook.network import place_of
from fairq.webhook.signature import Signer
from fairq.webhook.urls import HostRefused, Url, UrlTemplate
from fairq.wire.terms import MAX_CREDIT

log = structlog.get_logger("fairq.webhook")

KEEP_ALIVE_S = 4.0  # few servers close idle connections before 5 s; a request must not meet the close
MAX_IDLE = 100  # idle connections kept for later requests
MAX_TIMEOUT_S = 3_600.0
MAX_LOOKUPS = 1_000  # threads: an abandoned lookup keeps its own until the system's resolver gives up
MAX_CAUSE_CHARS = 500
ROOM_S = 5.0  # how long a task waits if its copies have no room and the server names no time
_PLAIN_CHARS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # of a header: they stand for themselves
_END_SPACE = re.compile(r"\A | \Z")  # HTTP takes spaces at the ends of a header for none of its text
USER_AGENT = f"fairq/{version('fairq')} webhook-worker"


@frozen
class Target:
    """Where tasks are posted to, and what signs them."""

    url: UrlTemplate
    signer: Signer | None = None


Find = Callable[[Task], Target | Verdict]  # where a task is posted to, or what becomes of it if nowhere
Others = Callable[[Task], Sequence[str]]  # the other webhooks, by id: each gets a copy of the task


@frozen
class Delivery:
    """How tasks are delivered; `timeout` (s) bounds a request from the host's lookup to the end of the answer."""

    timeout: float
    per_host: int
    max_response: int

    def check(self) -> Delivery:
        """Check the limits. Raises: SettingsError, BadRequest, naming the setting."""
        if not 0 < self.timeout <= MAX_TIMEOUT_S:
            message = f"timeout must be over 0 and at most {MAX_TIMEOUT_S:g} seconds"
            raise SettingsError(message, field="timeout")
        check_int(self.per_host, "per_host", 1, MAX_CREDIT)
        check_int(self.max_response, "max_response", 0, MAX_RESULT_BYTES)
        return self


def name_of(task: Task) -> str:
    """Return a task's name for receivers: equal for all attempts and copies; a full stop is `%2E`, as in URLs."""
    return f"{task.queue}/{task.tenant.replace('.', '%2E')}/{read_copy_id(task.id)[0]}"


def _quoted(name: str) -> str:
    return _END_SPACE.sub("%20", quote(name, safe=_PLAIN_CHARS))


def headers_of(task: Task, url: Url, body: bytes, signer: Signer | None, now: float) -> dict[str, str]:
    """Return all headers of a request, as listed in RECEIVING.md."""
    name, timestamp = name_of(task), str(int(now))
    original, _, enqueued_at_ms = read_copy_id(task.id)
    enqueued_at = moment_of(enqueued_at_ms or task.enqueued_at_ms)
    headers = {
        "Host": url.authority,
        "User-Agent": USER_AGENT,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Accept-Encoding": "identity",
        "Idempotency-Key": name,
        "Fairq-Task": original,
        "Fairq-Queue": task.queue,
        "Fairq-Tenant": task.tenant,
        "Fairq-Attempt": str(task.attempt),
        "Fairq-Max-Attempts": str(task.max_attempts),
        "Fairq-Enqueued-At": enqueued_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        **({"Fairq-Name": _quoted(task.name)} if task.name else {}),
        "webhook-id": name,
        "webhook-timestamp": timestamp,
    }
    if signer:
        headers["webhook-signature"] = signer.signature(task.tenant, name, timestamp, body)
    return headers


@define(eq=False)
class Deliverer:
    """Posts tasks one by one; `deliver` is the handler that a Worker takes."""

    find: Find
    delivery: Delivery
    pool: httpcore2.AsyncConnectionPool
    others: Others = lambda _: ()
    clock: Callable[[], float] = time.time
    hosts: dict[str, trio.CapacityLimiter] = field(factory=dict, init=False)  # that have requests

    async def deliver(self, task: Task) -> Any:
        """Post one task; returns the result in the answer. Raises: Retry, Postpone, Reject."""
        target, others = self.find(task), self.others(task)
        try:
            for webhook in others:
                await self._copy(task, webhook)
        except QuotaExceeded as error:
            delay = error.retry_in_ms / 1000 if error.retry_in_ms else ROOM_S
            target = Verdict("postponed", reason=f"no room for its copies: {error.message}", delay=delay)
        if isinstance(target, Verdict):
            return self._settle(task, "", target, 0)
        try:
            url = target.url.for_tenant(task.tenant)
        except HostRefused as error:
            return self._settle(task, "", Verdict("rejected", reason=error.message), 0)
        async with self._slot(url.host):
            began = trio.current_time()
            verdict = await self._post(task, url, target.signer)
            return self._settle(task, url.host, verdict, trio.current_time() - began)

    @asynccontextmanager
    async def _slot(self, host: str) -> AsyncIterator[None]:
        """Wait for one of a host's slots, first come, first served, and hold it while the context lasts."""
        limiter = self.hosts.setdefault(host, trio.CapacityLimiter(self.delivery.per_host))
        try:
            async with limiter:
                yield
        finally:
            if not limiter.borrowed_tokens:
                self.hosts.pop(host, None)

    async def _copy(self, task: Task, webhook: str) -> None:
        """Enqueue a task's copy for another webhook; each attempt does. Raises: FairqError if it is refused."""
        await task.enqueue(
            task.queue, task.payload, id=copy_id(task.id, webhook, task.enqueued_at_ms), name=task.name,
            max_attempts=min(task.max_attempts, MAX_ATTEMPTS), expires_at=task.expires_at,
        )  # fmt: skip

    async def _post(self, task: Task, url: Url, signer: Signer | None) -> Verdict:
        try:
            with trio.fail_after(self.delivery.timeout):
                return judge(await self._ask(task, url, signer), url.host, self.clock())
        except trio.TooSlowError:
            reason = f"{url.host} did not answer within {self.delivery.timeout:g} s"
        except AddressRefused as error:
            reason = error.message
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            reason = f"{url.host} cannot be reached: {_cause(error)}"
        return Verdict("retry", reason=reason)

    async def _ask(self, task: Task, url: Url, signer: Signer | None) -> Answer:
        body = orjson.dumps(task.payload)
        target = httpcore2.URL(scheme=url.scheme, host=place_of(url), port=url.port, target=url.target)
        headers = list(headers_of(task, url, body, signer, self.clock()).items())
        tls = {"sni_hostname": url.host}  # TLS is for the host alone
        async with self.pool.stream("POST", target, headers=headers, content=body, extensions=tls) as response:
            answer = Answer(response.status, response.headers)
            if not answer.is_delivered:
                return answer
            return Answer(response.status, response.headers, await self._read(response))

    async def _read(self, response: httpcore2.Response) -> bytes | None:
        """Read an answer's body; None if it is longer than `max_response`."""
        found = bytearray()
        async with aclosing(response.aiter_stream()) as chunks:
            async for chunk in chunks:
                found += chunk
                if len(found) > self.delivery.max_response:
                    return None
        return bytes(found)

    def _settle(self, task: Task, host: str, verdict: Verdict, seconds: float) -> Any:
        """Log the outcome, and return or raise as the SDK's handlers do. Raises: Retry, Postpone, Reject."""
        line = log.bind(task=task.id, queue=task.queue, tenant=task.tenant, attempt=task.attempt, host=host)
        line = line.bind(status=verdict.status, ms=round(seconds * 1000, 1))
        if verdict.outcome == "delivered":
            line.info(verdict.outcome)
        elif verdict.outcome == "postponed":
            line.debug(verdict.outcome, reason=verdict.reason)  # of a webhook that is paused: all its tasks
        else:
            line.warning(verdict.outcome, reason=verdict.reason)
        result = verdict.conclude()
        try:
            if task.wants_result:
                encode_payload(result, "result", MAX_RESULT_BYTES)
        except (BadRequest, TooLarge) as error:  # nested too deeply, or too long as JSON: the task is delivered anyway
            line.warning("result not kept", reason=error.message)
            return None
        return result


def _cause(error: BaseException) -> str:
    """Return the text of an HTTP client error's root cause, cut: the error's own text is often empty.

    Of several attempts to connect it is the first one's. It may quote whatever the receiver sent.
    """
    found = leaves(next((each for each in error.args if isinstance(each, BaseException)), error))[0]
    while found.__cause__:
        found = leaves(found.__cause__)[0]
    return str(found)[:MAX_CAUSE_CHARS] or type(found).__name__


@asynccontextmanager
async def open_deliverer(
    find: Find,
    delivery: Delivery,
    network: httpcore2.AsyncNetworkBackend,
    tls: ssl.SSLContext | None = None,
    others: Others = lambda _: (),
) -> AsyncIterator[Deliverer]:
    """Open a deliverer; its connections are closed at the end of the context."""
    trio.to_thread.current_default_thread_limiter().total_tokens = MAX_LOOKUPS
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=tls or ssl.create_default_context(),
        max_connections=None,
        max_keepalive_connections=MAX_IDLE,
        keepalive_expiry=KEEP_ALIVE_S,
        network_backend=network,
    )
    async with pool:
        yield Deliverer(find, delivery, pool, others)
