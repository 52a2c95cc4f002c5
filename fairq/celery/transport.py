"""The transport of kombu: what Celery calls. README.md says how a message becomes a task and back.

Exchanges and bindings are kombu's own, in memory: each process declares those that it uses. fairq does not have
queues that are deleted with their process (of replies, events and remote control): what is sent to them is dropped.
"""

from __future__ import annotations

import os
import re
import socket
from functools import cached_property
from math import inf
from time import monotonic
from typing import Any
from uuid import uuid4

from kombu.exceptions import OperationalError
from kombu.transport import virtual

from fairq.celery import outcomes
from fairq.celery.addresses import DEFAULT_PORT, tls_of, tokens_of, url_of
from fairq.celery.broadcasts import broadcast
from fairq.celery.clients import call, enqueue, refused
from fairq.celery.leases import Leases, Pushed
from fairq.celery.messages import Message, NotAMessage, to_message, to_task
from fairq.errors import Retryable
from fairq.log import Log
from fairq.model.checks import MAX_ERROR_CHARS, check_name
from fairq.sync.alarm import Alarm
from fairq.wire.frames import HeldLease
from fairq.wire.terms import MAX_CREDIT

log = Log("fairq.celery")

UNREADABLE = (AttributeError, LookupError, TypeError, ValueError)


