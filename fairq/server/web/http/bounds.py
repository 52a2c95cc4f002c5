"""The bounds of the HTTP API, each per server process (fairq/wire/HTTP.md lists them)."""

from __future__ import annotations

MAX_REQUESTS = 2_500  # under way at once, those that wait too; connections without a request have places of their own
MAX_TENANT_REQUESTS = 250  # the same, of one tenant
MAX_TOKEN_REQUESTS = 1_000  # the same, of a producer's or a worker's token
MAX_WAITING = 1_500  # long polls and streams at once
MAX_TENANT_WAITING = 100  # the same, of one tenant
MAX_TOKEN_WAITING = 800  # the same, of a worker's token
MAX_BODIES_BYTES = 64 << 20  # of all request bodies held at once
MAX_TENANT_BODIES_BYTES = 16 << 20  # the same, of one tenant
MAX_TOKEN_BODIES_BYTES = 32 << 20  # the same, of a producer's or a worker's token
HEAD_BYTES = 16_384  # of a request's line and headers
HEAD_S = 10.0  # for a request's line and headers, from the start of a connection or the end of the previous answer
FREE_PARTS = 16  # of a body; of the others one of a tenant or token, or of all strangers, is read in each turn
CHUNK_S, BODY_S = 5.0, 60.0  # for any part of a body, and for all of it
LINGER_S = 2.0  # for a client to read why its body is refused while it still sends it
MAX_KEEP_ALIVE = 10_000  # requests on one connection
CALLER_S = 60.0  # how long a token, or a worker, is remembered after its last request
MAX_WORKERS = 2_500  # remembered, each a name, a token and a queue
MAX_TOKEN_WORKERS = 1_000  # the same, of one token
MAX_CLAIM = 100  # tasks in one claim
CLAIM_BYTES = 8 << 20  # of their payloads; tasks beyond it are given back
STREAM_S = 3_600.0  # of a stream of events; then its client opens another
KEEP_ALIVE_S = 15.0  # between comments on a stream without events
RETRY_MS = 1_000  # after which a request over one of these limits may be tried again
