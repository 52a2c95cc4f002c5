"""`fairq webhook-worker`: posts tasks to a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairq.cli.ending import ending
from fairq.cli.log_writer import open_log
from fairq.cli.options import Token, need_token
from fairq.cli.output import configure_logging
from fairq.cli.signals import run_in, work_until_stopped
from fairq.client.defaults import DEFAULT_URL
from fairq.errors import SettingsError
from fairq.model.checks import check_int
from fairq.wire.terms import MAX_CREDIT


def webhook_worker(
    *queues: str,
    url: str | None = None,
    allow_host: list[str] | None = None,
    allow_private: list[str] | None = None,
    plaintext: bool = False,
    secret_file: Path | None = None,
    unsigned: bool = False,
    timeout: float = 30.0,
    concurrency: Annotated[int, Parameter(name=["--concurrency", "-c"])] = 10,
    per_host: int | None = None,
    max_response: int = 65_536,
    name: str | None = None,
    grace: float = 30.0,
    burst: Annotated[bool, Parameter(negative=())] = False,
    server: Annotated[str, Parameter(env_var="FAIRQ_URL")] = DEFAULT_URL,
    token: Token = None,
    log_level: str = "info",
    log_json: bool = False,
) -> None:
    """Post the tasks of queues to their webhooks (`fairq webhooks`), or to one URL, until SIGTERM or ctrl-C.

    A 2xx answer is a success, and its body the result; 410 makes a dead letter; any other answer is retried. Requests
    are signed with the secrets in FAIRQ_WEBHOOK_SECRET or in --secret-file, the newest first, or with the webhook's.
    Webhooks are read twice a second: changes need no restart.

    Example: `fairq webhook-worker emails --url https://example.com/tasks/{tenant}`

    Parameters
    ----------
    queues
        Queues to serve.
    url
        URL to post all tasks to; {tenant} in it stands for the tenant's name (default: the queues' webhooks).
    allow_host
        Host that may be posted to, or *.name for all hosts below it; repeatable (default: those of the URLs).
    allow_private
        Non-public network or address that may be posted to, such as 10.1.0.0/16; repeatable.
    plaintext
        Allow http:// to other machines.
    secret_file
        File of secrets, each `whsec_` and base64 (`fairq webhook-secret` makes them).
    unsigned
        Send requests without a signature.
    timeout
        Seconds for one request, from the host's lookup to the end of the answer.
    concurrency
        Tasks at once; with webhooks, in each queue.
    per_host
        Tasks at once for one host (default: --concurrency).
    max_response
        Bytes of an answer kept as the result; a longer answer gives no result.
    name
        Name of this worker (default: machine and process); for several queues' webhooks, a part of it.
    grace
        Seconds that running tasks have to finish at a stop; a second signal ends the worker at once.
    burst
        Exit when the worker holds no task and its queues have none ready. Delayed tasks and retries are not waited for.
        Without a server for 30 s, exit with code 1.
    server
        URL of the server; several are separated by commas.
    log_level
        debug, info, warning or error.
    log_json
        Log JSON lines.
    """
    from fairq.webhook.addresses import AddressRules
    from fairq.webhook.deliverer import Delivery
    from fairq.webhook.registrations import Policy
    from fairq.webhook.secrets import VARIABLE, load_signer
    from fairq.webhook.service import Asked, open_service, open_worker

    with open_log() as writer:
        configure_logging(log_level, as_json=log_json, to=writer)
        if not queues:
            raise SettingsError("missing queues: name at least one", field="queues")
        signer = load_signer(secret_file, os.environ, is_per_tenant=False)
        if signer is not None and unsigned:
            raise SettingsError(f"give --unsigned or a secret ({VARIABLE}, --secret-file), not both", field="secret")
        check_int(concurrency, "concurrency", 1, MAX_CREDIT)
        policy = Policy(AddressRules.parse(allow_private or ()), allow_host or (), plaintext, signer, unsigned)
        delivery = Delivery(timeout, concurrency if per_host is None else per_host, max_response).check()
        asked = Asked(queues, policy, delivery, server, need_token(token, "worker"), concurrency, name)

        async def main() -> None:
            async with open_service(asked) if url is None else open_worker(asked, url) as app:
                with ending(app, writer.close) as end:
                    await work_until_stopped(app, end, grace, burst)

        run_in("trio", main)