class Channel(virtual.Channel):
    """A channel: sends by the client that the process shares, and consumes by a connection of its own."""

    supports_fanout = True
    do_restore = False  # `close` gives back what is not settled

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self._is_repeated = False  # the message that is being sent
        self._prefetch_count = 0
        self._leases: Leases | None = None
        self._held: dict[str, tuple[HeldLease, str]] = {}  # by delivery tag; with the id of Celery's task
        self._no_ack: set[str] = set()  # queues

    # Sending

    def _inplace_augment_message(self, message: Message, exchange: str, routing_key: str) -> None:
        """Keep the tag of a message that kombu sends again: it is a part of the task's id."""
        tag = message["properties"].get("delivery_tag")
        self._is_repeated = tag is not None
        self.body_encoding = "base64" if isinstance(message["body"], bytes) else None
        super()._inplace_augment_message(message, exchange, routing_key)
        if tag:
            message["properties"]["delivery_tag"] = tag

    def _put(self, queue: str, message: Message, **_: Any) -> None:
        lasts = self.connection.declared.get(queue)
        if lasts is None:
            raise OperationalError(f"the queue {queue!r} is not declared: results need a backend other than rpc://")
        if not lasts and message["headers"].get("task"):
            raise OperationalError(f"the queue {queue!r} ends with its process: fairq has no such queues")
        if lasts:
            info = self.connection.client
            task, spare_id = to_task(message, info.transport_options.get("tenant", ""))
            if not enqueue(info, queue, task, spare_id, is_repeated=self._is_repeated):
                outcomes.expired(message["headers"].get("id"))

    def _put_fanout(self, exchange: str, message: Message, routing_key: str, **_: Any) -> None:
        queues = {queue for _, _, queue in self.get_table(exchange) if self.connection.declared.get(queue)}
        for queue in queues:
            self._put(queue, message)
        if not queues:
            broadcast(self.connection.client, exchange, message)

    def _queue_bind(self, *_: Any) -> None:
        pass

    def _new_queue(self, queue: str, auto_delete: bool = False, exclusive: bool = False, **_: Any) -> None:
        lasts = not auto_delete and not exclusive
        if lasts:
            refused(lambda: check_name(queue, "queue"))
        self.connection.declared[queue] = lasts

    def _purge(self, queue: str) -> int:
        if not self.connection.declared.get(queue):
            return 0
        return call(self.connection.client, lambda sender: sender.client.cancel_all(queue))

    def queue_delete(self, queue: str, *_: Any, **__: Any) -> None:
        """Do nothing: only operators delete queues."""

    # Receiving

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Hold at most `prefetch_count` tasks; 0: as many as a worker may."""
        self._prefetch_count = prefetch_count
        if self._leases and self._consumers:
            self._leases.limit(self._credit)

    @property
    def _credit(self) -> int:
        return min(self._prefetch_count or MAX_CREDIT, MAX_CREDIT)

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        """Consume from a queue, once events are drained: then all queues are known."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        self.connection._callbacks[queue] = callback
        if no_ack:
            self._no_ack.add(queue)
        if self._leases:
            self._leases.limit(self._credit)
        self.connection.alarm.ring()

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer; without any, no task comes, and those that have not begun go back."""
        super().basic_cancel(consumer_tag)
        if self._leases and not self._consumers:
            self._leases.limit(0)

    def deliver(self) -> bool:
        """Hand the tasks that may begin to their consumers; returns False if there are none."""
        leases = self._leases_of_consumed()
        if leases is None:
            return False
        while leases.cancelled:
            self._revoke(leases.cancelled.popleft())
        if leases.is_dismissed:
            leases.is_dismissed = False
            outcomes.stop()
        has_any = False
        while pushed := refused(leases.take):
            has_any = True
            self._deliver(leases, pushed)
        return has_any

    def _deliver(self, leases: Leases, pushed: Pushed) -> None:
        consume = self.connection._callbacks.get(pushed.queue)
        if not consume:  # no longer
            leases.settle(pushed.lease, "release")
            return
        try:
            message = self.Message(to_message(pushed.queue, pushed.task), channel=self)
        except NotAMessage as error:
            leases.settle(pushed.lease, "reject", str(error))
            return
        tag = message.delivery_tag
        self._held[tag] = pushed.lease, str(message.headers.get("id"))
        if pushed.queue in self._no_ack:
            self.basic_ack(tag)
        try:
            consume(message)
        except UNREADABLE as error:  # else this message would end one worker after the other
            log.error("Celery cannot read a message", exc_info=error, task=pushed.task.id, queue=pushed.queue)
            self._settle(tag, "reject", f"Celery cannot read the message: {error!r}"[:MAX_ERROR_CHARS])

    def _leases_of_consumed(self) -> Leases | None:
        """Return the connection for the queues that are consumed, None if there are none."""
        queues = sorted({queue for queue in self._active_queues if self.connection.declared.get(queue)})
        if self._leases is None and queues:
            self._leases = refused(lambda: self._attach(queues))
        elif self._leases and queues and queues != self._leases.queues:
            self._leases.consume(queues)
        return self._leases

    def _attach(self, queues: list[str]) -> Leases:
        info, run = self.connection.client, uuid4().hex[:8]
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:40]
        return Leases.open(
            url_of(info), tokens_of(info)[0], tls_of(info), worker=f"{host}-{os.getpid()}-{run}",
            queues=queues, credit=self._credit, alarm=self.connection.alarm,
        )  # fmt: skip

    def _revoke(self, cancelled: HeldLease) -> None:
        for lease, task_id in self._held.values():
            if lease == cancelled:
                outcomes.revoke(task_id)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """End a lease: the task is done."""
        self._settle(delivery_tag, "ack")

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a task back, which costs it no attempt, or make it a dead letter."""
        if requeue:
            self._settle(delivery_tag, "release")
        else:
            self._settle(delivery_tag, "reject", "rejected by Celery")

    def _settle(self, delivery_tag: str, action: str, error: str = "") -> None:
        lease, _ = self._held.pop(delivery_tag, (None, ""))
        if lease and self._leases:
            self._leases.settle(lease, action, error)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back all tasks that are not settled."""
        for tag in list(self._held):
            self.basic_reject(tag, requeue=True)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> None:
        """Refuse: the service pushes tasks."""
        raise NotImplementedError("fairq pushes tasks: consume from the queue")

    def close(self) -> None:
        """Give back what is not settled, and disconnect."""
        if not self.closed and self._leases:
            self.basic_recover()
            self._leases.leave()
            self._leases = None
        super().close()


class Transport(virtual.Transport):
    """A transport: the channels of a connection, and the alarm that wakes its thread when one may deliver."""

    Channel = Channel
    driver_type = driver_name = "fairq"
    default_port = DEFAULT_PORT
    polling_interval = None
    connection_errors = recoverable_connection_errors = (Retryable, OSError)
    channel_errors = (OperationalError,)
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.declared: dict[str, bool] = {}  # queues; True: those of fairq

    @cached_property
    def alarm(self) -> Alarm:
        """Wakes the thread that receives."""
        return Alarm()

    def close_connection(self, connection: Any) -> None:
        """Close the channels, and the alarm if there is one."""
        super().close_connection(connection)
        if alarm := self.__dict__.pop("alarm", None):
            alarm.close()

    def establish_connection(self) -> Any:
        """Check that the server is there; what is sent goes by connections that mend themselves. Raises: OSError."""
        address = self.client.hostname or "localhost", self.client.port or DEFAULT_PORT
        socket.create_connection(address, self.client.connect_timeout).close()
        return super().establish_connection()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the messages that are there, or wait for one. Raises: TimeoutError."""
        until = inf if timeout is None else monotonic() + timeout
        while not self._deliver_all():
            if (left := until - monotonic()) <= 0:
                raise TimeoutError
            self.alarm.wait({}, seconds=left)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let Celery's loop deliver when the alarm rings."""
        loop.add_reader(self.alarm.fileno(), self._on_alarm)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver no more."""
        loop.remove(self.alarm.fileno())

    def _on_alarm(self) -> None:
        self.alarm.wait({}, seconds=0)
        self._deliver_all()

    def _deliver_all(self) -> bool:
        return any([channel.deliver() for channel in list(self.channels)])
