"""Subscriptions in a cluster: to sharded channels at the primary with their slot, to plain channels at every primary.

A node delivers messages of a sharded channel only while it has the slot. When the slot moves, it sends `sunsubscribe`
(or MOVED to later subscribers), and the channel is subscribed at its new owner. A plain channel works at any node; it
is subscribed at every primary, so that no message is lost when one dies.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from attrs import define, field

from fairq.io.auto_reset_event import AutoResetEvent
from fairq.store.cluster import Cluster
from fairq.store.connection import Connection, Subscription


@define(eq=False)
class _Listener:
    subscription: Subscription
    scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def run(self) -> None:
        with self.scope:
            await self.subscription.run()


@define(eq=False)
class ClusterSubscription:
    """Listens to a cluster as `Subscription` listens to a single store: one connection to each primary.

    `outdated` is set when its channels or the topology have changed.
    """

    cluster: Cluster
    on_message: Callable[[str, str], None]
    outdated: AutoResetEvent
    _sharded: set[str] = field(factory=set, init=False)
    _plain: set[str] = field(factory=set, init=False)
    _listeners: dict[Connection, _Listener] = field(factory=dict, init=False)

    async def add(self, channel: str, *, sharded: bool = True) -> None:
        """Start to listen to one more channel soon, at the node that owns it."""
        (self._sharded if sharded else self._plain).add(channel)
        self.outdated.set()

    async def remove(self, channel: str) -> None:
        """Stop listening to a sharded channel."""
        self._sharded.discard(channel)
        owner = self.cluster.owner(channel)
        if owner in self._listeners:
            await self._listeners[owner].subscription.remove(channel)

    async def run(self) -> None:
        """Listen until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self.outdated.wait()
                self._follow_nodes(nursery)
                channels = self._channels_by_node()
                async with trio.open_nursery() as changes:  # so that a node that hangs does not delay the others
                    for node, listener in self._listeners.items():
                        changes.start_soon(listener.subscription.set_channels, channels[node], set(self._plain))

    def _follow_nodes(self, nursery: trio.Nursery) -> None:
        """Start listeners at new primaries, and end those at nodes that are no longer primaries."""
        nodes = self.cluster.nodes()
        for node in nodes:
            if node not in self._listeners:
                subscription = Subscription(node.address, self.on_message, node.timeout, self.cluster.refresh_soon)
                self._listeners[node] = listener = _Listener(subscription)
                nursery.start_soon(listener.run)
        for node in self._listeners.keys() - set(nodes):
            self._listeners.pop(node).scope.cancel()

    def _channels_by_node(self) -> dict[Connection, set[str]]:
        """Group the sharded channels by the primary that has their slot."""
        found: dict[Connection, set[str]] = {node: set() for node in self._listeners}
        for channel in self._sharded:
            owner = self.cluster.owner(channel)
            if owner in found:
                found[owner].add(channel)
        return found
