"""The terms of fairq.v1, for both sides: names, codes, times, bounds and roles (PROTOCOL.md)."""

from __future__ import annotations

from enum import Enum

from fairq.model.rules import one_of

SUBPROTOCOL = "fairq.v1"
CLOSE_REVOKED = 4001  # close code: the token was revoked
CLOSE_SILENT = 4003  # close code: nothing was received for TIMEOUT_S
CLOSE_SUPERSEDED = 4002  # close code: a newer worker has the name
HEARTBEAT_S = 20.0  # a side sends a ping after sending nothing for this time
SILENT_S = 22.0  # a worker gets no tasks after nothing has come from it for this time
TIMEOUT_S = 50.0  # a side closes after receiving nothing for this time
MESSAGE_BYTES = 2 << 20  # of a message, unless a payload is long
MAX_SERVER_MESSAGE_BYTES = 32 << 20  # of a message from a server, that clients take
MAX_CREDIT = 500
MAX_QUEUES = 100
WAIT_MS = 20_000  # how long each of the SDK's requests waits, one after the other
ANSWER_S = 5.0  # how long the answer to a last look may take
MAX_WAIT_MS = 60_000  # the longest time-out of a request that waits
MAX_WAITING = 4_096  # tasks, batches and feeds that requests wait for, per connection
MAX_PRODUCER_WAITING, MAX_TENANT_WAITING = 16_384, 1_024  # the same, on a producer's connection: in all, of a tenant


class Role(Enum):
    """The role of a token."""

    TENANT = "tenant"
    WORKER = "worker"
    OPERATOR = "operator"
    PRODUCER = "producer"
    VIEWER = "viewer"  # reads all that an operator may read, and changes nothing

    __hash__ = object.__hash__  # Enum's is Python code; each frame is looked up by its role and state


ROLE = one_of(*(role.value for role in Role))


class State(Enum):
    """The state of a connection at the server."""

    OPEN = "open"
    ATTACHED = "attached"
    DRAINING = "draining"

    __hash__ = object.__hash__
