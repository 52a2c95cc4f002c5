"""fairq: a multi-tenant fair-share task queue. Whoever floods it waits behind his own flood."""

from fairq.client.client import Client, EnqueuedTask, open_client
from fairq.client.worker import Reject, Retry, Task, Worker
from fairq.errors import FairqError

__all__ = ["Client", "EnqueuedTask", "FairqError", "Reject", "Retry", "Task", "Worker", "open_client"]
